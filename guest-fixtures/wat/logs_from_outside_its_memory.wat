;; Logs with pointers and lengths outside its memory.
;; The host logs nothing, allocates nothing, and goes on.
(module
  (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $log (i32.const 0x7ffffff0) (i32.const 4) (i32.const 0) (i32.const 4))
    (call $log (i32.const 0) (i32.const 4) (i32.shl (memory.size) (i32.const 16)) (i32.const 1))
    (call $log (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0x7fffffff))
    (call $log (i32.const -1) (i32.const -1) (i32.const -1) (i32.const -1))
    (call $require (i32.gt_s (call $last_error (i32.const 4096) (i32.const 1024)) (i32.const 0)))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
