;; Sets a result of 2 GiB in a memory of one page.
;; The host allocates nothing for it, and reports that it is out of bounds.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 0x7fffffff))
    (i32.const 0)))
