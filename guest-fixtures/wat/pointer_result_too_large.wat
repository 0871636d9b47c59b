;; Returns a pointer with a length of 1 MiB and a byte before it.
;; The host reports that it is too large.
(module
  (memory (export "memory") 18)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.store (i32.const 12) (i32.const 1048577))
    (i32.const 16)))
