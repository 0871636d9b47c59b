;; Returns -1 and never sets a result.
;; The host reports that the result is absent: -1 is no pointer.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const -1)))
