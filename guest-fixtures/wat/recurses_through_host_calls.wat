;; Calls itself without end, with a host call at each depth.
;; The host keeps a stack of its own for host calls, so that the guest's end is the guest's.
(module
  (import "env" "host_get_time_millis" (func $get_time_millis (result i64)))
  (memory (export "memory") 1)
  (func $recurse (param $n i64) (result i64)
    (i64.add (call $recurse (call $get_time_millis)) (i64.const 1)))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (drop (call $recurse (i64.const 0)))
    (i32.const 0)))
