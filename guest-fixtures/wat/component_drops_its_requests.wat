;; Is a component that makes outgoing requests with methods of a megabyte and drops each, forever.
;; The host holds one at a time, and ends it at its deadline.
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
  (import "wasi:http/types@0.2.0" (instance $http
    (export "fields" (type $fields (sub resource)))
    (export "outgoing-request" (type $request (sub resource)))
    (export "[constructor]fields" (func (result (own $fields))))
    (export "[constructor]outgoing-request"
      (func (param "headers" (own $fields)) (result (own $request))))
    (type $method-type (variant
      (case "get") (case "head") (case "post") (case "put") (case "delete") (case "connect")
      (case "options") (case "trace") (case "patch") (case "other" string)))
    (export "method" (type $method (eq $method-type)))
    (export "[method]outgoing-request.set-method"
      (func (param "self" (borrow $request)) (param "method" $method) (result (result))))))
  (alias export $http "outgoing-request" (type $request))
  (core module $memory
    (memory (export "memory") 32))
  (core instance $memory (instantiate $memory))
  (core func $new-fields (canon lower (func $http "[constructor]fields")))
  (core func $new-request (canon lower (func $http "[constructor]outgoing-request")))
  (core func $drop-request (canon resource.drop $request))
  (core func $set-method (canon lower (func $http "[method]outgoing-request.set-method")
    (memory (core memory $memory "memory"))))
  (core module $module
    (import "memory" "memory" (memory 32))
    (import "http" "new-fields" (func $new_fields (result i32)))
    (import "http" "new-request" (func $new_request (param i32) (result i32)))
    (import "http" "drop-request" (func $drop_request (param i32)))
    (import "http" "set-method" (func $set_method (param i32 i32 i32 i32) (result i32)))
    (func (export "handle") (param i32) (result i32)
      (local $request i32)
      ;; A method of a million letters is valid.
      (memory.fill (i32.const 65536) (i32.const 0x41) (i32.const 1000000))
      (loop $again
        (local.set $request (call $new_request (call $new_fields)))
        (drop (call $set_method
          (local.get $request) (i32.const 9) (i32.const 65536) (i32.const 1000000)))
        (call $drop_request (local.get $request))
        (br $again))
      (unreachable))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
  (core instance $instance (instantiate $module
    (with "memory" (instance $memory))
    (with "http" (instance
      (export "new-fields" (func $new-fields))
      (export "new-request" (func $new-request))
      (export "drop-request" (func $drop-request))
      (export "set-method" (func $set-method))))))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle")
      (memory (core memory $memory "memory"))
      (realloc (core func $instance "realloc"))))
  (export "handle" (func $handle)))
