//! Packs as text, what they reach, and one handler run of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, LogLevel, Manifest, NodeAccess,
    NodeCall, NodeStatus, RecordingLimits, Settings,
};
use sandglass_model::{GuestLimits, RunReport};
use serde_json::Value;

/// A pack in parts. The default has two nodes, and returns the request.
#[derive(Clone)]
pub(super) struct Pack {
    /// Whether pairs are one `i64`, in exports and imports.
    pub(super) is_packed: bool,
    pub(super) memory: &'static str,
    /// Further parts of the module, after its imports.
    pub(super) more: String,
    pub(super) abi_version: &'static str,
    pub(super) pack_name: &'static str,
    pub(super) node_count: &'static str,
    pub(super) node_id_at: &'static str,
    pub(super) alloc: &'static str,
    pub(super) free: &'static str,
    /// The body of the invocation, with `$index`, `$ptr` and `$len`, and a local `$n`.
    pub(super) invoke: String,
}

impl Default for Pack {
    fn default() -> Self {
        Self {
            is_packed: false,
            memory: "2",
            more: String::new(),
            abi_version: "(i32.const 1)",
            pack_name: "(i32.const 16) (i32.const 9)",
            node_count: "(i32.const 2)",
            // At 32 and at 48.
            node_id_at: "(i32.add (i32.const 32) (i32.mul (local.get $index) (i32.const 16)))
                (i32.const 8)",
            alloc: "(global.get $next)
                (global.set $next (i32.add (global.get $next) (local.get $size)))",
            free: "",
            invoke: "(call $completed (local.get $ptr) (local.get $len))".to_owned(),
        }
    }
}

/// The imports of every pack here, with pairs as two results.
const IMPORTS: &str = r#"
    (import "openwop" "openwop_channel_read" (func $channel_read (param i32 i32) (result i32 i32)))
    (import "openwop" "openwop_variable_get" (func $variable_get (param i32 i32) (result i32 i32)))
    (import "openwop" "openwop_interrupt" (func $interrupt (param i32 i32) (result i32 i32)))"#;

/// As above, with packed pairs.
const PACKED_IMPORTS: &str = r#"
    (import "openwop" "openwop_channel_read" (func $p_channel (param i32 i32) (result i64)))
    (import "openwop" "openwop_variable_get" (func $p_variable (param i32 i32) (result i64)))
    (import "openwop" "openwop_interrupt" (func $p_interrupt (param i32 i32) (result i64)))"#;

const OTHER_IMPORTS: &str = r#"
    (import "openwop" "openwop_channel_write" (func $channel_write (param i32 i32 i32 i32) (result i32)))
    (import "openwop" "openwop_variable_set" (func $variable_set (param i32 i32 i32 i32) (result i32)))
    (import "openwop" "openwop_log" (func $log (param i32 i32 i32)))
    (import "openwop" "openwop_now_ms" (func $now (result i64)))
    (import "openwop" "openwop_random" (func $random (param i32 i32)))"#;

const UNPACKED: &str = r#"
    (func $unpack (param $pair i64) (result i32 i32)
        (i32.wrap_i64 (local.get $pair))
        (i32.wrap_i64 (i64.shr_u (local.get $pair) (i64.const 32))))
    (func $channel_read (param i32 i32) (result i32 i32)
        (call $unpack (call $p_channel (local.get 0) (local.get 1))))
    (func $variable_get (param i32 i32) (result i32 i32)
        (call $unpack (call $p_variable (local.get 0) (local.get 1))))
    (func $interrupt (param i32 i32) (result i32 i32)
        (call $unpack (call $p_interrupt (local.get 0) (local.get 1))))"#;

/// What packs answer with: `$say` adds to a text at 8192, `$said` is it, and `$completed` says
/// some JSON as an output.
const SAYING: &str = r#"
    (global $next (mut i32) (i32.const 16384))
    (global $end (mut i32) (i32.const 8192))
    (data (i32.const 16) "test.pack")
    (data (i32.const 32) "test.one")
    (data (i32.const 48) "test.two")
    (data (i32.const 64) "{\"outcome\":\"completed\",\"output\":}")
    (data (i32.const 128) "0123456789abcdef")
    (func $say (param $ptr i32) (param $len i32)
        (memory.copy (global.get $end) (local.get $ptr) (local.get $len))
        (global.set $end (i32.add (global.get $end) (local.get $len))))
    (func $say_byte (param $byte i32)
        (i32.store8 (global.get $end) (local.get $byte))
        (global.set $end (i32.add (global.get $end) (i32.const 1))))
    (func $say_number (param $n i64)
        (if (i64.ge_u (local.get $n) (i64.const 10))
            (then (call $say_number (i64.div_u (local.get $n) (i64.const 10)))))
        (call $say_byte
            (i32.wrap_i64 (i64.add (i64.const 48) (i64.rem_u (local.get $n) (i64.const 10))))))
    (func $say_hex (param $ptr i32) (param $len i32)
        (local $at i32)
        (call $say_byte (i32.const 34))
        (loop $next
            (if (i32.lt_u (local.get $at) (local.get $len)) (then
                (call $say_byte (i32.load8_u (i32.add (i32.const 128) (i32.shr_u
                    (i32.load8_u (i32.add (local.get $ptr) (local.get $at))) (i32.const 4)))))
                (call $say_byte (i32.load8_u (i32.add (i32.const 128) (i32.and
                    (i32.load8_u (i32.add (local.get $ptr) (local.get $at))) (i32.const 15)))))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br $next))))
        (call $say_byte (i32.const 34)))
    (func $begin (call $say (i32.const 64) (i32.const 32)))
    (func $said (result i32 i32)
        (i32.const 8192) (i32.sub (global.get $end) (i32.const 8192)))
    (func $end (result i32 i32) (call $say_byte (i32.const 125)) (call $said))
    (func $completed (param $ptr i32) (param $len i32) (result i32 i32)
        (call $begin)
        (call $say (local.get $ptr) (local.get $len))
        (call $end))"#;

impl Pack {
    /// A pack whose invocation executes this.
    pub(super) fn invoking(invoke: &str) -> Self {
        Self { invoke: invoke.to_owned(), ..Self::default() }
    }

    /// With this text at 256.
    pub(super) fn with_text(mut self, text: &str) -> Self {
        let text = text.replace('"', "\\22");
        self.more += &format!("(data (i32.const 256) \"{text}\")");
        self
    }

    pub(super) fn packed(self) -> Self {
        Self { is_packed: true, ..self }
    }

    pub(super) fn text(&self) -> String {
        let imports = if self.is_packed { PACKED_IMPORTS } else { IMPORTS };
        let unpacked = if self.is_packed { UNPACKED } else { "" };
        let pair = |name: &str, params: &str, body: &str| {
            let function =
                format!("(func ${name} {params} (result i32 i32) (local $n i32) {body})");
            if !self.is_packed {
                return format!("{function} (export \"{name}\" (func ${name}))");
            }
            let args: String =
                (0..params.matches("i32").count()).map(|at| format!("(local.get {at})")).collect();
            format!(
                r#"{function} (func (export "{name}") {params} (result i64) (local $len_of i32)
                    (call ${name} {args})
                    (local.set $len_of)
                    (i64.extend_i32_u)
                    (i64.or (i64.shl (i64.extend_i32_u (local.get $len_of)) (i64.const 32))))"#
            )
        };
        let Self { memory, more, abi_version, node_count, alloc, free, .. } = self;
        format!(
            r#"(module {imports} {OTHER_IMPORTS}
            (memory (export "memory") {memory}) {SAYING} {unpacked} {more}
            (func (export "openwop_abi_version") (result i32) {abi_version})
            {name}
            (func (export "openwop_node_count") (result i32) {node_count})
            {id_at}
            (func (export "openwop_alloc") (param $size i32) (result i32) {alloc})
            (func (export "openwop_free") (param $ptr i32) (param $len i32) {free})
            {invoke})"#,
            name = pair("openwop_pack_name", "", self.pack_name),
            id_at = pair("openwop_node_id_at", "(param $index i32)", self.node_id_at),
            invoke = pair(
                "openwop_node_invoke",
                "(param $index i32) (param $ptr i32) (param $len i32)",
                &self.invoke
            ),
        )
    }
}

/// What a node can reach in these tests.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) channels: Mutex<BTreeMap<String, Value>>,
    pub(super) variables: Mutex<BTreeMap<String, Value>>,
    pub(super) resumes_with: Option<Value>,
    pub(super) interrupts: Mutex<Vec<Value>>,
    /// Whether a channel was read.
    pub(super) was_read: AtomicBool,
    pub(super) lines: Mutex<Vec<(LogLevel, String)>>,
}

impl NodeAccess for World {
    fn channel_read(&self, name: &str) -> Option<Value> {
        self.was_read.store(true, Ordering::Release);
        self.channels.lock().expect("no panic before").get(name).cloned()
    }

    fn channel_write(&self, name: &str, value: Value) -> NodeStatus {
        if name == "d" {
            return NodeStatus::ChannelAccessDenied;
        }
        self.channels.lock().expect("no panic before").insert(name.to_owned(), value);
        NodeStatus::Ok
    }

    fn variable_get(&self, key: &str) -> Option<Value> {
        self.variables.lock().expect("no panic before").get(key).cloned()
    }

    fn variable_set(&self, key: &str, value: Value) -> NodeStatus {
        match self.variables.lock().expect("no panic before").get_mut(key) {
            Some(held) => *held = value,
            None => return NodeStatus::NotFound,
        }
        NodeStatus::Ok
    }

    fn interrupt(&self, payload: &Value) -> Option<Value> {
        self.interrupts.lock().expect("no panic before").push(payload.clone());
        self.resumes_with.clone()
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.lines.lock().expect("no panic before").push((level, message.to_owned()));
    }
}

pub(super) fn host() -> Host {
    let settings = Settings { max_runs: 4, ..Settings::default() };
    Host::builder().settings(settings).build().expect("a host")
}

pub(super) fn limits() -> GuestLimits {
    GuestLimits { memory_bytes: 1 << 20, ..GuestLimits::default() }
}

pub(super) fn load(host: &Host, pack: &str) -> Integration {
    host.load(pack.as_bytes(), Manifest::named("pack").limits(limits())).expect("a pack")
}

pub(super) fn call(world: &Arc<World>) -> NodeCall {
    NodeCall {
        index: 1,
        request: br#"{"abiVersion":1,"inputs":{"a":[1,null]}}"#.to_vec(),
        access: Arc::clone(world) as Arc<dyn NodeAccess>,
        seed: [7; 32],
    }
}

/// A recorded dispatch of `call`, with a budget that only a handler that never ends exceeds.
pub(super) fn dispatch(call: NodeCall, budget: Duration) -> Dispatch {
    Dispatch::new("Run/1".parse().expect("valid"), "Invoke", Context::default())
        .deadline(DispatchDeadline::after(budget))
        .recorded(RecordingLimits::default())
        .node(call)
}

/// Longer than anything here takes that does end.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// The budget of what never ends.
pub(super) const SHORT: Duration = Duration::from_millis(200);

/// The report of a handler run of `pack` in `world`.
pub(super) async fn run(pack: &Pack, world: &Arc<World>) -> RunReport {
    run_within(pack, world, limits(), LONG).await
}

pub(super) async fn run_within(
    pack: &Pack,
    world: &Arc<World>,
    limits: GuestLimits,
    budget: Duration,
) -> RunReport {
    let host = host();
    let manifest = Manifest::named("pack").limits(limits);
    let pack = host.load(pack.text().as_bytes(), manifest).expect("a pack");
    host.run(&pack, dispatch(call(world), budget)).await.expect("it ran")
}
