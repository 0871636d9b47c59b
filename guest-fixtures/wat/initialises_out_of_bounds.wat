;; Has a data segment that does not fit its memory.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (data (i32.const 65535) "too long")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
