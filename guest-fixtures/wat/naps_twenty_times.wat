;; Naps twenty times for 200 milliseconds in a WASI poll, and succeeds.
;; Each poll that begins or ends is activity, although the guest sends no signal.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 12) "\2e\00\00\00{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 64)
    "\00\00\00\00\00\00\00\00" ;; user data
    "\00\00\00\00\00\00\00\00" ;; a clock
    "\01\00\00\00\00\00\00\00" ;; the monotonic one
    "\00\c2\eb\0b\00\00\00\00" ;; in 200,000,000 ns
    "\00\00\00\00\00\00\00\00" ;; give or take nothing
    "\00\00\00\00\00\00\00\00") ;; from now
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $left i32)
    (local.set $left (i32.const 20))
    (loop $again
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 256)))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (i32.const 16)))
