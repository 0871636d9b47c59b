;; Converts a number to a type that it doesn't fit.
;; The host says which trap it was, and where.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.trunc_f64_s (f64.const 1e300))))
