;; Sends a batch to a server that never answers.
;; It is killed in that call.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (import "env" "host_read_field" (func $read_field (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_http_call_batch" (func $http_call_batch (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 16) "batch")
  (data (i32.const 32) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $len i32)
    (local.set $len (call $read_field (i32.const 16) (i32.const 5) (i32.const 16384) (i32.const 16000)))
    (drop (call $http_call_batch (i32.const 16384) (local.get $len) (i32.const 65536) (i32.const 60000)))
    (call $set_result (i32.const 32) (i32.const 46))
    (i32.const 0)))
