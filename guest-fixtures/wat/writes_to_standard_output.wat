;; Writes to standard output and standard error.
;; The host writes it to the log.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 176) "\c0\00\00\00\0e\00\00\00") ;; one buffer: 14 bytes at 192
  (data (i32.const 192) "a line of text")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $require (i32.eqz (call $fd_write (i32.const 1) (i32.const 176) (i32.const 1) (i32.const 4096))))
    (call $require (i32.eq (i32.load (i32.const 4096)) (i32.const 14)))
    (call $require (i32.eqz (call $fd_write (i32.const 2) (i32.const 176) (i32.const 1) (i32.const 4096))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
