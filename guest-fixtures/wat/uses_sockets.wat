;; Accepts, sends and receives on descriptors that are no sockets.
;; The host returns an error to each.
(module
  (import "wasi_snapshot_preview1" "sock_accept" (func $sock_accept (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_recv" (func $sock_recv (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_send" (func $sock_send (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_shutdown" (func $sock_shutdown (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 176) "\00\20\00\00\40\00\00\00") ;; one buffer: 64 bytes at 8192
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $fd i32)
    (loop $next
      (call $require (call $sock_accept (local.get $fd) (i32.const 0) (i32.const 4096)))
      (call $require (call $sock_recv (local.get $fd) (i32.const 176) (i32.const 1) (i32.const 0) (i32.const 4096) (i32.const 4100)))
      (call $require (call $sock_send (local.get $fd) (i32.const 176) (i32.const 1) (i32.const 0) (i32.const 4096)))
      (call $require (call $sock_shutdown (local.get $fd) (i32.const 3)))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $fd) (i32.const 8))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
