//! Compiling in a child process: the same results as in process, and limits that apply whatever the
//! module or the helper does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandglass_host::{
    CompileHelper, CompileLimits, Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome,
    Settings,
};
use sandglass_model::{GuestLimits, Rejection, RejectionKind};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};

const HELPER: &str = env!("CARGO_BIN_EXE_sandglass-compile-helper");

const FINISHES: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true,\"action\":\"Finish\"}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 8) (i32.const 34)) i32.const 0))"#;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// A module with `functions` functions, each with `steps` steps that depend on one another.
fn large(functions: usize, steps: usize) -> Vec<u8> {
    let step = "(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const 3)) (i32.const 7)))";
    let function = format!("(func (param i32) (result i32) {} local.get 0)", step.repeat(steps));
    let text = format!(
        r#"(module (memory (export "memory") 1) {}
            (func (export "run") (param i32 i32) (result i32) i32.const 0))"#,
        function.repeat(functions)
    );
    wat::parse_str(text).expect("a module")
}

fn limits() -> CompileLimits {
    CompileLimits { timeout: LONG, ..CompileLimits::default() }
}

fn helper() -> CompileHelper {
    CompileHelper::new(HELPER, [""; 0]).limits(limits())
}

/// A helper that executes a script.
fn scripted(script: &str) -> CompileHelper {
    CompileHelper::new("/bin/sh", ["-c", script]).limits(limits())
}

fn settings() -> Settings {
    Settings { max_runs: 4, max_asking: 0, ..Settings::default() }
}

fn host(helper: CompileHelper) -> Host {
    Host::builder().settings(settings()).compile_in(helper).build().expect("a host")
}

fn refused(helper: CompileHelper, module: &[u8]) -> Rejection {
    let loaded = host(helper).load(module, Manifest::named("guest"));
    loaded.expect_err("it is not compiled")
}

async fn outcome(host: &Host, module: &[u8]) -> Outcome {
    let integration = host.load(module, Manifest::named("guest")).expect("a guest");
    let dispatch = Dispatch::new("Run/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(LONG));
    host.dispatch(&integration, dispatch).await.expect("it ran")
}

#[tokio::test]
async fn a_module_compiled_by_a_helper_has_the_same_outcome() {
    let there = outcome(&host(helper()), FINISHES.as_bytes()).await;
    assert!(matches!(there, Outcome::Completed(_)), "{there:?}");
    let here = Host::builder().settings(settings()).build().expect("a host");
    assert_eq!(there, outcome(&here, FINISHES.as_bytes()).await);
}

#[test]
fn each_fixture_is_accepted_or_rejected_as_in_process() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-fixtures/wat");
    let here = Host::builder().settings(settings()).build().expect("a host");
    let there = host(helper());
    let mut loaded = 0;
    for file in folder.read_dir().expect("a folder") {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|ending| ending != "wat") {
            continue;
        }
        let bytes = std::fs::read(&path).expect("a guest");
        let [here, there] =
            [&here, &there].map(|host| host.load(&bytes, Manifest::named("guest")).map(drop));
        assert_eq!(here, there, "{}", path.display());
        loaded += 1;
    }
    assert!(loaded > 50, "{loaded}");
    // Code that counts fuel is different.
    let limits = GuestLimits { fuel: Some(1000), ..Default::default() };
    let manifest = Manifest::named("guest").limits(limits);
    there.load(FINISHES.as_bytes(), manifest).expect("a guest");
}

#[test]
fn a_module_that_compiles_too_long_is_rejected_and_its_helper_is_gone() {
    let quick = CompileLimits { timeout: Duration::from_millis(100), ..limits() };
    let why = refused(helper().limits(quick), &large(4000, 80));
    assert_eq!(why.kind, RejectionKind::CompileLimit, "{why}");
    assert!(why.message.contains("100ms") && why.message.contains("--compile-timeout"), "{why}");

    // It never reads, so the pipe to it is full.
    let place = tempfile::tempdir().expect("a folder");
    let pid = place.path().join("pid");
    let never_reads = scripted(&format!("echo $$ > {}; exec /bin/sleep 1000", pid.display()));
    let quick = CompileLimits { timeout: Duration::from_secs(2), ..limits() };
    let why = refused(never_reads.limits(quick), &large(2000, 40));
    assert_eq!(why.kind, RejectionKind::CompileLimit, "{why}");
    let pid = std::fs::read_to_string(pid).expect("it was started");
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "neither running nor a zombie");
}

#[test]
fn what_takes_too_much_memory_is_rejected() {
    let little = CompileLimits { memory_bytes: CompileLimits::MEMORY_MIN_BYTES, ..limits() };
    // One function, near the largest allowed.
    let why = refused(helper().limits(little), &large(1, 100_000));
    assert_eq!(why.kind, RejectionKind::CompileLimit, "{why}");
    assert!(why.message.contains("64 MiB") && why.message.contains("--compile-memory"), "{why}");
    // The limit is enough for a small one.
    host(helper().limits(little))
        .load(FINISHES.as_bytes(), Manifest::named("guest"))
        .expect("a guest");
}

#[test]
fn a_module_is_rejected_if_its_helper_misbehaves() {
    for (script, says) in [
        ("exit 1", "exit status: 1"),
        ("kill -SEGV $$", "signal: 11"),
        ("echo memory allocation of 9 bytes failed >&2; kill -ABRT $$", "--compile-memory"),
        ("echo thread main has overflowed its stack >&2; kill -ABRT $$", "stack"),
        ("kill -XCPU $$", "--compile-timeout"),
        ("exit 0", "exit status: 0"),
        ("exec >&-; exec /bin/sleep 1000", "crashed"),
        ("while :; do echo garbage; done", "no valid result"),
        ("while :; do echo garbage >&2; done", "no valid result"),
        // A response that states 2^64 - 1 bytes of code, and one whose seal is wrong.
        (r"printf 'sandglass comp 3\0\377\377\377\377\377\377\377\377'", "out of proportion"),
        (r"printf 'sandglass comp 3\0\4\0\0\0\0\0\0\0code'", "no valid result"),
        // A rejection that compiling cannot end in.
        (r"printf 'sandglass comp 3\1\5\0\0\0\0\0\0\0a\nb c'", "no valid result"),
    ] {
        let why = refused(scripted(script), FINISHES.as_bytes());
        assert_eq!(why.kind, RejectionKind::CompileLimit, "{script}: {why}");
        assert!(why.message.contains(says), "{script}: {why}");
    }
}

#[test]
fn a_missing_helper_is_a_fault_of_the_host() {
    let why = refused(CompileHelper::new("/nonexistent/helper", [""; 0]), FINISHES.as_bytes());
    assert_eq!(why.kind, RejectionKind::HostUnavailable, "{why}");
    assert!(why.message.contains("/nonexistent/helper"), "{why}");
}

#[test]
fn code_on_disk_serves_both_compilers_and_starts_no_helper() {
    let place = tempfile::tempdir().expect("a folder");
    for (first, second) in [
        (Some(helper()), Some(scripted("exit 1"))),
        (None, Some(scripted("exit 1"))),
        (Some(helper()), None),
    ] {
        let folder = tempfile::tempdir_in(place.path()).expect("a folder");
        let exporter = Exporter::new(Prefix::default());
        let build = |helper: Option<CompileHelper>| {
            let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::disabled() };
            let compiled_cache_dir = Some(folder.path().join("compiled"));
            let builder = Host::builder()
                .settings(Settings { compiled_cache_dir, ..settings() })
                .telemetry(telemetry);
            match helper {
                Some(helper) => builder.compile_in(helper).build(),
                None => builder.build(),
            }
            .expect("a host")
        };
        for helper in [first, second] {
            build(helper)
                .load(FINISHES.as_bytes(), Manifest::named("guest"))
                .expect("compiled, or kept");
        }
        let scrape = exporter.render();
        assert!(scrape.contains("temper_wasm_module_compile_seconds_count 1"), "{scrape}");
    }
}

#[tokio::test]
async fn a_large_module_begins_with_baseline_code_unless_optimized_code_is_kept() {
    let place = tempfile::tempdir().expect("a folder");
    let compiled = |helper: CompileHelper, module: &[u8]| {
        let compiled_cache_dir = Some(place.path().join("compiled"));
        let host = Host::builder().settings(Settings { compiled_cache_dir, ..settings() });
        let host = host.compile_in(helper).build().expect("a host");
        let loaded = host.load(module, Manifest::named("guest")).expect("a guest");
        (host, loaded.is_optimized())
    };
    let length = FINISHES.len() as u64;
    let baseline = |helper: CompileHelper| helper.baseline_from(length);
    let (first, is_optimized) = compiled(baseline(helper()), FINISHES.as_bytes());
    assert!(!is_optimized);
    assert!(matches!(outcome(&first, FINISHES.as_bytes()).await, Outcome::Completed(_)));
    // Both kinds of code are kept.
    assert!(!compiled(baseline(scripted("exit 1")), FINISHES.as_bytes()).1);
    assert!(compiled(helper(), FINISHES.as_bytes()).1);
    assert!(compiled(baseline(scripted("exit 1")), FINISHES.as_bytes()).1);
    let smaller = FINISHES.replace("\n    ", "\n");
    assert!(compiled(baseline(helper()), smaller.as_bytes()).1);
}

#[tokio::test]
async fn what_baseline_code_cannot_promise_is_compiled_with_optimizations() {
    let host = host(helper().baseline_from(0));
    let is_optimized = |module: &str, manifest: Manifest| {
        host.load(module.as_bytes(), manifest).expect("a guest").is_optimized()
    };
    let with_limits = |limits| Manifest::named("guest").limits(limits);
    assert!(!is_optimized(FINISHES, Manifest::named("guest")));
    let fuel = GuestLimits { fuel: Some(1_000), ..GuestLimits::default() };
    assert!(is_optimized(FINISHES, with_limits(fuel)));
    let memory = GuestLimits { memory_bytes: (64 << 20) + 1, ..GuestLimits::default() };
    assert!(is_optimized(FINISHES, with_limits(memory)));
    let fill = "(memory.fill (i32.const 0) (i32.const 0) (local.get 0))";
    let fills = |count| {
        let all = format!("(func (param i32) {}) (func (export \"run\")", fill.repeat(count));
        FINISHES.replace("(func (export \"run\")", &all)
    };
    assert!(!is_optimized(&fills(128), Manifest::named("guest")));
    assert!(is_optimized(&fills(129), Manifest::named("guest")));
    let calls_at_its_tail = FINISHES.replace(
        "(call $set (i32.const 8) (i32.const 34)) i32.const 0",
        "(call $set (i32.const 8) (i32.const 34)) (return_call $zero)) (func $zero (result i32) i32.const 0",
    );
    assert!(is_optimized(&calls_at_its_tail, Manifest::named("guest")));
    let outcome = outcome(&host, calls_at_its_tail.as_bytes()).await;
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    let why = refused(helper().baseline_from(0), b"(module (func (export \"run\") unreachable)");
    assert_eq!(why.kind, RejectionKind::InvalidModule, "{why}");
    // It does not get its time twice.
    let script = "exec /bin/sleep 1000";
    let quick = CompileLimits { timeout: Duration::from_secs(1), ..limits() };
    let why = refused(scripted(script).limits(quick).baseline_from(0), FINISHES.as_bytes());
    assert_eq!(why.kind, RejectionKind::CompileLimit, "{why}");
}

/// A helper that compiles only if there is no file at the path; otherwise it creates another file beside
/// it, and blocks.
fn blocked_by(flag: &Path) -> CompileHelper {
    let flag = flag.display();
    scripted(&format!(
        "if [ -e {flag} ]; then : > {flag}.$$; exec /bin/sleep 1000; else exec {HELPER}; fi"
    ))
}

/// Waits until `flag` blocks `count` helpers.
async fn wait_for_blocked(flag: &Path, count: usize) {
    let name = flag.file_name().expect("a name").to_string_lossy().into_owned();
    let folder = flag.parent().map(PathBuf::from).expect("a folder");
    loop {
        let files = folder.read_dir().expect("a folder").flatten();
        let begun = files
            .filter(|file| file.file_name().to_string_lossy().starts_with(&format!("{name}.")))
            .count();
        if begun >= count {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn slow_compilations_delay_only_their_tenant_and_a_shutdown_ends_them() {
    let place = tempfile::tempdir().expect("a folder");
    let flag = place.path().join("hold");
    std::fs::write(&flag, "").expect("written");
    let host = host(blocked_by(&flag));
    // More than are compiled at the same time, of two tenants' modules.
    let slow: Vec<_> = (1..=6)
        .map(|nth| {
            let host = host.clone();
            tokio::spawn(async move {
                let module = large(nth, 1);
                if nth % 2 == 0 {
                    host.load_async_for("slow", module, Manifest::named("slow")).await
                } else {
                    let load = move || host.load_for("slow", &module, Manifest::named("slow"));
                    tokio::task::spawn_blocking(load).await.expect("no panic")
                }
            })
        })
        .collect();
    wait_for_blocked(&flag, 2).await;
    std::fs::remove_file(&flag).expect("it was there");
    let finishes = FINISHES.as_bytes().to_vec();
    host.load_async_for("other", finishes, Manifest::named("quick")).await.expect("a guest");
    // A module that waits for a turn of the slow tenant is still compiled for another one.
    let shared = large(6, 1);
    host.load_async_for("other", shared, Manifest::named("shared")).await.expect("a guest");
    host.shutdown().await;
    let mut stopped = 0;
    for load in slow {
        if let Err(why) = load.await.expect("no panic") {
            assert_eq!(why.kind, RejectionKind::HostUnavailable, "{why}");
            stopped += 1;
        }
    }
    assert!(stopped >= 2, "those that were blocked: {stopped}");
}
