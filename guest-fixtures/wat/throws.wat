;; Throws an exception that it doesn't catch.
;; The host says which trap it was, and where.
(module
  (memory (export "memory") 1)
  (tag $thrown)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (throw $thrown)))
