;; Answers success, and names no action.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"success\":true}")
  (func (export "run") (param i32 i32) (result i32)
    (call $set_result (i32.const 0) (i32.const 16))
    (i32.const 0)))
