;; Sets a result far outside its memory, where pointer and length together pass 32 bits.
;; The host reports that it is out of bounds.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 0xfffffff0) (i32.const 0x20))
    (i32.const 0)))
