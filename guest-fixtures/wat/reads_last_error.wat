;; Asks for the last error before and after a call to a host that it may not reach.
;; The host returns nothing before, and afterwards a sentence that names the host.
(module
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 144) "GET")
  (data (i32.const 160) "http://nowhere.invalid/")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eqz (call $last_error (i32.const 4096) (i32.const 1024))))
    (call $require (i32.eq
      (call $http_call
        (i32.const 144) (i32.const 3)
        (i32.const 160) (i32.const 23)
        (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 4096))
      (i32.const -1)))
    (call $require (i32.gt_s (call $last_error (i32.const 4096) (i32.const 1024)) (i32.const 0)))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
