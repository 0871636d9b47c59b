//! Loading modules: each is compiled once, off the threads that must not block, kept on disk if the
//! settings say so, and executed on demand if no slot is large enough.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    Allocation, BuildError, Context, Dispatch, DispatchDeadline, Host, Integration, Manifest,
    Outcome, Settings,
};
use sandglass_model::{Cause, GuestLimits, LimitKind, RejectionKind, RunReport};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};

/// Longer than anything here takes on a busy machine.
const LONG_MS: u64 = 60_000;

const FINISHES: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true,\"action\":\"Finish\"}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 8) (i32.const 34)) i32.const 0))"#;

/// A module with `functions` functions that take time to compile.
fn large(functions: usize) -> Vec<u8> {
    let body = "(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const 3)) (i32.const 7)))";
    let function = format!("(func (param i32) (result i32) {} local.get 0)", body.repeat(40));
    let text = format!(
        r#"(module (memory (export "memory") 1) {}
            (func (export "run") (param i32 i32) (result i32) i32.const 0))"#,
        function.repeat(functions)
    );
    wat::parse_str(text).expect("it is text")
}

/// A module with more tables than a slot has. It fails unless each has its initial elements, and then
/// grows the last one by `more` elements.
fn with_tables(more: u32) -> String {
    format!(
        r#"(module
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"success\":true}}")
        (table 10 funcref) (table 10 funcref) (table 10 funcref)
        (table 10 funcref) (table 10 funcref) (table $last 10 100000 funcref)
        (func $self (export "run") (param i32 i32) (result i32)
            (if (i32.eqz (ref.is_null (table.get 5 (i32.const 3)))) (then unreachable))
            (table.set 5 (i32.const 3) (ref.func $self))
            (if (i32.eq (table.grow $last (ref.null func) (i32.const {more})) (i32.const -1))
                (then unreachable))
            (call $set (i32.const 8) (i32.const 16)) i32.const 0))"#
    )
}

fn small() -> Settings {
    Settings { max_runs: 8, max_asking: 0, ..Settings::default() }
}

fn host(settings: Settings) -> (Host, Exporter) {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::disabled() };
    let host = Host::builder().settings(settings).telemetry(telemetry).build().expect("a host");
    (host, exporter)
}

fn kept_in(folder: &Path) -> Settings {
    Settings { compiled_cache_dir: Some(folder.join("compiled")), ..small() }
}

fn dispatch(budget_ms: u64) -> Dispatch {
    let config = [("does".to_owned(), "echo".to_owned())].into();
    let context = Context { config, ..Context::default() };
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(Duration::from_millis(budget_ms)))
}

async fn run(host: &Host, integration: &Integration) -> RunReport {
    host.run(integration, dispatch(LONG_MS)).await.expect("it ran")
}

fn counted(exporter: &Exporter, name: &str) -> String {
    let scrape = exporter.render();
    let value = scrape.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or("0").to_owned()
}

const COMPILES: &str = "temper_wasm_module_compile_seconds_count";

#[tokio::test]
async fn concurrent_loads_of_one_module_compile_it_once() {
    let (host, exporter) = host(small());
    let bytes: Arc<[u8]> = large(200).into();
    let waiting = (0..20).map(|_| host.load_async(Arc::clone(&bytes), Manifest::named("same")));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (host, bytes) = (host.clone(), Arc::clone(&bytes));
            std::thread::spawn(move || host.load(&bytes, Manifest::named("same")))
        })
        .collect();
    let mut loaded = futures_util::future::join_all(waiting).await;
    loaded.extend(threads.into_iter().map(|thread| thread.join().expect("no panic")));
    let loaded: Vec<Integration> = loaded.into_iter().map(|one| one.expect("a guest")).collect();
    assert_eq!(loaded.len(), 24);
    assert_eq!(counted(&exporter, COMPILES), "1");
    // Each of them gets the rejection.
    let broken: Arc<[u8]> = b"(module (func (export \"run\")))".to_vec().into();
    let refused = (0..5).map(|_| host.load_async(Arc::clone(&broken), Manifest::named("broken")));
    for one in futures_util::future::join_all(refused).await {
        assert_eq!(one.expect_err("it has no memory").kind, RejectionKind::MissingExport);
    }
}

#[tokio::test]
async fn a_slow_compilation_blocks_neither_the_caller_nor_a_guest() {
    let (host, _) = host(Settings { guest_threads: 1, ..small() });
    let finishes = host.load(FINISHES.as_bytes(), Manifest::named("quick")).expect("a guest");
    let mut dispatched = 0;
    {
        let slow = host.load_async(large(3000), Manifest::named("slow"));
        let mut slow = std::pin::pin!(slow);
        let loaded = loop {
            tokio::select! {
                biased;
                loaded = &mut slow => break loaded,
                report = run(&host, &finishes) => {
                    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
                    dispatched += 1;
                }
            }
        };
        loaded.expect("a guest");
    }
    assert!(dispatched > 3, "{dispatched} handlers ran meanwhile");
}

#[tokio::test]
async fn an_abandoned_compilation_serves_the_next_load() {
    let (host, exporter) = host(small());
    let bytes: Arc<[u8]> = large(500).into();
    {
        let mut impatient = Box::pin(host.load_async(Arc::clone(&bytes), Manifest::named("first")));
        let waker = std::task::Waker::noop();
        let polled = impatient.as_mut().poll(&mut std::task::Context::from_waker(waker));
        assert!(polled.is_pending());
    }
    host.load_async(bytes, Manifest::named("second")).await.expect("a guest");
    assert_eq!(counted(&exporter, COMPILES), "1");
}

#[tokio::test]
async fn compiled_code_on_disk_outlives_its_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let component = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../guest-fixtures/built/component.wasm"
    ));
    let component = component.expect("the sample");
    let load = |host: &Host| -> Vec<Integration> {
        [FINISHES.as_bytes(), &component]
            .map(|guest| host.load(guest, Manifest::named("kept")).expect("a guest"))
            .into()
    };
    let files = || std::fs::read_dir(folder.path().join("compiled")).expect("there").count();
    for _ in 0..2 {
        let (host, _) = host(kept_in(folder.path()));
        for integration in load(&host) {
            let outcome = run(&host, &integration).await.outcome;
            assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        }
        // A key, and one file for each of the two.
        assert_eq!(files(), 3);
    }
    // An engine with other settings shares nothing with the first.
    let (host, _) = host(kept_in(folder.path()));
    let limits = GuestLimits { fuel: Some(1_000_000), ..GuestLimits::default() };
    let manifest = Manifest::named("fuel").limits(limits);
    host.load(FINISHES.as_bytes(), manifest).expect("a guest");
    assert_eq!(files(), 4);
}

/// The results of look-ups of compiled code on disk.
fn found(exporter: &Exporter) -> [String; 3] {
    ["hit", "miss", "unusable"].map(|found| {
        counted(exporter, &format!("temper_wasm_compiled_code_lookups_total{{found=\"{found}\"}}"))
    })
}

/// The environment variable that names the folder to the other process.
const SHARED: &str = "SANDGLASS_TEST_SHARED_FOLDER";

#[tokio::test]
async fn another_process_finds_compiled_code_on_disk() {
    let Some(shared) = std::env::var_os(SHARED) else {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, exporter) = host(kept_in(folder.path()));
        own.load(FINISHES.as_bytes(), Manifest::named("kept")).expect("a guest");
        assert_eq!(found(&exporter), ["0", "1", "0"]);
        // This test again, in another process.
        let name = std::thread::current().name().expect("tests are named").to_owned();
        let other = std::process::Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", &name, "--nocapture"])
            .env(SHARED, folder.path())
            .output()
            .expect("it starts");
        assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
        // This process finds what the other has compiled.
        own.load(SPINS.as_bytes(), Manifest::named("others")).expect("a guest");
        assert_eq!(found(&exporter)[0], "1");
        return;
    };
    let (own, exporter) = host(kept_in(Path::new(&shared)));
    let kept = own.load(FINISHES.as_bytes(), Manifest::named("kept")).expect("a guest");
    assert_eq!(found(&exporter), ["1", "0", "0"]);
    assert!(matches!(run(&own, &kept).await.outcome, Outcome::Completed(_)));
    own.load(SPINS.as_bytes(), Manifest::named("new")).expect("a guest");
    assert_eq!(found(&exporter), ["1", "1", "0"]);
}

#[tokio::test]
async fn damaged_code_is_never_executed_but_compiled_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let compiled = || {
        let files = std::fs::read_dir(folder.path().join("compiled")).expect("there").flatten();
        let mut files = files.map(|file| file.path());
        files.find(|path| path.extension().is_some_and(|end| end == "code")).expect("an entry")
    };
    drop(host(kept_in(folder.path())).0.load(FINISHES.as_bytes(), Manifest::named("first")));
    let sound = std::fs::read(compiled()).expect("ours");
    // From its tag to the machine code.
    for at in [0, 31, 32, 47, 48, 79, 80, sound.len() / 2, sound.len() - 1] {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x10;
        std::fs::write(compiled(), &damaged).expect("ours");
        let (host, exporter) = host(kept_in(folder.path()));
        let again = host.load(FINISHES.as_bytes(), Manifest::named("again")).expect("a guest");
        assert!(matches!(run(&host, &again).await.outcome, Outcome::Completed(_)));
        assert_ne!(std::fs::read(compiled()).expect("ours"), damaged, "byte {at}");
        assert_eq!(found(&exporter), ["0", "0", "1"], "byte {at}");
    }
}

#[test]
fn a_folder_that_others_can_use_is_refused_with_a_remedy() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let compiled = folder.path().join("compiled");
    std::fs::create_dir(&compiled).expect("room");
    std::fs::set_permissions(&compiled, std::fs::Permissions::from_mode(0o777)).expect("ours");
    let refused = Host::builder().settings(kept_in(folder.path())).build();
    let Err(refused) = refused else { panic!("{refused:?}") };
    assert!(refused.to_string().contains("name a folder of this user's alone"), "{refused}");
    let BuildError::CompiledCache { folder, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(folder, compiled);
}

#[tokio::test]
async fn a_module_too_large_for_a_slot_is_executed_on_demand_by_the_same_rules() {
    let (host, exporter) = host(small());
    let pooled = host.load(FINISHES.as_bytes(), Manifest::named("pooled")).expect("a guest");
    assert_eq!(pooled.allocation(), Allocation::Pooled);
    let tables = host.load(with_tables(0).as_bytes(), Manifest::named("tables"));
    let tables = tables.expect("it runs on demand");
    assert_eq!(tables.allocation(), Allocation::OnDemand);
    for _ in 0..3 {
        let report = run(&host, &tables).await;
        assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
        assert_eq!(report.allocation, Some(Allocation::OnDemand));
        let report = host.run_in_place(&tables, dispatch(LONG_MS)).await.expect("it ran");
        assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    }
    let grows = host.load(with_tables(200_000).as_bytes(), Manifest::named("grows"));
    let report = run(&host, &grows.expect("a guest")).await;
    let Outcome::Limit(breach) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(breach.kind, LimitKind::WasmTable);
    assert_eq!(counted(&exporter, "temper_wasm_live_stores"), "0");
}

#[test]
fn a_component_too_large_for_a_slot_is_compiled_once() {
    // Three memories, and no handler, which only compiling finds.
    let instance = "(core instance (instantiate $m))";
    let large = format!("(component (core module $m (memory 1)) {})", instance.repeat(3));
    let folder = tempfile::tempdir().expect("a folder");
    let compiled_in = |settings| {
        let (host, exporter) = host(settings);
        let refused = host.load(large.as_bytes(), Manifest::named("large"));
        assert_eq!(refused.expect_err("no handler").kind, RejectionKind::MissingExport);
        (counted(&exporter, COMPILES), found(&exporter))
    };
    let [none, one] = ["0", "1"].map(str::to_owned);
    let nothing = [none.clone(), none.clone(), none.clone()];
    assert_eq!(compiled_in(small()), (one.clone(), nothing));
    let first = compiled_in(kept_in(folder.path()));
    assert_eq!(first, (one.clone(), [none.clone(), one.clone(), none.clone()]));
    let next = compiled_in(kept_in(folder.path()));
    assert_eq!(next, (none.clone(), [one, none.clone(), none]));
}

/// Spins in a module with more tables than a slot has.
const SPINS: &str = r#"(module (memory (export "memory") 1)
    (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

#[tokio::test]
async fn handlers_on_demand_are_few_and_block_no_others() {
    let (host, exporter) = host(Settings { max_on_demand: 1, ..small() });
    let spins = host.load(SPINS.as_bytes(), Manifest::named("spins")).expect("a guest");
    let finishes = host.load(FINISHES.as_bytes(), Manifest::named("pooled")).expect("a guest");
    let holder = dispatch(LONG_MS);
    let stop = holder.stop_handle();
    let impatient = dispatch(LONG_MS).schedule_to_start(Duration::from_millis(30));
    let (held, refused) = tokio::join!(host.run(&spins, holder), async {
        let refused = host.run(&spins, impatient).await.expect("a report");
        assert_eq!(counted(&exporter, "temper_wasm_pool_slots_in_use"), "0");
        let pooled = run(&host, &finishes).await;
        assert!(matches!(pooled.outcome, Outcome::Completed(_)), "{pooled:?}");
        stop.stop(Cause::Cancel, "");
        refused
    });
    assert_eq!(held.expect("it ran").cause, Cause::Cancel);
    assert!(matches!(refused.outcome, Outcome::Rejected(_)), "{refused:?}");
    // Its permit is free again, and kills work as elsewhere.
    let killed = host.run(&spins, dispatch(30)).await.expect("it ran");
    assert!(matches!(killed.outcome, Outcome::TimedOut(_)), "{killed:?}");
}

#[test]
fn an_integration_with_more_memory_than_a_slot_is_executed_on_demand() {
    let (host, _) = host(Settings { slot_memory_bytes: 1 << 20, ..small() });
    let granted = |memory_bytes| {
        let limits = GuestLimits { memory_bytes, ..GuestLimits::default() };
        let manifest = Manifest::named("granted").limits(limits);
        host.load(FINISHES.as_bytes(), manifest).expect("a guest").allocation()
    };
    assert_eq!(granted(1 << 20), Allocation::Pooled);
    assert_eq!(granted(2 << 20), Allocation::OnDemand);
}
