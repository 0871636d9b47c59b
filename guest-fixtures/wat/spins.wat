;; Loops forever in its own code.
;; The host interrupts it at instruction level.
(module
  (memory (export "memory") 1)
  (func $spin (loop $again (br $again)))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $spin)
    (unreachable)))
