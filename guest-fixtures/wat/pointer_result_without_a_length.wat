;; Returns the pointer 2, which leaves no room for a length before it.
;; The host reports that it is out of bounds.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 2)))
