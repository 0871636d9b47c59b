;; Watches the clock until its budget is long over, and then returns a success.
;; The host has killed it by then.
(module
  (import "env" "host_get_time_millis" (func $get_time_millis (result i64)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $end i64)
    (local.set $end (i64.add (call $get_time_millis) (i64.const 600)))
    (loop $again
      (br_if $again (i64.lt_s (call $get_time_millis) (local.get $end))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
