;; Sends a signal to another entity that it was not granted.
;; The host returns -1 and states why; the guest fails with that.
(module
  (import "env" "host_signal" (func $signal (param i32 i32) (result i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"entity\":\"Payment/7\",\"name\":\"paid\"}")
  (data (i32.const 1024) "{\"success\":false,\"error\":\"")
  (data (i32.const 3072) "\"}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $len i32)
    (if (i32.ne (call $signal (i32.const 16) (i32.const 36)) (i32.const -1))
      (then (unreachable)))
    (local.set $len (call $last_error (i32.const 1050) (i32.const 1024)))
    (memory.copy (i32.add (i32.const 1050) (local.get $len)) (i32.const 3072) (i32.const 2))
    (call $set_result (i32.const 1024) (i32.add (local.get $len) (i32.const 28)))
    (i32.const 0)))
