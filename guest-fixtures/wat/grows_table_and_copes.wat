;; Grows a table until that is refused, and returns a success.
;; The host lets it.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (table $table 1 funcref)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (br_if $again (i32.ne (table.grow $table (ref.null func) (i32.const 1000)) (i32.const -1))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
