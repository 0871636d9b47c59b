;; Divides by zero.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $zero i32)
    (i32.div_u (i32.const 1) (local.get $zero))))
