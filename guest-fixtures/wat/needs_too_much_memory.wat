;; Wants 125 MiB of memory from the start.
;; The host refuses to instantiate it.
(module
  (memory (export "memory") 2000)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
