;; Loops forever in its start function.
;; The host ends it while it is instantiated.
(module
  (memory (export "memory") 1)
  (func $spin (loop $again (br $again)))
  (start $spin)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
