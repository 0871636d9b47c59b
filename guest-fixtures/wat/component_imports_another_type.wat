;; Is a handler that wants a monotonic clock of 32 bits.
;; The host rejects it, and states which import it is and what both have.
(component
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance (export "now" (func (result u32)))))
  (type $context-type (record
    (field "tenant" string) (field "entity-type" string) (field "entity-id" string)
    (field "trigger-action" string) (field "trigger-params" string) (field "entity-state" string)
    (field "integration-config" (list (tuple string string))) (field "trace-id" string)
    (field "agent-id" (option string)) (field "session-id" (option string))
    (field "dispatch-id" string) (field "deadline-remaining-ms" u64) (field "attempt" u32)))
  (export $context "dispatch-context" (type $context-type))
  (type $completion-type (record (field "action" (option string)) (field "params" string)))
  (export $completion "completion" (type $completion-type))
  (type $typed-type (record
    (field "category" string) (field "code" string) (field "retryability" (option string))
    (field "outcome" (option string)) (field "details" (option string))
    (field "diagnostic" (option string))))
  (export $typed "typed-failure" (type $typed-type))
  (type $failure-type (variant (case "plain" string) (case "typed" $typed)))
  (export $failure "failure" (type $failure-type))
  (core module $module
    (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
    (func (export "handle") (param i32) (result i32) (unreachable)))
  (core instance $instance (instantiate $module))
  (func (export "handle") (param "context" $context) (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle") (memory (core memory $instance "memory"))
      (realloc (core func $instance "realloc")))))
