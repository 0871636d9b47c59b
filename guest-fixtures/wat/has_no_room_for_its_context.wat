;; Does not fetch its context, and its memory may not grow.
;; The host can place the context nowhere, and refuses to run it.
(module
  (memory (export "memory") 1 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
