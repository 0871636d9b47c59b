;; Gives WASI a pointer outside its memory.
;; The host ends it there, and writes nowhere.
(module
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 0x7ffffff0)))
    (i32.const 0)))
