;; Is a component that waits until hardly any time is left, fills its memory by one instruction, which nothing can interrupt, and returns a success.
;; The host reads the clock as it returns: a late success is a timeout.
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
  (import "sandglass:integration/clock@0.1.0" (instance $clock
    (export "deadline-remaining-ms" (func (result u64)))))
  (core func $remaining-ms (canon lower (func $clock "deadline-remaining-ms")))
  (core module $module
    (import "clock" "remaining-ms" (func $remaining_ms (result i64)))
    (memory (export "memory") 2048)
    (func (export "handle") (param i32) (result i32)
      (loop $again
        (br_if $again (i64.gt_s (call $remaining_ms) (i64.const 4))))
      ;; 128 MiB that nobody has touched before take ten times what is left.
      (memory.fill (i32.const 65536) (i32.const 0x5a) (i32.const 0x7ff0000))
      ;; Zeros: a completion without action and params.
      (i32.const 8))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
  (core instance $instance (instantiate $module
    (with "clock" (instance (export "remaining-ms" (func $remaining-ms))))))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle")
      (memory (core memory $instance "memory"))
      (realloc (core func $instance "realloc"))))
  (export "handle" (func $handle)))
