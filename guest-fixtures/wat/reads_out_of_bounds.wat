;; Reads a byte past its memory.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.load8_u (i32.const 0x7fffffff))))
