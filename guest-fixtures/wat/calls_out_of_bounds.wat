;; Calls a table element that is not there.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (table 1 funcref)
  (type $answer (func (result i32)))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call_indirect (type $answer) (i32.const 7))))
