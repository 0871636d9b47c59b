//! What the host reads in a guest's memory: a guest makes the calls that its input lists, with
//! pointers and lengths from the input.
//!
//! The input is copied to the start of the guest's memory. It is a list of calls: one byte for the
//! function, which is its index in [`CALLS`], then four bytes for each argument. A byte that is not
//! an index ends the execution, and the guest returns the four bytes that follow it.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use sandglass_host::{
    Answer, Context, Dispatch, DispatchDeadline, FixedSecrets, Host, HostCall, HostError,
    HostFunction, HttpCall, HttpClient, HttpError, Integration, Manifest, Outcome, Response,
    Secret, Settings, SpecEvaluator, SpecQuery,
};
use tokio::runtime::{Builder, Runtime};

use crate::promise;

/// What a guest can call: the module, the function, its parameters (`i` for 32 bits and `I` for
/// 64), and its results. New ones are last, because the inputs of the corpus have their indices.
pub(super) const CALLS: &[(&str, &str, &str, &str)] = &[
    ("env", "host_set_result", "ii", ""),
    ("env", "host_get_context", "ii", "i"),
    ("env", "host_log", "iiii", ""),
    ("env", "host_log_structured", "ii", "i"),
    ("env", "host_emit_progress", "ii", "i"),
    ("env", "host_emit_wide_event", "ii", "i"),
    ("env", "host_emit_metric", "ii", "i"),
    ("env", "host_start_span", "ii", "I"),
    ("env", "host_add_span_event", "Iii", "i"),
    ("env", "host_set_span_attributes", "Iii", "i"),
    ("env", "host_end_span", "Iii", "i"),
    ("env", "host_get_secret", "iiii", "i"),
    ("env", "host_http_call", "iiiiiiiiii", "i"),
    ("env", "host_http_call_batch", "iiii", "i"),
    ("env", "host_http_call_stream", "iiiiiiiiii", "i"),
    ("env", "host_get_time", "ii", "i"),
    ("env", "host_set_status", "ii", "i"),
    ("env", "host_last_error", "ii", "i"),
    ("env", "host_cache_contains", "ii", "i"),
    ("env", "host_cache_to_stream", "iiii", "i"),
    ("env", "host_cache_from_stream", "iiii", "i"),
    ("env", "host_hash_stream", "iiiiii", "i"),
    ("env", "host_read_field", "iiii", "i"),
    ("env", "host_scratch_get", "iiii", "i"),
    ("env", "host_scratch_set", "iiii", "i"),
    ("env", "host_scratch_delete", "ii", "i"),
    ("env", "host_ask", "iiii", "i"),
    ("acme:fuzz/echo", "shout", "iiiiii", "i"),
    ("wasi_snapshot_preview1", "fd_write", "iiii", "i"),
    ("wasi_snapshot_preview1", "fd_read", "iiii", "i"),
    ("wasi_snapshot_preview1", "environ_get", "ii", "i"),
    ("wasi_snapshot_preview1", "args_sizes_get", "ii", "i"),
    ("wasi_snapshot_preview1", "random_get", "ii", "i"),
    ("wasi_snapshot_preview1", "clock_time_get", "iIi", "i"),
    ("wasi_snapshot_preview1", "path_open", "iiiiiIIii", "i"),
    ("env", "host_signal", "ii", "i"),
    ("env", "host_connect_call", "iiiiiiii", "i"),
    ("env", "host_evaluate_spec", "iiiiiiiiii", "i"),
    ("env", "host_http_stream_begin_outbound", "iiiiiiii", "i"),
    ("env", "host_http_stream_try_write", "iii", "i"),
    ("env", "host_http_stream_response_head", "iii", "i"),
    ("env", "host_http_stream_read", "iii", "i"),
    ("env", "host_http_stream_close", "i", "i"),
    ("env", "host_http_stream_send_response_head", "iii", "i"),
    ("env", OWN_OF_ENV, "iiI", "I"),
];

/// The function of `env` that is not built in.
pub(super) const OWN_OF_ENV: &str = "fuzz_half";
/// The host function from which the guest takes its input.
const INPUT: (&str, &str) = ("acme:fuzz/input", "bytes");
/// Half of the guest's memory, so that there is space for results, too.
const INPUT_MAX_BYTES: usize = 64 << 10;
/// Most calls of one execution: enough to open, use and close something.
const CALLS_MAX: u32 = 32;
/// Far longer than any execution takes: a guest that exceeds it hangs.
const BUDGET: Duration = Duration::from_secs(20);
/// Largest report, in bytes as JSON. It contains the result, which has at most a mebibyte, as
/// values, or as text that may take six bytes for each byte.
pub(super) const REPORT_MAX_BYTES: usize = 8 << 20;

/// Checks that every execution ends in an outcome that can be stored.
pub(crate) fn run(input: &[u8]) {
    static SUBJECT: LazyLock<Subject> = LazyLock::new(Subject::new);
    let input = &input[..input.len().min(INPUT_MAX_BYTES)];
    input.clone_into(&mut SUBJECT.input.lock().unwrap_or_else(PoisonError::into_inner));
    let entity = "Session/1".parse().expect("a name");
    let mut context = Context::default();
    context.params.insert("text".to_owned(), "é\u{1b}".into());
    let dispatch =
        Dispatch::new(entity, "Begin", context).deadline(DispatchDeadline::after(BUDGET));
    let ran = SUBJECT.runtime.block_on(SUBJECT.host.run(&SUBJECT.guest, dispatch));
    let report = ran.expect("the host does its work whatever a guest does");
    let written = serde_json::to_string(&report.outcome).expect("it can be kept");
    assert!(written.len() <= REPORT_MAX_BYTES, "a report of {} bytes", written.len());
    let again: Outcome = serde_json::from_str(&written).expect("it was kept");
    assert_eq!(again, report.outcome);
    assert!(!matches!(report.outcome, Outcome::TimedOut(_)), "it took {BUDGET:?}: {written}");
    if let Outcome::Rejected(rejection) = &report.outcome {
        promise::check_text(&rejection.message);
    }
}

struct Subject {
    runtime: Runtime,
    host: Host,
    guest: Integration,
    input: Arc<Mutex<Vec<u8>>>,
}

impl Subject {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let input = Arc::new(Mutex::new(Vec::new()));
        let given = Arc::clone(&input);
        let bytes = move |_: HostCall| -> Result<Vec<u8>, HostError> {
            Ok(given.lock().unwrap_or_else(PoisonError::into_inner).clone())
        };
        let settings = Settings { max_runs: 2, max_asking: 0, ..Settings::default() };
        let host = Host::builder()
            .settings(settings)
            .http_client(Arc::new(Echo))
            .function(HostFunction::instant(INPUT.0, INPUT.1, bytes))
            .function(HostFunction::instant("acme:fuzz/echo", "shout", shout))
            .function(HostFunction::instant("env", OWN_OF_ENV, half))
            .spec_evaluator(Arc::new(EchoSpec))
            .build();
        let host = runtime.block_on(async { host }).expect("a host");
        let secret = Secret::new("a-secret-that-nobody-may-see");
        let secrets = FixedSecrets::from_iter([("api_token".to_owned(), secret)]);
        let manifest = Manifest::named("fuzz")
            .allow_hosts(["api.test".parse().expect("a destination")])
            .secrets(Arc::new(secrets))
            .functions([
                format!("{}.{}", INPUT.0, INPUT.1),
                "acme:fuzz/echo.shout".to_owned(),
                format!("env.{OWN_OF_ENV}"),
            ]);
        let guest = host.load(guest().as_bytes(), manifest).expect("a guest");
        Self { runtime, host, guest, input }
    }
}

fn shout(_: HostCall, text: String, bytes: Vec<u8>) -> Result<Vec<u8>, HostError> {
    Ok([text.to_uppercase().as_bytes(), &bytes].concat())
}

fn half(_: HostCall, text: String, number: i64) -> Result<i64, HostError> {
    match number % 2 {
        0 => Ok(number / 2),
        odd => Err(HostError::with_code(i32::try_from(odd).unwrap_or(-1), text)),
    }
}

/// Returns what is to be evaluated.
#[derive(Debug)]
struct EchoSpec;

impl SpecEvaluator for EchoSpec {
    fn evaluate(&self, query: &SpecQuery) -> serde_json::Value {
        let SpecQuery { spec, state, action, params } = query;
        serde_json::json!([spec, state, action, params])
    }
}

/// Responds to each request immediately.
#[derive(Debug)]
struct Echo;

impl HttpClient for Echo {
    fn send<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
        let body = format!("{:?}", call.request).into_bytes();
        let headers = vec![("content-type".to_owned(), "text/plain".to_owned())];
        Box::pin(std::future::ready(Ok(Response { status: 200, headers, body })))
    }
}

/// The types that `letters` of [`CALLS`] stand for, as WebAssembly text.
pub(super) fn types(letters: &str) -> String {
    letters.chars().map(|one| if one == 'I' { " i64" } else { " i32" }).collect()
}

/// The guest, as WebAssembly text.
fn guest() -> String {
    let (mut imports, mut cases) = (String::new(), String::new());
    for (at, (module, name, takes, answers)) in CALLS.iter().enumerate() {
        let (params, results) = (types(takes), types(answers));
        writeln!(
            imports,
            "(import \"{module}\" \"{name}\" (func $f{at} (param{params}) (result{results})))"
        )
        .expect("a text takes it");
        let arguments: String = takes
            .chars()
            .map(|one| if one == 'I' { "(i64.extend_i32_s (call $next))" } else { "(call $next)" })
            .collect();
        let call = format!("(call $f{at} {arguments})");
        let call = if answers.is_empty() { call } else { format!("(drop {call})") };
        writeln!(
            cases,
            "(if (i32.eq (local.get $function) (i32.const {at})) (then {call} (br $more)))"
        )
        .expect("a text takes it");
    }
    let (module, name) = INPUT;
    format!(
        r#"(module
  (import "{module}" "{name}" (func $input (param i32 i32) (result i32)))
  {imports}
  (memory (export "memory") 2 2)
  (global $at (mut i32) (i32.const 0))
  (func $next (result i32)
    (global.set $at (i32.add (global.get $at) (i32.const 4)))
    (i32.load (i32.sub (global.get $at) (i32.const 4))))
  (func (export "run") (param i32 i32) (result i32)
    (local $function i32) (local $called i32)
    (drop (call $input (i32.const 0) (i32.const {INPUT_MAX_BYTES})))
    (loop $more
      (local.set $called (i32.add (local.get $called) (i32.const 1)))
      (if (i32.gt_u (local.get $called) (i32.const {CALLS_MAX})) (then (return (i32.const 0))))
      (local.set $function (i32.load8_u (global.get $at)))
      (global.set $at (i32.add (global.get $at) (i32.const 1)))
      {cases})
    (call $next)))"#
    )
}
