;; Offers buffers that are too small.
;; The host writes nothing to them, and returns the needed size or -2, as the contract states for each function.
(module
  (import "env" "host_get_context" (func $get_context (param i32 i32) (result i32)))
  (import "env" "host_get_secret" (func $get_secret (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_get_time" (func $get_time (param i32 i32) (result i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 128) "API_KEY")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $size i32)
    ;; The context and secrets answer the size that they need.
    (local.set $size (call $get_context (i32.const 4096) (i32.const 0)))
    (call $require (i32.gt_s (local.get $size) (i32.const 1)))
    (call $require (i32.eq (local.get $size) (call $get_context (i32.const 4096) (i32.sub (local.get $size) (i32.const 1)))))
    (call $require (i32.eq (i32.const 12) (call $get_secret (i32.const 128) (i32.const 7) (i32.const 4096) (i32.const 11))))
    ;; The others answer -2.
    (call $require (i32.eq (i32.const -2) (call $get_time (i32.const 4096) (i32.const 15))))
    (call $require (i32.eq (i32.const -2) (call $last_error (i32.const 4096) (i32.const 1))))
    ;; Nothing was written.
    (call $require (i64.eqz (i64.or (i64.load (i32.const 4096)) (i64.load (i32.const 4104)))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
