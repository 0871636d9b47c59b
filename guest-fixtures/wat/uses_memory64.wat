;; Has a 64-bit memory.
;; The host rejects it, and states why.
(module
  (memory (export "memory") i64 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
