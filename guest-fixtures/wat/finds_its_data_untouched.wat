;; Fills its whole first page before it runs, and checks each byte of it when it does.
;; The host places the context elsewhere, never at a fixed address.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (func $fill (memory.fill (i32.const 0) (i32.const 0x5a) (i32.const 65536)))
  (start $fill)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $at i32)
    (loop $next
      (if (i32.ne (i32.load8_u (local.get $at)) (i32.const 0x5a)) (then (unreachable)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (i32.const 65536))))
    (memory.init $done (i32.const 16) (i32.const 0) (i32.const 46))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0))
  (data $done "{\"action\":\"Finish\",\"success\":true,\"params\":{}}"))
