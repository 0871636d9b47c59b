;; Sets its result, and then traps.
;; The host reports that it trapped: the result does not count.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 46))
    (unreachable)))
