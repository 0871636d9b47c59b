;; Calls host_http_call with a length of 2 GiB in each of its five places, and asks for the last error.
;; The host returns -1 to each, allocates nothing, and sends nothing.
(module
  (import "env" "host_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "GET")
  (data (i32.const 32) "http://nowhere.invalid/")
  (data (i32.const 64) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eq
      (call $http_call
        (i32.const 16) (i32.const 0x7fffffff)
        (i32.const 32) (i32.const 23)
        (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 4096))
      (i32.const -1)))
    (call $require (i32.eq
      (call $http_call
        (i32.const 16) (i32.const 3)
        (i32.const 32) (i32.const 0x7fffffff)
        (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 4096))
      (i32.const -1)))
    (call $require (i32.eq
      (call $http_call
        (i32.const 16) (i32.const 3)
        (i32.const 32) (i32.const 23)
        (i32.const 0) (i32.const 0x7fffffff)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 4096))
      (i32.const -1)))
    (call $require (i32.eq
      (call $http_call
        (i32.const 16) (i32.const 3)
        (i32.const 32) (i32.const 23)
        (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0x7fffffff)
        (i32.const 8192) (i32.const 4096))
      (i32.const -1)))
    (call $require (i32.eq
      (call $http_call
        (i32.const 16) (i32.const 3)
        (i32.const 32) (i32.const 23)
        (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0)
        (i32.const 8192) (i32.const 0x7fffffff))
      (i32.const -1)))
    (drop (call $last_error (i32.const 8192) (i32.const 4096)))
    (call $set_result (i32.const 64) (i32.const 46))
    (i32.const 0)))
