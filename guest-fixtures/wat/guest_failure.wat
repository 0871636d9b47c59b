;; Returns failure, with a sentence.
;; The host reports it as the guest's failure.
(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"success\":false,\"error\":\"the tool answered 503\"}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 49))
    (i32.const 0)))
