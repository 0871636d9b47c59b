;; Succeeds with a key that no result has.
;; The host reports that this is not a valid result, and names the key.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"success\":true,\"parms\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 27))
    (i32.const 0)))
