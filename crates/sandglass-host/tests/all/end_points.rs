//! The end point of a handler, counted in host calls, which a replay reaches again; and the dying span of
//! a guest that is killed in each host function.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Manifest, Settings, Signal, Signals, frames_at,
};
use sandglass_model::{
    CallOutcome, CallPlace, Clock, EndPoint, Frame, ModuleHash, Monotonic, OutcomeKind, RunReport,
    SystemClock, WallTime,
};
use wasmparser::{Parser, Payload, TypeRef, ValType};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// A clock that a guest sets: after the status `n`, the `n`-th reading on the guest's thread is past
/// every deadline.
#[derive(Debug)]
struct SetByGuest {
    clock: SystemClock,
    thread: Mutex<Option<ThreadId>>,
    readings_left: AtomicU64,
}

impl SetByGuest {
    fn is_guests(&self) -> bool {
        *self.thread.lock().expect("no panic") == Some(std::thread::current().id())
    }
}

impl Clock for SetByGuest {
    fn now(&self) -> Monotonic {
        let now = self.clock.now();
        if !self.is_guests() {
            return now;
        }
        let less = |left: u64| Some(left.saturating_sub(1));
        let readings = self.readings_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if readings.is_ok_and(|left| left <= 1) { now.after(LONG * 2) } else { now }
    }

    fn wall(&self) -> WallTime {
        self.clock.wall()
    }
}

impl Signals for SetByGuest {
    fn signal(&self, signal: Signal) {
        // Other signals are ignored.
        let Signal::Status(readings) = signal else { return };
        let Ok(readings) = readings.parse() else { return };
        self.readings_left.store(readings, Ordering::SeqCst);
        *self.thread.lock().expect("no panic") = Some(std::thread::current().id());
    }
}

/// Sets its status twice, and then executes `rest`.
fn guest(status: &str, rest: &str) -> String {
    let length = status.len();
    format!(
        r#"(module
        (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{status}")
        (func (export "run") (param i32 i32) (result i32)
            (drop (call $status (i32.const 8) (i32.const {length})))
            (drop (call $status (i32.const 8) (i32.const {length})))
            {rest} i32.const 0))"#
    )
}

async fn run(guest: &str, budget: Duration) -> RunReport {
    let clock = Arc::new(SetByGuest {
        clock: SystemClock::new(),
        thread: Mutex::default(),
        readings_left: AtomicU64::new(u64::MAX),
    });
    let settings = Settings { max_runs: 1, guest_threads: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).clock(Arc::clone(&clock) as _).build();
    let host = host.expect("a host");
    let guest = host.load(guest.as_bytes(), Manifest::named("guest")).expect("a guest");
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget))
        .signals(clock);
    host.run(&guest, dispatch).await.expect("it ran")
}

#[tokio::test]
async fn a_stopped_handler_ends_before_inside_or_after_a_host_call() {
    let ever = "(loop $ever br $ever)";
    // Each call reads the clock when it enters and when it leaves.
    for (status, budget, place, call, dying_span) in [
        ("1", LONG, CallPlace::Inside, 1, "host_set_status"),
        ("2", LONG, CallPlace::Before, 2, "guest"),
        ("99", Duration::from_millis(50), CallPlace::After, 2, "guest"),
    ] {
        let report = run(&guest(status, ever), budget).await;
        assert_eq!(report.outcome.kind(), OutcomeKind::TimedOut, "{report:?}");
        let ended_at = EndPoint { place, call };
        assert_eq!(report.ended_at, Some(ended_at), "{report:?}");
        assert_eq!(report.dying_span.as_deref(), Some(dying_span));
        assert_eq!(report.host_calls.count, ended_at.calls_begun());
    }
}

#[tokio::test]
async fn a_trap_has_an_end_point_and_a_return_has_none() {
    let trapped = run(&guest("99", "unreachable"), LONG).await;
    assert_eq!(trapped.outcome.kind(), OutcomeKind::Trapped);
    assert_eq!(trapped.ended_at, Some(EndPoint { place: CallPlace::After, call: 2 }));
    let inside = run(&guest("99", "(call $exit (i32.const 0))"), LONG).await;
    assert_eq!(inside.outcome.kind(), OutcomeKind::Trapped, "{inside:?}");
    assert_eq!(inside.ended_at, Some(EndPoint { place: CallPlace::Inside, call: 3 }));
    let returned = run(&guest("99", ""), LONG).await;
    assert_eq!((returned.ended_at, returned.dying_span), (None, None));
}

/// One import of a core module.
struct Import {
    module: String,
    field: String,
    params: Vec<ValType>,
    results: Vec<ValType>,
}

/// The imports of a module, all of which are functions.
fn imports(module: &str) -> Vec<Import> {
    let binary = wat::parse_str(module).expect("it is text");
    let (mut types, mut imports) = (Vec::new(), Vec::new());
    for payload in Parser::new(0).parse_all(&binary) {
        match payload.expect("it is valid") {
            Payload::TypeSection(section) => {
                types.extend(
                    section.into_iter_err_on_gc_types().map(|ty| ty.expect("a function's")),
                );
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.expect("it is valid");
                    let TypeRef::Func(ty) = import.ty else { panic!("{import:?}") };
                    imports.push(Import {
                        module: import.module.to_owned(),
                        field: import.name.to_owned(),
                        params: types[ty as usize].params().to_vec(),
                        results: types[ty as usize].results().to_vec(),
                    });
                }
            }
            _ => {}
        }
    }
    imports
}

/// A guest that calls the import with zeros.
fn calls_with_zeros(import: &Import) -> String {
    let Import { module, field, params, results } = import;
    let zeros: String = params.iter().map(|ty| format!("({ty}.const 0) ")).collect();
    let [params, results] =
        [params, results].map(|types| types.iter().map(|ty| format!("{ty} ")).collect::<String>());
    let drop = if results.is_empty() { "" } else { "drop" };
    let this =
        format!("(import \"{module}\" \"{field}\" (func $it (param {params}) (result {results})))");
    // The third reading is when this call leaves.
    let guest = guest("3", &format!("(call $it {zeros}) {drop}"));
    guest.replacen("(module", &format!("(module {this}"), 1)
}

#[tokio::test]
async fn a_guest_that_is_killed_in_a_host_function_died_in_that_one_whichever_it_is() {
    let fixture = include_str!("../../../../guest-fixtures/wat/imports_everything.wat");
    let imports = imports(fixture);
    assert!(imports.len() > 70, "{}", imports.len());
    for import in imports.iter().filter(|import| import.field != "proc_exit") {
        let report = run(&calls_with_zeros(import), LONG).await;
        let name = match import.module.as_str() {
            "env" => import.field.clone(),
            module => format!("{module}.{}", import.field),
        };
        assert_eq!(report.dying_span.as_deref(), Some(name.as_str()), "{report:?}");
        let last = report.story.calls.last().expect("it called");
        assert_eq!(
            (&last.name, last.outcome),
            (&name.into(), CallOutcome::Unfinished),
            "{report:?}"
        );
    }
}

#[tokio::test]
async fn a_host_without_frames_still_reports_the_dying_span() {
    let guest = include_bytes!("../../../../guest-fixtures/built/stuck.wasm");
    for (backtrace_frames, most) in [(0, 0), (1, 32), (u32::MAX, 32)] {
        let settings = Settings { max_runs: 1, backtrace_frames, ..Settings::default() };
        let host = Host::builder().settings(settings).build().expect("a host");
        let guest = host.load(guest, Manifest::named("guest")).expect("a guest");
        let entity = "Session/1".parse().expect("valid");
        let dispatch = Dispatch::new(entity, "Begin", Context::default())
            .deadline(DispatchDeadline::after(Duration::from_millis(100)));
        let report = host.run(&guest, dispatch).await.expect("it ran");
        assert_eq!(report.dying_span.as_deref(), Some("guest"));
        let frames = report.backtrace.len();
        assert!(frames <= most && (frames == 0) == (most == 0), "{report:?}");
    }
}

#[tokio::test]
async fn frames_that_were_not_resolved_in_time_can_be_resolved_later() {
    let module = include_bytes!("../../../../guest-fixtures/built/stuck.wasm");
    let dispatch = || {
        Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
            .deadline(DispatchDeadline::after(Duration::from_millis(100)))
    };
    let host = |symbols_wait| {
        let settings = Settings { max_runs: 1, symbols_wait, ..Settings::default() };
        Host::builder().settings(settings).build().expect("a host")
    };
    let patient = host(LONG);
    let guest = patient.load(module, Manifest::named("guest")).expect("a guest");
    let expected = patient.run(&guest, dispatch()).await.expect("it ran").backtrace;
    assert!(expected[0].function.is_some() && expected[0].line.is_some(), "{expected:?}");

    let impatient = host(Duration::ZERO);
    let guest = impatient.load(module, Manifest::named("guest")).expect("a guest");
    let report = impatient.run(&guest, dispatch()).await.expect("it ran");
    let recorded = report.backtrace;
    assert!(recorded.iter().all(|frame| frame.function.is_none()), "{recorded:?}");
    let shown = impatient.resolve_frames(report.module.expect("its hash"), recorded.clone()).await;
    assert_eq!(shown, frames_of(module, &recorded));
    let (last, of_last) = (shown.last().expect("a frame"), expected.last().expect("a frame"));
    assert_eq!(last.function, of_last.function);

    let unknown = patient.resolve_frames(ModuleHash::of(b"other"), recorded.clone()).await;
    assert_eq!(unknown, recorded, "no such module is loaded");
}

/// How a tool resolves recorded offsets with the module's file.
fn frames_of(module: &[u8], recorded: &[Frame]) -> Vec<Frame> {
    recorded.iter().flat_map(|frame| frames_at(module, frame.offset)).collect()
}
