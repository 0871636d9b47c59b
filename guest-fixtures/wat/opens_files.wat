;; Looks for directories that it may use, and tries to open, read, make and remove files anyhow.
;; The host gives it none, and returns an error for each attempt.
(module
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func $fd_prestat_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open" (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_create_directory" (func $path_create_directory (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $path_unlink_file (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_filestat_get" (func $path_filestat_get (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_readdir" (func $fd_readdir (param i32 i32 i32 i64 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 128) "secrets.txt")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $fd i32)
    ;; 8 is BADF, by which a C library knows that there are no directories.
    (call $require (i32.eq (call $fd_prestat_get (i32.const 3) (i32.const 4096)) (i32.const 8)))
    ;; Descriptors 0 to 7: none of them is a directory.
    (loop $next
      (call $require (call $path_open
        (local.get $fd) (i32.const 0) (i32.const 128) (i32.const 11) (i32.const 0)
        (i64.const 2) (i64.const 2) (i32.const 0) (i32.const 4096)))
      (call $require (call $path_create_directory (local.get $fd) (i32.const 128) (i32.const 11)))
      (call $require (call $path_unlink_file (local.get $fd) (i32.const 128) (i32.const 11)))
      (call $require (call $path_filestat_get (local.get $fd) (i32.const 0) (i32.const 128) (i32.const 11) (i32.const 4096)))
      (call $require (call $fd_readdir (local.get $fd) (i32.const 4096) (i32.const 64) (i64.const 0) (i32.const 8192)))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $fd) (i32.const 8))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
