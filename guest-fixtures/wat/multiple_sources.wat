;; Sets its result and returns a pointer to one.
;; The host reports that, and uses neither.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.store (i32.const 12) (i32.const 46))
    (i32.const 16)))
