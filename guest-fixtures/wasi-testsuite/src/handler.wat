;; A handler that calls a command. RUN is the interface of the command, and ASYNC the keyword of
;; asynchronous functions where it has them.
(component
  (import "sandglass:integration/types@0.1.1" (instance $types
    (type $config (list (tuple string string)))
    (type $a (record
      (field "tenant" string) (field "entity-type" string) (field "entity-id" string)
      (field "trigger-action" string) (field "trigger-params" string) (field "entity-state" string)
      (field "integration-config" $config) (field "trace-id" string)
      (field "agent-id" (option string)) (field "session-id" (option string))
      (field "dispatch-id" string) (field "deadline-remaining-ms" u64) (field "attempt" u32)))
    (export "dispatch-context" (type $dispatch-context (eq $a)))
    (type $b (record (field "action" (option string)) (field "params" string)))
    (export "completion" (type $completion (eq $b)))
    (type $c (record
      (field "category" string) (field "code" string) (field "retryability" (option string))
      (field "outcome" (option string)) (field "details" (option string))
      (field "diagnostic" (option string))))
    (export "typed-failure" (type $typed-failure (eq $c)))
    (type $d (variant (case "plain" string) (case "typed" $typed-failure)))
    (export "failure" (type $failure (eq $d)))))
  (alias export $types "dispatch-context" (type $dispatch-context))
  (alias export $types "completion" (type $completion))
  (alias export $types "failure" (type $failure))
  (import "RUN" (instance $command (export "run" (func ASYNC (result (result))))))
  (core func $run (canon lower (func $command "run")))
  (core module $main
    (import "command" "run" (func $run (result i32)))
    (memory (export "memory") 4)
    ;; Nothing is freed: the context is all that is passed, and it is small.
    (global $top (mut i32) (i32.const 4096))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $top)
      (global.set $top (i32.and
        (i32.add (i32.add (global.get $top) (local.get 3)) (i32.const 7)) (i32.const -8))))
    (data (i32.const 64) "the command failed")
    (func (export "handle") (param i32) (result i32)
      ;; At 128: `ok` without an action or params, or `err(plain(..))`.
      (if (call $run)
        (then
          (i32.store (i32.const 128) (i32.const 1))
          (i32.store (i32.const 136) (i32.const 64))
          (i32.store (i32.const 140) (i32.const 18))))
      i32.const 128))
  (core instance $main (instantiate $main
    (with "command" (instance (export "run" (func $run))))))
  (func (export "handle") ASYNC (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $main "handle")
      (memory (core memory $main "memory")) (realloc (core func $main "realloc")))))
