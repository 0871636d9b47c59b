;; Returns a pointer outside its memory.
;; The host reports that.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0x7ffffff0)))
