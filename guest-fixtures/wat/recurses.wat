;; Calls itself without end.
;; The host ends the guest and nothing else.
(module
  (memory (export "memory") 1)
  (func $recurse (param $n i64) (result i64)
    (i64.add (call $recurse (i64.add (local.get $n) (i64.const 1))) (i64.const 1)))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (drop (call $recurse (i64.const 0)))
    (i32.const 0)))
