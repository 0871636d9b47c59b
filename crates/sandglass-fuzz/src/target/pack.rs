//! What the host reads from a node pack: a node makes the calls that its request lists, with
//! pointers and lengths from the request, and returns a pair from it.
//!
//! The request lies at [`REQUEST_AT`] of the pack's memory. It is a list of calls: one byte for the
//! function, which is its index in [`CALLS`], then four bytes for each argument. A byte that is not
//! an index ends the execution, and the node returns the eight bytes that follow it as a pair.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay};
use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, LogLevel, Manifest, NodeAccess,
    NodeCall, NodeStatus, Outcome, RecordingLimits, Settings,
};
use sandglass_model::Recording;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// What a pack can call: the function, the number of its arguments, and its results.
const CALLS: &[(&str, usize, &str)] = &[
    ("openwop_channel_read", 2, "i32 i32"),
    ("openwop_channel_write", 4, "i32"),
    ("openwop_variable_get", 2, "i64"),
    ("openwop_variable_set", 4, "i32"),
    ("openwop_interrupt", 2, "i64"),
    ("openwop_log", 3, ""),
    ("openwop_now_ms", 0, "i64"),
    ("openwop_random", 2, ""),
];

/// The offset of the request.
const REQUEST_AT: u32 = 16;
/// Half of the memory, so that there is space for results, too.
const INPUT_MAX_BYTES: usize = (64 << 10) - REQUEST_AT as usize;
/// Most calls of one execution.
const CALLS_MAX: u32 = 32;
/// Far longer than any execution takes: a pack that exceeds it hangs.
const BUDGET: Duration = Duration::from_secs(20);

/// Checks that every invocation ends in an outcome that can be stored, and that its replay ends in
/// the same outcome.
pub(crate) fn run(input: &[u8]) {
    static SUBJECT: LazyLock<Subject> = LazyLock::new(Subject::new);
    let request = input[..input.len().min(INPUT_MAX_BYTES)].to_vec();
    let call = NodeCall { index: 0, request, access: Arc::new(Echo), seed: [7; 32] };
    let entity = "Run/1".parse().expect("a name");
    let dispatch = Dispatch::new(entity, "Invoke", Context::default())
        .deadline(DispatchDeadline::after(BUDGET))
        .recorded(RecordingLimits::default())
        .node(call);
    SUBJECT.runtime.block_on(async {
        let ran = SUBJECT.host.run(&SUBJECT.pack, dispatch).await;
        let report = ran.expect("the host does its work whatever a pack does");
        let written = serde_json::to_string(&report.outcome).expect("it can be kept");
        let again: Outcome = serde_json::from_str(&written).expect("it was kept");
        assert_eq!(again, report.outcome);
        assert!(!matches!(report.outcome, Outcome::TimedOut(_)), "it took {BUDGET:?}: {written}");
        let Some(Recording::Whole(recording)) = &report.recording else {
            panic!("it is within the bounds: {report:?}")
        };
        let run = RecordedRun::read(Arc::clone(recording)).expect("a recording");
        let replay = RecordedEnd::from(&report);
        let replayed = SUBJECT.host.replay(&SUBJECT.pack, Replay::new(&run, &replay)).await;
        let replayed = replayed.expect("the host does its work");
        assert_eq!(replayed.divergence, None, "of {written}");
    });
}

struct Subject {
    runtime: Runtime,
    host: Host,
    pack: Integration,
}

impl Subject {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let settings = Settings { max_runs: 2, max_asking: 0, ..Settings::default() };
        let host = runtime.block_on(async { Host::builder().settings(settings).build() });
        let host = host.expect("a host");
        let pack = host.load(pack().as_bytes(), Manifest::named("fuzz")).expect("a pack");
        Self { runtime, host, pack }
    }
}

/// Returns what it is asked for, and resolves interrupts that have a `go` field.
#[derive(Debug)]
struct Echo;

impl NodeAccess for Echo {
    fn channel_read(&self, name: &str) -> Option<Value> {
        (!name.is_empty()).then(|| json!({ "channel": name }))
    }

    fn channel_write(&self, name: &str, value: Value) -> NodeStatus {
        if value.is_null() || name.is_empty() {
            NodeStatus::ValidationError
        } else {
            NodeStatus::Ok
        }
    }

    fn variable_get(&self, key: &str) -> Option<Value> {
        self.channel_read(key)
    }

    fn variable_set(&self, key: &str, value: Value) -> NodeStatus {
        self.channel_write(key, value)
    }

    fn interrupt(&self, payload: &Value) -> Option<Value> {
        payload.get("go").cloned()
    }

    fn log(&self, _: LogLevel, message: &str) {
        assert!(!message.contains(char::is_control), "{message:?}");
    }
}

/// The pack, as WebAssembly text.
fn pack() -> String {
    let (mut imports, mut cases) = (String::new(), String::new());
    for (at, (name, takes, answers)) in CALLS.iter().enumerate() {
        let params = "i32 ".repeat(*takes);
        writeln!(
            imports,
            "(import \"openwop\" \"{name}\" (func $f{at} (param {params}) (result {answers})))"
        )
        .expect("a text takes it");
        let arguments = "(call $next)".repeat(*takes);
        let drops = "drop ".repeat(answers.split_whitespace().count());
        writeln!(
            cases,
            "(if (i32.eq (local.get $function) (i32.const {at})) (then
                (call $f{at} {arguments}) {drops} (br $more)))"
        )
        .expect("a text takes it");
    }
    format!(
        r#"(module {imports}
  (memory (export "memory") 2 2)
  (global $at (mut i32) (i32.const {REQUEST_AT}))
  (global $free (mut i32) (i32.const {REQUEST_AT}))
  (data (i32.const 0) "fuzz")
  (func $next (result i32)
    (global.set $at (i32.add (global.get $at) (i32.const 4)))
    (i32.load (i32.sub (global.get $at) (i32.const 4))))
  (func (export "openwop_abi_version") (result i32) (i32.const 1))
  (func (export "openwop_pack_name") (result i32 i32) (i32.const 0) (i32.const 4))
  (func (export "openwop_node_count") (result i32) (i32.const 1))
  (func (export "openwop_node_id_at") (param i32) (result i32 i32) (i32.const 0) (i32.const 4))
  (func (export "openwop_alloc") (param $size i32) (result i32)
    (global.get $free)
    (global.set $free (i32.add (global.get $free) (local.get $size))))
  (func (export "openwop_free") (param i32 i32))
  (func (export "openwop_node_invoke") (param i32 i32 i32) (result i32 i32)
    (local $function i32) (local $called i32)
    (loop $more
      (local.set $called (i32.add (local.get $called) (i32.const 1)))
      (if (i32.gt_u (local.get $called) (i32.const {CALLS_MAX}))
        (then (return (i32.const 0) (i32.const 0))))
      (local.set $function (i32.load8_u (global.get $at)))
      (global.set $at (i32.add (global.get $at) (i32.const 1)))
      {cases})
    (call $next) (call $next)))"#
    )
}
