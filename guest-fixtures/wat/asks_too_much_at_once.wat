;; Passes megabytes to host functions that expect a few bytes, and reads why each refuses.
;; The host must refuse by the length alone, and keep its reason for the last error.
(module
  (import "env" "host_emit_progress" (func $progress (param i32 i32) (result i32)))
  (import "env" "host_get_secret" (func $secret (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 64)
  (data (i32.const 0) "{\22success\22:true}")
  (data (i32.const 64) "{\22success\22:false,\22error\22:\22it was taken, or its reason was lost\22}")
  (func $refused (param $answer i32) (result i32)
    (local $size i32)
    (if (i32.ne (local.get $answer) (i32.const -1)) (then (return (i32.const 0))))
    ;; Asking with no room for the answer leaves the answer as it is.
    (if (i32.ne (call $last_error (i32.const 512) (i32.const 0)) (i32.const -2))
      (then (return (i32.const 0))))
    (local.set $size (call $last_error (i32.const 512) (i32.const 1024)))
    ;; "the " begins every reason, and no other answer.
    (i32.and
      (i32.gt_s (local.get $size) (i32.const 0))
      (i32.eq (i32.load (i32.const 512)) (i32.const 0x20656874))))
  (func (export "run") (param i32 i32) (result i32)
    (if (i32.and
          (call $refused (call $progress (i32.const 4096) (i32.const 4000000)))
          (call $refused
            (call $secret (i32.const 4096) (i32.const 4000000) (i32.const 512) (i32.const 64))))
      (then (call $set_result (i32.const 0) (i32.const 16)))
      (else (call $set_result (i32.const 64) (i32.const 64))))
    (i32.const 0)))
