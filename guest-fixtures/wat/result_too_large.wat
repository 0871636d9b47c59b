;; Sets a result of 1 MiB and a byte.
;; The host reports that it is too large.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 17)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 0) (i32.const 1048577))
    (i32.const 0)))
