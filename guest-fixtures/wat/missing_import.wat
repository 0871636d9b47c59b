;; Misspells host_http_call.
;; The host names it and the nearest that there is.
(module
  (import "env" "host_http_cal" (func (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (i32.const 0)))
