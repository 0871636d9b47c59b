;; Reports its progress, sleeps for 20 ms, and reports it again, forever.
;; The host passes it on, and ends the guest at its deadline: progress lengthens no budget.
(module
  (import "env" "host_emit_progress" (func $emit_progress (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"done\":3,\"of\":7}")
  (data (i32.const 64)
    "\00\00\00\00\00\00\00\00" ;; user data
    "\00\00\00\00\00\00\00\00" ;; a clock
    "\01\00\00\00\00\00\00\00" ;; the monotonic one
    "\00\2d\31\01\00\00\00\00" ;; in 20,000,000 ns
    "\00\00\00\00\00\00\00\00" ;; give or take nothing
    "\00\00\00\00\00\00\00\00") ;; from now
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (drop (call $emit_progress (i32.const 16) (i32.const 17)))
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256)))
      (br $again))
    (unreachable)))
