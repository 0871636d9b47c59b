;; Returns a failure that tools can read.
;; The host reports it as a typed failure, and keeps its details.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"success\":false,\"typed_failure\":{\"version\":1,\"category\":\"upstream\",\"code\":\"rate_limited\",\"retryability\":\"retryable\",\"outcome\":\"not_started\",\"details\":{\"after_seconds\":30}}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 173))
    (i32.const 0)))
