;; Reads the time in every way that there is.
;; The host returns the same time in all of them.
(module
  (import "env" "host_get_time" (func $get_time (param i32 i32) (result i32)))
  (import "env" "host_get_time_millis" (func $get_time_millis (result i64)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_res_get" (func $clock_res_get (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $millis i64)
    (call $require (i32.eq (i32.const 16) (call $get_time (i32.const 4096) (i32.const 64))))
    ;; YYYYMMDDTHHMMSSZ
    (call $require (i32.eq (i32.load8_u (i32.const 4104)) (i32.const 0x54)))
    (call $require (i32.eq (i32.load8_u (i32.const 4111)) (i32.const 0x5a)))
    (local.set $millis (call $get_time_millis))
    (call $require (i64.gt_s (local.get $millis) (i64.const 1700000000000)))
    ;; WASI's clock 0 is the wall clock in nanoseconds: no more than a minute apart.
    (call $require (i32.eqz (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 4128))))
    (call $require (i64.lt_u (i64.sub (i64.div_u (i64.load (i32.const 4128)) (i64.const 1000000)) (local.get $millis)) (i64.const 60000)))
    ;; Clock 1 never goes back.
    (call $require (i32.eqz (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 4128))))
    (call $require (i32.eqz (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 4136))))
    (call $require (i64.ge_u (i64.load (i32.const 4136)) (i64.load (i32.const 4128))))
    (call $require (i32.eqz (call $clock_res_get (i32.const 1) (i32.const 4144))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
