//! The measured guests, as WebAssembly text. The host and plain Wasmtime load the same bytes.

/// Spins in its handler.
pub(crate) const SPINS: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "run") (param i32 i32) (result i32) (loop (br 0)) (unreachable)))"#;

/// Spins in its start function, so its instantiation never completes.
pub(crate) const SPINS_IN_START: &str = r#"(module
  (memory (export "memory") 1)
  (func $start (loop (br 0)))
  (func (export "run") (param i32 i32) (result i32) (unreachable))
  (start $start))"#;

/// Spins in `_initialize`, which the host calls before the handler.
pub(crate) const SPINS_IN_INITIALISER: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "_initialize") (loop (br 0)))
  (func (export "run") (param i32 i32) (result i32) (unreachable)))"#;

/// Waits in a host function of the embedder that never returns.
pub(crate) const WAITS: &str = r#"(module
  (import "env" "host_get_context" (func (param i32 i32) (result i32)))
  (import "bench:waiting/never" "answer" (func $never (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (param i32 i32) (result i32) (call $never)))"#;

/// Like [`WAITS`], but with two memories, which is the most that a slot has space for.
pub(crate) const WAITS_WITH_TWO_MEMORIES: &str = r#"(module
  (import "env" "host_get_context" (func (param i32 i32) (result i32)))
  (import "bench:waiting/never" "answer" (func $never (result i32)))
  (memory (export "memory") 1)
  (memory 1)
  (func (export "run") (param i32 i32) (result i32) (call $never)))"#;

/// A small handler that sets its result with one host call. Because it imports `host_get_context`,
/// the host does not write the context into its memory.
pub(crate) const ANSWERS: &str = r#"(module
  (import "env" "host_get_context" (func (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "{\"success\":true,\"params\":{}}")
  (func (export "run") (param i32 i32) (result i32)
    (call $set_result (i32.const 1024) (i32.const 28))
    (i32.const 0)))"#;

/// How often the guest of [`calls`] calls the host function. The calls take some ten milliseconds,
/// so that the one dispatch around them is negligible.
pub(crate) const CALLS_COUNT: u32 = 200_000;

/// A handler that makes [`CALLS_COUNT`] calls of a host function that does almost nothing.
pub(crate) fn calls() -> String {
    format!(
        r#"(module
  (import "env" "host_get_context" (func (param i32 i32) (result i32)))
  (import "env" "host_should_stop" (func $should_stop (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "{{\"success\":true,\"params\":{{}}}}")
  (func (export "run") (param i32 i32) (result i32)
    (local $left i32)
    (local.set $left (i32.const {CALLS_COUNT}))
    (loop $again
      (drop (call $should_stop))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (call $set_result (i32.const 1024) (i32.const 28))
    (i32.const 0)))"#
    )
}

/// A handler that computes `steps` steps in its own code, each of which depends on the previous
/// one, and then completes.
pub(crate) fn works(steps: f64) -> String {
    format!(
        r#"(module
  (import "env" "host_get_context" (func (param i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "{{\"success\":true,\"params\":{{}}}}")
  (func (export "run") (param i32 i32) (result i32)
    (local $left i32) (local $value i64)
    (local.set $left (i32.const {steps:.0}))
    (loop $again
      (local.set $value (i64.add (i64.mul (local.get $value) (i64.const 6364136223846793005))
        (i64.const 1442695040888963407)))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (i64.store (i32.const 0) (local.get $value))
    (call $set_result (i32.const 1024) (i32.const 28))
    (i32.const 0)))"#
    )
}

/// The types of the world, as components import them.
macro_rules! types {
    () => {
        r#"  (import "sandglass:integration/types@0.1.0" (instance $types
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
  (alias export $types "failure" (type $failure))"#
    };
}

/// A component that does the same as [`ANSWERS`]: it makes one host call, and completes.
pub(crate) const COMPONENT: &str = concat!(
    "(component\n",
    types!(),
    r#"
  (import "sandglass:integration/clock@0.1.0" (instance $clock
    (export "deadline-remaining-ms" (func (result u64)))))
  (core func $remaining-ms (canon lower (func $clock "deadline-remaining-ms")))
  (core module $module
    (import "clock" "remaining-ms" (func $remaining_ms (result i64)))
    (memory (export "memory") 1)
    (global $free (mut i32) (i32.const 1024))
    (func (export "handle") (param i32) (result i32)
      (drop (call $remaining_ms))
      ;; Zeros: a completion without action and params.
      (i32.const 8))
    ;; Gives out memory from the lowest to the highest, aligned for whatever it is.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (global.get $free))
      (global.set $free (i32.and
        (i32.add (i32.add (global.get $free) (local.get 3)) (i32.const 7)) (i32.const -8)))
      (local.get $at)))
  (core instance $instance (instantiate $module
    (with "clock" (instance (export "remaining-ms" (func $remaining-ms))))))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle")
      (memory (core memory $instance "memory"))
      (realloc (core func $instance "realloc"))))
  (export "handle" (func $handle)))"#
);

/// The memory of an asynchronous component, in a module of its own.
macro_rules! memory {
    () => {
        r#"
  (core module $memory
    (memory (export "memory") 1)
    (global $free (mut i32) (i32.const 1024))
    ;; Gives out memory as in the component that is not asynchronous.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (global.get $free))
      (global.set $free (i32.and
        (i32.add (i32.add (global.get $free) (local.get 3)) (i32.const 7)) (i32.const -8)))
      (local.get $at)))
  (core instance $memory (instantiate $memory))"#
    };
}

/// An asynchronous component that makes one asynchronous host call, and completes.
pub(crate) const COMPONENT_ASYNC: &str = concat!(
    "(component\n",
    types!(),
    r#"
  (import "sandglass:integration/progress@0.2.0" (instance $progress
    (export "heartbeat" (func async))))
"#,
    memory!(),
    r#"  (core func $heartbeat (canon lower (func $progress "heartbeat") async))
  (core func $return (canon task.return (result (result $completion (error $failure)))
    (memory (core memory $memory "memory"))))
  (core module $module
    (import "host" "heartbeat" (func $heartbeat (result i32)))
    (import "host" "return" (func $return (param i32)))
    (func (export "handle") (param i32) (result i32)
      ;; 2: it has returned already.
      (if (i32.ne (call $heartbeat) (i32.const 2)) (then (unreachable)))
      ;; Zeros: a completion without action and params.
      (call $return (i32.const 8))
      ;; The task has ended.
      (i32.const 0))
    (func (export "callback") (param i32 i32 i32) (result i32) (unreachable)))
  (core instance $instance (instantiate $module
    (with "host" (instance
      (export "heartbeat" (func $heartbeat)) (export "return" (func $return))))))
  (func $handle async (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle") async
      (callback (core func $instance "callback"))
      (memory (core memory $memory "memory"))
      (realloc (core func $memory "realloc"))))
  (export "handle" (func $handle)))"#
);

/// An asynchronous component with eight calls in flight, a stream and a future, which waits for all of
/// them.
pub(crate) const WAITS_IN_TASKS: &str = concat!(
    "(component\n",
    types!(),
    r#"
  (import "sandglass:integration/timer@0.2.0" (instance $timer
    (export "sleep" (func async (param "ms" u64)))))
"#,
    memory!(),
    r#"  (type $bytes (stream u8))
  (type $number (future u32))
  (core func $sleep (canon lower (func $timer "sleep") async))
  (core func $new-set (canon waitable-set.new))
  (core func $join (canon waitable.join))
  (core func $new-stream (canon stream.new $bytes))
  (core func $new-future (canon future.new $number))
  (core module $module
    (import "host" "sleep" (func $sleep (param i64) (result i32)))
    (import "host" "new-set" (func $new_set (result i32)))
    (import "host" "join" (func $join (param i32 i32)))
    (import "host" "new-stream" (func $new_stream (result i64)))
    (import "host" "new-future" (func $new_future (result i64)))
    (func (export "handle") (param i32) (result i32) (local $set i32) (local $left i32)
      (local.set $set (call $new_set))
      (drop (call $new_stream))
      (drop (call $new_future))
      (local.set $left (i32.const 8))
      (loop $calls
        (call $join
          (i32.shr_u (call $sleep (i64.const 3600000)) (i32.const 4))
          (local.get $set))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br_if $calls (local.get $left)))
      ;; 2: it waits for this set.
      (i32.or (i32.const 2) (i32.shl (local.get $set) (i32.const 4))))
    (func (export "callback") (param i32 i32 i32) (result i32) (unreachable)))
  (core instance $instance (instantiate $module
    (with "host" (instance
      (export "sleep" (func $sleep)) (export "new-set" (func $new-set))
      (export "join" (func $join)) (export "new-stream" (func $new-stream))
      (export "new-future" (func $new-future))))))
  (func $handle async (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $instance "handle") async
      (callback (core func $instance "callback"))
      (memory (core memory $memory "memory"))
      (realloc (core func $memory "realloc"))))
  (export "handle" (func $handle)))"#
);
