;; Throws an exception that it does not catch.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (tag $thrown)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (throw $thrown)))
