;; Loops forever with fuel to spend.
;; The host ends it when the fuel is spent, long before its deadline.
(module
  (memory (export "memory") 1)
  (func $spin (loop $again (br $again)))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $spin)
    (unreachable)))
