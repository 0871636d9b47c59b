;; Answers the whole context as its params, having asked for the context's size first.
;; The host answers the size to an empty buffer, and then the context.
(module
  (import "env" "host_get_context" (func $get_context (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $size i32)
    (local.set $size (call $get_context (i32.const 0) (i32.const 0)))
    ;; Room for the context after the opening, which is 43 bytes long.
    (drop (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get $size) (i32.const 16)))))
    (local.set $size (call $get_context (i32.const 59) (local.get $size)))
    (i32.store8 (i32.add (i32.const 59) (local.get $size)) (i32.const 0x7d))
    (call $set_result (i32.const 16) (i32.add (i32.const 44) (local.get $size)))
    (i32.const 0)))
