;; Asks for a secret that it was not given.
;; The host returns -1, and states why.
(module
  (import "env" "host_get_secret" (func $get_secret (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 128) "ROOT_PW")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eq (call $get_secret (i32.const 128) (i32.const 7) (i32.const 4096) (i32.const 64)) (i32.const -1)))
    (call $require (i32.gt_s (call $last_error (i32.const 4096) (i32.const 1024)) (i32.const 0)))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
