;; Draws random bytes twice.
;; The host gives it two different draws.
(module
  (import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eqz (call $random_get (i32.const 4096) (i32.const 32))))
    (call $require (i32.eqz (call $random_get (i32.const 4128) (i32.const 32))))
    (call $require (i64.ne (i64.load (i32.const 4096)) (i64.load (i32.const 4128))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
