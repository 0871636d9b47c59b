;; Calls a host that it may not reach, ignores the error, and calls again.
;; The host returns -1 to each call, and ends the guest at its deadline.
(module
  (import "env" "host_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "GET")
  (data (i32.const 32) "http://nowhere.invalid/")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (drop (call $http_call
        (i32.const 16) (i32.const 3) (i32.const 32) (i32.const 23)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 4096) (i32.const 4096)))
      (br $again))
    (unreachable)))
