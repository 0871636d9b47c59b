;; Traps in its start function.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (func $start (unreachable))
  (start $start)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
