;; Logs the same line forever.
;; The host neither fills a disk nor slows down, and ends it at its deadline.
(module
  (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "info")
  (data (i32.const 32) "here I am")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (call $log (i32.const 16) (i32.const 4) (i32.const 32) (i32.const 9))
      (br $again))
    (unreachable)))
