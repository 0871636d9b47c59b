;; Sends the signal in the field `signal` of its entity, and fails with the reason if that fails.
;; The host returns 0 once the signal is recorded; otherwise it returns -1 and states why.
(module
  (import "env" "host_read_field" (func $read_field (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_signal" (func $signal (param i32 i32) (result i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "signal")
  (data (i32.const 32) "{\"success\":true}")
  (data (i32.const 1024) "{\"success\":false,\"error\":\"")
  (data (i32.const 3072) "\"}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $len i32)
    (local.set $len (call $read_field (i32.const 16) (i32.const 6) (i32.const 8192) (i32.const 1000)))
    (if (i32.le_s (local.get $len) (i32.const 0)) (then (unreachable)))
    (if (i32.eqz (call $signal (i32.const 8192) (local.get $len)))
      (then
        (call $set_result (i32.const 32) (i32.const 16))
        (return (i32.const 0))))
    (local.set $len (call $last_error (i32.const 1050) (i32.const 1024)))
    (memory.copy (i32.add (i32.const 1050) (local.get $len)) (i32.const 3072) (i32.const 2))
    (call $set_result (i32.const 1024) (i32.add (local.get $len) (i32.const 28)))
    (i32.const 0)))
