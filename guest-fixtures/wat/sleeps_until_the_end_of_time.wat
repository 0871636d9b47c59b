;; Polls for the longest time that 64 bits of nanoseconds can say.
;; The host neither wraps it to a moment in the past nor fails.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 64)
    "\00\00\00\00\00\00\00\00" ;; user data
    "\00\00\00\00\00\00\00\00" ;; a clock
    "\01\00\00\00\00\00\00\00" ;; the monotonic one
    "\ff\ff\ff\ff\ff\ff\ff\ff" ;; in 584 years
    "\00\00\00\00\00\00\00\00" ;; give or take nothing
    "\00\00\00\00\00\00\00\00") ;; from now
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256)))
      (br $again))
    (unreachable)))
