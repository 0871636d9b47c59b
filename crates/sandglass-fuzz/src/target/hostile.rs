//! A host that accepts arbitrary bytes as a guest: it loads the guest, executes it with a short
//! deadline, reports, and drops it, each within bounds of time and memory. libFuzzer terminates
//! inputs that hang, and inputs that take more memory than the process may use.

#![expect(clippy::disallowed_methods, reason = "it watches real time")]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, Manifest, Outcome, Settings,
};
use sandglass_model::{Account, GuestLimits};
use tokio::runtime::{Builder, Runtime};

use super::guest::REPORT_MAX_BYTES;
use crate::promise;

/// Short, so that guests that never end leave time for other inputs.
const BUDGET: Duration = Duration::from_millis(20);
/// Longest time that a load or a drop may take. It is far more than any needs, because machines are
/// shared.
const WORK_MAX: Duration = Duration::from_secs(5);
/// How long after its deadline a handler may end.
const LATE_MAX: Duration = Duration::from_secs(2);
/// The memory that a guest may have, and the memory that the host may hold for it, in bytes each.
const MEMORY_MAX_BYTES: u64 = 4 << 20;

/// Loads, executes, reports on and drops `module`, and checks the bounds. Returns whether it was
/// loaded.
pub(super) fn endure(module: &[u8]) -> bool {
    static SUBJECT: LazyLock<Subject> = LazyLock::new(Subject::new);
    let Subject { runtime, host } = &*SUBJECT;
    let limits = GuestLimits {
        memory_bytes: MEMORY_MAX_BYTES,
        host_memory_bytes: Some(MEMORY_MAX_BYTES),
        ..GuestLimits::default()
    };
    let loaded =
        in_time("load", WORK_MAX, || host.load(module, Manifest::named("hostile").limits(limits)));
    match loaded {
        Ok(guest) => {
            runtime.block_on(run(host, &guest));
            in_time("teardown", WORK_MAX, || drop(guest));
            true
        }
        Err(rejection) => {
            promise::check_text(&rejection.message);
            false
        }
    }
}

async fn run(host: &Host, guest: &Integration) {
    let entity = "Session/1".parse().expect("a name");
    let dispatch = Dispatch::new(entity, "Begin", Context::default())
        .deadline(DispatchDeadline::after(BUDGET));
    let begun = Instant::now();
    let report = host.run(guest, dispatch).await.expect("the host works whatever a guest does");
    let took = begun.elapsed();
    assert!(took <= BUDGET + LATE_MAX, "the run took {took:?}: {:?}", report.outcome);
    if let Outcome::TimedOut(exceeded) = &report.outcome {
        let late = Duration::from_micros(exceeded.overrun_us);
        assert!(late <= LATE_MAX, "the run ended {late:?} after its deadline");
    }
    assert_eq!(host.kills_overdue(), 0);
    assert!(report.peak_memory_bytes <= MEMORY_MAX_BYTES, "{} bytes", report.peak_memory_bytes);
    let held = report.peak_host_memory_bytes;
    assert!(held <= MEMORY_MAX_BYTES, "the host held {held} bytes for it");

    let written = serde_json::to_string(&report).expect("it can be shown");
    assert!(written.len() <= REPORT_MAX_BYTES, "a report of {} bytes", written.len());
    let written = serde_json::to_string(&report.outcome).expect("it can be kept");
    assert!(written.len() <= REPORT_MAX_BYTES, "an outcome of {} bytes", written.len());
    let again: Outcome = serde_json::from_str(&written).expect("it was kept");
    assert_eq!(again, report.outcome);
    let account = Account::of(&report);
    let written = serde_json::to_string(&account).expect("it can be kept");
    let again: Account = serde_json::from_str(&written).expect("it was kept");
    assert_eq!(again, account);

    if let Some((_, message)) = report.outcome.error() {
        promise::check_text(&message);
    }
    promise::check_frames(&report.backtrace);
    let module = report.module.expect("its module was loaded");
    promise::check_frames(&host.resolve_frames(module, report.backtrace).await);
}

/// Calls `work`, and checks that it takes at most `most`.
fn in_time<T>(what: &str, most: Duration, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let made = work();
    let took = begun.elapsed();
    assert!(took <= most, "the {what} took {took:?}");
    made
}

struct Subject {
    runtime: Runtime,
    host: Host,
}

impl Subject {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let settings = Settings {
            max_runs: 2,
            max_asking: 0,
            guest_threads: 1,
            max_memory_bytes: MEMORY_MAX_BYTES,
            // A module is rarely loaded twice.
            module_cache_bytes: 0,
            ..Settings::default()
        };
        let host = Host::builder().settings(settings).build().expect("a host");
        Self { runtime, host }
    }
}
