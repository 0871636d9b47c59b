;; Sleeps until WASI's real-time clock says that it is the year 2200, and then again.
;; The host drops the poll at the deadline.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 64)
    "\00\00\00\00\00\00\00\00" ;; user data
    "\00\00\00\00\00\00\00\00" ;; a clock
    "\00\00\00\00\00\00\00\00" ;; the real-time one
    "\00\00\ba\c9\3a\04\ba\64" ;; at 7,258,118,400 s of the epoch
    "\00\00\00\00\00\00\00\00" ;; give or take nothing
    "\01\00\00\00\00\00\00\00") ;; at that time, and not from now
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256)))
      (br $again))
    (unreachable)))
