;; Calls a table element of another type.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (table 1 funcref)
  (elem (i32.const 0) $other)
  (func $other (param i64))
  (type $answer (func (result i32)))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call_indirect (type $answer) (i32.const 0))))
