;; Asks for its environment and its arguments.
;; The host has neither: a guest must not read the environment of the host's process.
(module
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eqz (call $environ_sizes_get (i32.const 4096) (i32.const 4100))))
    (call $require (i32.eqz (i32.load (i32.const 4096))))
    (call $require (i32.eqz (call $args_sizes_get (i32.const 4096) (i32.const 4100))))
    (call $require (i32.eqz (i32.load (i32.const 4096))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
