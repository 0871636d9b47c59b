;; Wants a table of 200,000 elements from the start.
;; The host refuses to instantiate it.
(module
  (memory (export "memory") 1)
  (table 200000 funcref)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
