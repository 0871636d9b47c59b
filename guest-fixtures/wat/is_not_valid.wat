;; Leaves an i64 where it must leave an i32.
;; The host rejects it, and states why.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i64.const 0)))
