;; Sleeps for 20 ms in a WASI poll.
;; The host wakes it, with one event that carries its user data.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 64)
    "\07\00\00\00\00\00\00\00" ;; user data
    "\00\00\00\00\00\00\00\00" ;; a clock
    "\01\00\00\00\00\00\00\00" ;; the monotonic one
    "\00\2d\31\01\00\00\00\00" ;; in 20,000,000 ns
    "\00\00\00\00\00\00\00\00" ;; give or take nothing
    "\00\00\00\00\00\00\00\00") ;; from now
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eqz (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256))))
    (call $require (i32.eq (i32.load (i32.const 256)) (i32.const 1)))
    (call $require (i64.eq (i64.load (i32.const 128)) (i64.const 7)))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
