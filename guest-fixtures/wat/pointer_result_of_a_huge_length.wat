;; Returns a pointer with 4 GiB as the length before it.
;; The host allocates nothing for it, and reports that it is out of bounds.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.store (i32.const 12) (i32.const 0xffffffff))
    (i32.const 16)))
