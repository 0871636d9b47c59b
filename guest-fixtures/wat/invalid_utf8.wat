;; Sets a result whose string holds the byte ff.
;; The host reports that.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"success\":true,\"x\":\"\ff\"}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 24))
    (i32.const 0)))
