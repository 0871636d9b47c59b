;; Makes HTTP calls with no method, with no URL, and with a header that belongs to the connection.
;; The host returns -1 to each, and sends nothing.
(module
  (import "env" "host_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 144) "GET")
  (data (i32.const 160) "http://nowhere.invalid/")
  (data (i32.const 192) "no://")
  (data (i32.const 208) "[[\"te\",\"a\"]]")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eq ;; method
      (call $http_call
        (i32.const 144) (i32.const 0)
        (i32.const 160) (i32.const 23)
        (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 64))
      (i32.const -1)))
    (call $require (i32.eq ;; url
      (call $http_call
        (i32.const 144) (i32.const 3)
        (i32.const 192) (i32.const 5)
        (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 64))
      (i32.const -1)))
    (call $require (i32.eq ;; headers
      (call $http_call
        (i32.const 144) (i32.const 3)
        (i32.const 160) (i32.const 23)
        (i32.const 208) (i32.const 12)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 64))
      (i32.const -1)))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
