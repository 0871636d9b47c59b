;; Reaches an unreachable instruction, two functions deep.
;; The host reports the kind of the trap, and where it was.
(module
  (memory (export "memory") 1)
  (func $innermost (unreachable))
  (func $middle (call $innermost))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $middle)
    (i32.const 0)))
