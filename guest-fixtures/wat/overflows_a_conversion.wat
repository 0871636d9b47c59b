;; Converts a number to a type that it does not fit.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.trunc_f64_s (f64.const 1e300))))
