;; Has a second memory beside the one that it exports.
;; A slot of the pool has one, so it runs on demand; its limit is counted on both.
(module
  (memory (export "memory") 1)
  (memory 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
