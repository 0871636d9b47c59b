;; Calls a host that it may not reach, ignores the error, and reports success.
;; The host reports that the call was refused, and that the handler has failed.
(module
  (import "env" "host_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 144) "GET")
  (data (i32.const 160) "http://nowhere.invalid/")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (drop (call $http_call
      (i32.const 144) (i32.const 3)
      (i32.const 160) (i32.const 23)
      (i32.const 0) (i32.const 0)
      (i32.const 0) (i32.const 0)
      (i32.const 8192) (i32.const 4096)))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
