;; Imports host_get_context, and checks that nothing grew or wrote its memory.
;; The host writes nothing by itself into a guest that fetches its context.
(module
  (import "env" "host_get_context" (func $get_context (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func $require (param $holds i32)
    (if (i32.eqz (local.get $holds)) (then (unreachable))))
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $at i32)
    (call $require (i32.eq (memory.size) (i32.const 1)))
    (call $require (i32.eqz (i32.or (local.get $context) (local.get $context_len))))
    ;; Past its own data there is nothing but zeros.
    (local.set $at (i32.const 64))
    (loop $next
      (call $require (i32.eqz (i32.load8_u (local.get $at))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (i32.const 65536))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
