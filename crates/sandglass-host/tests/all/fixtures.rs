//! Each sample guest ends as its entry in `guest-fixtures/fixtures.toml` states, with code of the
//! optimizing compiler and with that of the baseline compiler.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay, ReplayedCall, Watcher};
use sandglass_host::{
    Builder, CompileHelper, Context, Dispatch, DispatchDeadline, FixedSecrets, Host, KeepArguments,
    Manifest, RecordingLimits, Secret, Settings, Streams,
};
use sandglass_model::{GuestLimits, Recording, RunReport};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::server::{Script, Server};

#[derive(Deserialize)]
struct Fixtures {
    fixture: Vec<Fixture>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    name: String,
    #[allow(dead_code, reason = "for the build script, which passes it to the test")]
    file: String,
    #[serde(default)]
    #[allow(dead_code, reason = "likewise")]
    also: Vec<String>,
    #[allow(dead_code, reason = "for readers of the file")]
    does: String,
    #[serde(default)]
    input: BTreeMap<String, Value>,
    #[serde(default)]
    config: BTreeMap<String, String>,
    #[serde(default)]
    fields: BTreeMap<String, Value>,
    #[serde(default)]
    secrets: BTreeMap<String, String>,
    #[serde(default)]
    streams: BTreeMap<String, String>,
    #[serde(default)]
    scratch_bytes: u64,
    soft_deadline_ms: Option<u64>,
    #[serde(default)]
    host_call_timeouts_ms: BTreeMap<String, u64>,
    server: Option<ServerEntry>,
    budget_ms: Option<u64>,
    memory_bytes: Option<u64>,
    fuel: Option<u64>,
    outcome: String,
    error: Option<String>,
    #[serde(default)]
    message: Vec<String>,
    result: Option<Value>,
    dying_span: Option<Vec<String>>,
    first_host_call: Option<String>,
    #[serde(default)]
    frames: Vec<String>,
    frame_file: Option<String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerEntry {
    #[serde(default)]
    respond_after_ms: u64,
    #[serde(default)]
    never: bool,
    #[serde(default = "ok")]
    status: u16,
    #[serde(default)]
    body: String,
    drip_ms: Option<u64>,
    wants_header: Option<String>,
}

fn ok() -> u16 {
    200
}

/// The budget of an entry without one.
const DEFAULT_BUDGET_MS: u64 = 5000;

static HOST: LazyLock<Host> = LazyLock::new(|| builder().build().expect("a host"));

static BASELINE: LazyLock<Host> = LazyLock::new(|| {
    let helper = CompileHelper::new(env!("CARGO_BIN_EXE_sandglass-compile-helper"), [""; 0]);
    builder().compile_in(helper.baseline_from(0)).build().expect("a host")
});

fn builder() -> Builder {
    // Only the frames are compared, however busy the machine is.
    let symbols_wait = Duration::from_secs(60);
    Host::builder().settings(Settings { max_runs: 64, symbols_wait, ..Settings::default() })
}

static FIXTURES: LazyLock<Vec<Fixture>> = LazyLock::new(|| {
    let text = std::fs::read_to_string(folder().join("fixtures.toml")).expect("the manifest");
    toml::from_str::<Fixtures>(&text).expect("valid").fixture
});

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../guest-fixtures")
}

fn check(name: &str, file: &str) {
    let fixture = FIXTURES.iter().find(|fixture| fixture.name == name).expect("an entry");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (host, code) in [(&*HOST, "optimized"), (&*BASELINE, "baseline")] {
        let report = runtime.block_on(run(host, fixture.clone(), file));
        let shown = serde_json::to_string_pretty(&report).expect("plain data");
        if let Err(difference) = compare(fixture, &report) {
            panic!("with {code} code: {difference}\n{shown}");
        }
    }
}

/// The report of the run as JSON, as the command line prints it.
async fn run(host: &Host, fixture: Fixture, file: &str) -> Value {
    let server = match fixture.server.clone() {
        Some(entry) => Some(
            Server::start(Script {
                after: Duration::from_millis(entry.respond_after_ms),
                never: entry.never,
                status: entry.status,
                body: entry.body,
                drip: entry.drip_ms.map(Duration::from_millis),
                wants_header: entry.wants_header,
                ..Script::default()
            })
            .await,
        ),
        None => None,
    };
    let url = server.as_ref().map_or(String::new(), Server::url);
    let given = fixture.secrets.clone();
    let secrets: FixedSecrets =
        fixture.secrets.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    let defaults = GuestLimits::default();
    let limits = GuestLimits {
        memory_bytes: fixture.memory_bytes.unwrap_or(defaults.memory_bytes),
        fuel: fixture.fuel,
        ..defaults
    };
    let allowed = server.as_ref().map(|server| server.address.to_string().parse().expect("a host"));
    let timeouts = fixture
        .host_call_timeouts_ms
        .into_iter()
        .map(|(function, most)| (function, Duration::from_millis(most)));
    let manifest = Manifest::named(&*fixture.name)
        .limits(limits)
        .secrets(Arc::new(secrets))
        .scratch_bytes(fixture.scratch_bytes)
        .host_call_timeouts(timeouts)
        .allow_hosts(allowed);
    let manifest = match fixture.soft_deadline_ms {
        Some(before) => manifest.soft_deadline(Duration::from_millis(before)),
        None => manifest,
    };
    let bytes = std::fs::read(folder().join(file)).expect("the guest");
    let integration = match host.load(&bytes, manifest) {
        Ok(integration) => integration,
        Err(rejection) => {
            return json!({
                "outcome": "rejected",
                "error": {"kind": rejection.kind, "message": rejection.message},
            });
        }
    };
    let fill = |text: &str| text.replace("${server}", &url);
    let context = Context {
        params: fixture
            .input
            .iter()
            .map(|(name, value)| (name.clone(), filled(value, &fill)))
            .collect(),
        entity_state: json!({
            "fields": fixture
                .fields
                .iter()
                .map(|(name, value)| (name.clone(), filled(value, &fill)))
                .collect::<BTreeMap<_, _>>(),
        }),
        config: fixture.config.iter().map(|(name, value)| (name.clone(), fill(value))).collect(),
        ..Context::default()
    };
    let budget = Duration::from_millis(fixture.budget_ms.unwrap_or(DEFAULT_BUDGET_MS));
    let streams = Streams::new();
    for (name, bytes) in fixture.streams {
        streams.put(name, bytes);
    }
    let dispatch = Dispatch::new("Fixture/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(budget))
        .streams(streams);
    let limits = RecordingLimits { arguments: KeepArguments::Yes, ..RecordingLimits::default() };
    let dispatch = dispatch.recorded(limits);
    let report: RunReport = host.run(&integration, dispatch).await.expect("the host did its work");
    adds_up(&report, WITH_TASKS.contains(&file));
    // Recordings are replayed with optimized code, and with it a guest can call itself more deeply.
    if integration.is_optimized() {
        play(&bytes, &report, given).await;
    }
    serde_json::to_value(&report).expect("plain data")
}

/// The guests whose host calls overlap, or are in flight while the guest executes its own code.
const WITH_TASKS: [&str; 2] = ["built/tasks.wasm", "built/sdk_async.wasm"];

/// Checks that the parts of its time are the whole, and its host calls' the part of the
/// host, but for what rounding takes from each. Calls that overlap are longer together.
fn adds_up(report: &RunReport, has_tasks: bool) {
    let split = report.time_split_us;
    let rounded = report.wall_us.checked_sub(split.total());
    assert!(rounded.is_some_and(|rounded| rounded <= 6), "{report:?}");
    let functions = &report.host_calls.by_function;
    let in_host: u64 = functions.iter().map(|calls| calls.total_us).sum();
    let rounded = functions.len() as u64;
    assert!(split.host <= in_host + rounded, "{report:?}");
    assert!(has_tasks || in_host <= split.host, "{report:?}");
    assert!(report.cpu_us <= report.wall_us, "{report:?}");
}

/// Replays the handler run: it must be the same.
async fn play(guest: &[u8], report: &RunReport, secrets: BTreeMap<String, String>) {
    let recording = match &report.recording {
        Some(Recording::Whole(bytes)) => Arc::clone(bytes),
        Some(Recording::DecisionOnly { reason }) => {
            assert!(BEYOND_RECORDING.iter().any(|known| reason.contains(known)), "{reason}");
            return;
        }
        None => return assert!(report.started_at.is_none(), "each run is recorded"),
    };
    let run = RecordedRun::read(recording).expect("a recording");
    let integration = HOST.load_for_replay(guest, &run).expect("the same guest");
    let secrets = secrets.into_iter().map(|(name, value)| (name, Secret::new(value)));
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&calls);
    let watcher: Watcher = Arc::new(move |call: &ReplayedCall| {
        noted.lock().expect("no panic before").push(format!("{call:?}"));
    });
    let end = RecordedEnd::from(report);
    let replay = Replay::new(&run, &end).secrets(secrets).watched_by(watcher);
    let replayed = HOST.replay(&integration, replay).await.expect("the host did its work");
    let calls = calls.lock().expect("no panic before").join("\n");
    assert_eq!(replayed.divergence, None, "{end:?}\n{calls}");
    assert_eq!(replayed.calls, report.host_calls.count, "{calls}");
}

/// Why some of these guests are not recorded.
const BEYOND_RECORDING: [&str; 2] =
    ["it made more than 10000 host calls", "its host calls passed more than 16777216 bytes"];

fn filled(value: &Value, fill: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text)),
        Value::Array(items) => items.iter().map(|item| filled(item, fill)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, item)| (name.clone(), filled(item, fill))).collect()
        }
        other => other.clone(),
    }
}

fn compare(fixture: &Fixture, report: &Value) -> Result<(), String> {
    same("outcome", &json!(fixture.outcome), &report["outcome"])?;
    if let Some(error) = &fixture.error {
        same("error.kind", &json!(error), &report["error"]["kind"])?;
    }
    for part in &fixture.message {
        let message = report["error"]["message"].as_str().unwrap_or_default();
        if !message.contains(part) {
            return Err(format!("the message should contain {part:?}"));
        }
    }
    if let Some(part) = &fixture.result
        && !contains(&report["result"], part)
    {
        return Err(format!("the result should contain {part}"));
    }
    if let Some(allowed) = &fixture.dying_span
        && !allowed.iter().any(|span| report["dying_span"] == json!(span))
    {
        return Err(format!("the dying span should be one of {allowed:?}"));
    }
    if let Some(first) = &fixture.first_host_call {
        same(
            "the first host call",
            &json!(first),
            &report["host_calls"]["by_function"][0]["name"],
        )?;
    }
    compare_frames(fixture, report)?;
    if fixture.outcome == "timed_out" {
        let deadline = &report["deadline"];
        let (elapsed, budget) = (deadline["elapsed_ms"].as_u64(), deadline["budget_ms"].as_u64());
        if elapsed <= budget {
            return Err("elapsed should be above the budget".to_owned());
        }
    }
    Ok(())
}

fn same(what: &str, expected: &Value, came: &Value) -> Result<(), String> {
    if expected == came {
        Ok(())
    } else {
        Err(format!("{what} should be {expected} and is {came}"))
    }
}

/// Whether `whole` has everything that `part` has.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part)))
        }
        (whole, part) => whole == part,
    }
}

fn compare_frames(fixture: &Fixture, report: &Value) -> Result<(), String> {
    let no_frames = Vec::new();
    let frames = report["backtrace"].as_array().unwrap_or(&no_frames);
    let name = |frame: &Value| frame["function"].as_str().unwrap_or_default().to_owned();
    let mut rest = frames.iter();
    let mut first = None;
    for wanted in &fixture.frames {
        let Some(found) = rest.find(|frame| name(frame).contains(wanted)) else {
            return Err(format!("the backtrace should have frames of {:?}", fixture.frames));
        };
        first.get_or_insert(found);
    }
    if let (Some(file), Some(frame)) = (&fixture.frame_file, first) {
        same("the frame's file", &json!(file), &frame["file"])?;
        if frame["line"].as_u64().is_none() {
            return Err("the frame should have a line".to_owned());
        }
    }
    Ok(())
}

mod each {
    include!(concat!(env!("OUT_DIR"), "/fixtures.rs"));
}
