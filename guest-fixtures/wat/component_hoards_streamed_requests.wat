;; Is a component that starts requests with 200 KB of headers, writes nothing to them and drops none.
;; The host refuses one when it would hold more than 16 MiB, and the guest gives up.
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
  (import "sandglass:integration/http@0.1.0" (instance $http
    (export "outgoing-request" (type $request (sub resource)))
    (type $headers-type (list (tuple string string)))
    (export "headers" (type $headers (eq $headers-type)))
    (type $request-head-type (record
      (field "method" string) (field "url" string) (field "headers" $headers)))
    (export "request-head" (type $request-head (eq $request-head-type)))
    (type $error-type (variant
      (case "invalid-request" string) (case "not-allowed" string) (case "timed-out" u64)
      (case "cut-short" string) (case "too-large" u64) (case "too-many-redirects")
      (case "transport" string)))
    (export "error" (type $error (eq $error-type)))
    (export "start" (func (param "head" $request-head)
      (result (result (own $request) (error $error)))))))
  (core module $memory
    (memory (export "memory") 5)
    ;; The host has the guest allocate once: for the text of the error.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
    (data (i32.const 16) "GET")
    (data (i32.const 32) "http://api.example/")
    ;; The one header: its name, and 200,000 letters.
    (data (i32.const 64) "x-a")
    (data (i32.const 80) "\40\00\00\00\03\00\00\00\00\00\01\00\40\0d\03\00"))
  (core instance $memory (instantiate $memory))
  (core func $start (canon lower (func $http "start")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core module $module
    (import "memory" "memory" (memory 5))
    (import "http" "start" (func $start (param i32 i32 i32 i32 i32 i32 i32)))
    (func (export "handle") (param i32) (result i32)
      (memory.fill (i32.const 65536) (i32.const 0x41) (i32.const 200000))
      (loop $again
        (call $start (i32.const 16) (i32.const 3) (i32.const 32) (i32.const 19)
          (i32.const 80) (i32.const 1) (i32.const 128))
        ;; As long as it is no error.
        (br_if $again (i32.eqz (i32.load8_u (i32.const 128)))))
      (unreachable)))
  (core instance $instance (instantiate $module
    (with "memory" (instance $memory))
    (with "http" (instance (export "start" (func $start))))))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle")
      (memory (core memory $memory "memory"))
      (realloc (core func $memory "realloc"))))
  (export "handle" (func $handle)))
