;; Has a data segment that doesn't fit its memory.
;; The host says which trap it was, and where.
(module
  (memory (export "memory") 1)
  (data (i32.const 65535) "too long")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
