;; Calls the `url` of its entity's fields, whatever the result is, again and again.
;; The host ends it at its deadline, in the call that waits.
(module
  (import "env" "host_read_field" (func $read_field (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "url")
  (data (i32.const 32) "GET")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $url i32)
    (local.set $url (call $read_field (i32.const 16) (i32.const 3) (i32.const 8192) (i32.const 1000)))
    (if (i32.le_s (local.get $url) (i32.const 0)) (then (unreachable)))
    (loop $again
      (drop (call $http_call
        (i32.const 32) (i32.const 3) (i32.const 8192) (local.get $url)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 16384) (i32.const 4096)))
      (br $again))
    (unreachable)))
