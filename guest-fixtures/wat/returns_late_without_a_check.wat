;; Sets its result, waits until hardly any time is left, and then fills its memory by one instruction, which nothing can interrupt, and returns.
;; The host reads the clock as it returns: a late success is a timeout.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (import "env" "host_deadline_remaining_ms" (func $remaining_ms (result i64)))
  (memory (export "memory") 2047)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 46))
    (loop $again
      (br_if $again (i64.gt_s (call $remaining_ms) (i64.const 12))))
    ;; 128 MiB that nobody has touched before take several times what is left.
    (memory.fill (i32.const 0) (i32.const 0x5a) (i32.const 0x7ff0000))
    (i32.const 0)))
