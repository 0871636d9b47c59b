;; Sleeps for an hour of CPU time, by WASI's clock of the process and by that of the thread, over and over.
;; The host does not wait by those, and ends the guest at its deadline.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 64)
    "\00\00\00\00\00\00\00\00" ;; user data
    "\00\00\00\00\00\00\00\00" ;; a clock
    "\02\00\00\00\00\00\00\00" ;; that of the process
    "\00\a0\b8\30\46\03\00\00" ;; in 3,600,000,000,000 ns
    "\00\00\00\00\00\00\00\00" ;; give or take nothing
    "\00\00\00\00\00\00\00\00") ;; from now
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (i32.store (i32.const 80) (i32.const 2))
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256)))
      (i32.store (i32.const 80) (i32.const 3))
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256)))
      (br $again))
    (unreachable)))
