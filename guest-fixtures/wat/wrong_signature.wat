;; Exports run with 64-bit arguments.
;; The host states which type it has and which it must have.
(module
  (memory (export "memory") 1)
  (func (export "run") (param i64 i64) (result i32) (i32.const 0)))
