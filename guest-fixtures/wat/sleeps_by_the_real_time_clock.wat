;; Sleeps for an hour by WASI's real-time clock, and then again.
;; The host drops the poll at the deadline: whatever clock it waits by, the deadline uses another one.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 64)
    "\00\00\00\00\00\00\00\00" ;; user data
    "\00\00\00\00\00\00\00\00" ;; a clock
    "\00\00\00\00\00\00\00\00" ;; the real-time one
    "\00\a0\b8\30\46\03\00\00" ;; in 3,600,000,000,000 ns
    "\00\00\00\00\00\00\00\00" ;; give or take nothing
    "\00\00\00\00\00\00\00\00") ;; from now
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256)))
      (br $again))
    (unreachable)))
