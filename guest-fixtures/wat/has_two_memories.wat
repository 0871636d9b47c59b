;; Has a second memory beside the one that it exports.
;; The host refuses it: one memory is what its limit is counted on.
(module
  (memory (export "memory") 1)
  (memory 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
