;; Computes the 90th Fibonacci number the slow way: calls and returns, and no loop.
;; The host interrupts it at a function's entry.
(module
  (memory (export "memory") 1)
  (func $fib (param $n i32) (result i64)
    (if (result i64) (i32.lt_u (local.get $n) (i32.const 2))
      (then (i64.extend_i32_u (local.get $n)))
      (else (i64.add
        (call $fib (i32.sub (local.get $n) (i32.const 1)))
        (call $fib (i32.sub (local.get $n) (i32.const 2)))))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (drop (call $fib (i32.const 90)))
    (i32.const 0)))
