;; Is a component that reads both clocks of wasi:clocks, over and over.
;; The host ends it at its deadline.
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
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $monotonic
    (export "now" (func (result u64)))))
  (import "wasi:clocks/wall-clock@0.2.0" (instance $wall
    (type $datetime-type (record (field "seconds" u64) (field "nanoseconds" u32)))
    (export "datetime" (type $datetime (eq $datetime-type)))
    (export "now" (func (result $datetime)))))
  (core module $memory
    (memory (export "memory") 1))
  (core instance $memory (instantiate $memory))
  (core func $monotonic-now (canon lower (func $monotonic "now")))
  (core func $wall-now (canon lower (func $wall "now") (memory (core memory $memory "memory"))))
  (core module $module
    (import "memory" "memory" (memory 1))
    (import "wasi" "monotonic-now" (func $monotonic_now (result i64)))
    (import "wasi" "wall-now" (func $wall_now (param i32)))
    (func (export "handle") (param i32) (result i32)
      (loop $again
        (drop (call $monotonic_now))
        (call $wall_now (i32.const 4096))
        (br $again))
      (unreachable))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
  (core instance $instance (instantiate $module
    (with "memory" (instance $memory))
    (with "wasi" (instance
      (export "monotonic-now" (func $monotonic-now))
      (export "wall-now" (func $wall-now))))))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle")
      (memory (core memory $memory "memory"))
      (realloc (core func $instance "realloc"))))
  (export "handle" (func $handle)))
