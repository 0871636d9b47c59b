;; Reads WASI's clocks and the host's until an hour has passed by them, and then returns a success.
;; The host ends it at its deadline: reading a clock does not prevent that.
(module
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))
  (import "env" "host_get_time_millis" (func $get_time_millis (result i64)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $until i64)
    (local.set $until (i64.add (call $get_time_millis) (i64.const 3600000)))
    (loop $again
      (drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 4096)))
      (drop (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 4104)))
      (br_if $again (i64.lt_s (call $get_time_millis) (local.get $until))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
