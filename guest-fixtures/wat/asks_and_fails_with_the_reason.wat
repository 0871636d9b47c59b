;; Sends the ask in the field `ask` of its entity, and fails with the reason if that fails.
;; The host returns -1 and states why; a success is an answer without action.
(module
  (import "env" "host_read_field" (func $read_field (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_ask" (func $ask (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "ask")
  (data (i32.const 32) "{\"success\":true}")
  (data (i32.const 1024) "{\"success\":false,\"error\":\"")
  (data (i32.const 3072) "\"}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $len i32)
    (local.set $len (call $read_field (i32.const 16) (i32.const 3) (i32.const 8192) (i32.const 1000)))
    (if (i32.le_s (local.get $len) (i32.const 0)) (then (unreachable)))
    (if (i32.ge_s (call $ask (i32.const 8192) (local.get $len) (i32.const 16384) (i32.const 4096)) (i32.const 0))
      (then
        (call $set_result (i32.const 32) (i32.const 16))
        (return (i32.const 0))))
    (local.set $len (call $last_error (i32.const 1050) (i32.const 1024)))
    (memory.copy (i32.add (i32.const 1050) (local.get $len)) (i32.const 3072) (i32.const 2))
    (call $set_result (i32.const 1024) (i32.add (local.get $len) (i32.const 28)))
    (i32.const 0)))
