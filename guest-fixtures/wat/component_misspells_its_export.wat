;; Is a component whose handler is called `handles`.
;; The host rejects it, and states what it must be called.
(component
  (import "sandglass:integration/types@0.1.0" (instance $types
    (type $config (list (tuple string string)))
    (type $dispatch-context-type (record
      (field "tenant" string) (field "entity-type" string) (field "entity-id" string)
      (field "trigger-action" string) (field "trigger-params" string)
      (field "entity-state" string) (field "integration-config" $config)
      (field "trace-id" string) (field "agent-id" (option string))
      (field "session-id" (option string)) (field "dispatch-id" string)
      (field "deadline-remaining-ms" u64) (field "attempt" u32)))
    (export "dispatch-context" (type $dispatch-context (eq $dispatch-context-type)))
    (type $completion-type (record (field "action" (option string)) (field "params" string)))
    (export "completion" (type $completion (eq $completion-type)))
    (type $typed-failure-type (record
      (field "category" string) (field "code" string) (field "retryability" (option string))
      (field "outcome" (option string)) (field "details" (option string))
      (field "diagnostic" (option string))))
    (export "typed-failure" (type $typed-failure (eq $typed-failure-type)))
    (type $failure-type (variant (case "plain" string) (case "typed" $typed-failure)))
    (export "failure" (type $failure (eq $failure-type)))))
  (alias export $types "dispatch-context" (type $dispatch-context))
  (alias export $types "completion" (type $completion))
  (alias export $types "failure" (type $failure))
  (core module $module
    (memory (export "memory") 1)
    (func (export "handle") (param i32) (result i32) unreachable)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
  (core instance $instance (instantiate $module))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle")
      (memory (core memory $instance "memory"))
      (realloc (core func $instance "realloc"))))
  (export "handles" (func $handle)))
