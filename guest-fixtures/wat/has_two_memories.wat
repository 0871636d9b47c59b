;; Has a second memory beside the one that it exports.
;; A slot of the pool has room for both; its limit is counted on them together.
(module
  (memory (export "memory") 1)
  (memory 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
