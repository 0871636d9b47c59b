;; Sets a result of 60,000 opening brackets.
;; The host refuses to parse it that deep.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (memory.fill (i32.const 16) (i32.const 0x5b) (i32.const 60000))
    (call $set_result (i32.const 16) (i32.const 60000))
    (i32.const 0)))
