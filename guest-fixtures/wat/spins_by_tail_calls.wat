;; Calls itself in tail position forever, with no loop and no growing stack.
;; The host still interrupts it.
(module
  (memory (export "memory") 1)
  (func $spin (param $n i32) (result i32)
    (return_call $spin (i32.add (local.get $n) (i32.const 1))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $spin (i32.const 0))))
