//! The time split of a report.

use std::time::Duration;

use sandglass_host::{Context, Dispatch, DispatchDeadline, Host, Integration, Manifest, Settings};
use sandglass_model::{Cause, Limit, RunReport};

const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

/// Waits for an hour in a poll.
const SLEEPS: &str = r#"(module
    (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32)
        (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const 3600000000000))
        (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
        i32.const 0))"#;

fn host(settings: Settings) -> Host {
    Host::builder().settings(settings).build().expect("a host")
}

fn load(host: &Host, guest: &str) -> Integration {
    host.load(guest.as_bytes(), Manifest::named("guest")).expect("a guest")
}

fn dispatch(budget_ms: u64) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(Duration::from_millis(budget_ms)))
}

fn adds_up(report: &RunReport) {
    let rounded = report.wall_us.checked_sub(report.time_split_us.total());
    assert!(rounded.is_some_and(|rounded| rounded <= 6), "{report:?}");
}

#[tokio::test]
async fn guests_that_share_a_thread_share_its_time_on_the_cpu() {
    let host = host(Settings { max_runs: 4, guest_threads: 1, ..Settings::default() });
    let spins = load(&host, SPINS);
    let runs = (0..4).map(|_| host.run(&spins, dispatch(400)));
    let reports = futures_util::future::join_all(runs).await;
    let reports: Vec<RunReport> = reports.into_iter().map(|run| run.expect("it ran")).collect();
    let of_all: u64 = reports.iter().map(|report| report.cpu_us).sum();
    let longest = reports.iter().map(|report| report.wall_us).max().expect("four");
    // The first slices count as long as they took, so there is some room.
    assert!(of_all < longest * 2, "{of_all} of {longest}: {reports:?}");
    for report in &reports {
        assert!(
            report.cpu_us > 0
                && report.time_split_us.guest + report.time_split_us.instantiate >= 390_000,
            "{report:?}"
        );
        adds_up(report);
    }
}

#[tokio::test]
async fn a_guest_that_waits_takes_no_time_on_the_cpu() {
    let host = host(Settings { max_runs: 4, ..Settings::default() });
    let sleeps = load(&host, SLEEPS);
    for in_place in [false, true] {
        let report = if in_place {
            host.run_in_place(&sleeps, dispatch(1500)).await
        } else {
            host.run(&sleeps, dispatch(1500)).await
        };
        let report = report.expect("it ran");
        assert!(report.time_split_us.host >= 1_400_000, "{report:?}");
        assert!(report.cpu_us < 1_000_000, "{report:?}");
        adds_up(&report);
    }
}

#[tokio::test]
async fn time_splits_of_unstarted_and_freshly_compiled_handlers_add_up() {
    let host = host(Settings { max_runs: 1, max_asking: 0, ..Settings::default() });
    let spins = load(&host, SPINS);
    let holder = dispatch(60_000);
    let stop = holder.stop_handle();
    let compile = Duration::from_micros(1234);
    let impatient = dispatch(60_000).schedule_to_start(Duration::from_millis(20));
    let (held, refused) = tokio::join!(host.run(&spins, holder.compiled_in(compile)), async {
        let refused = host.run(&spins, impatient.compiled_in(compile)).await;
        stop.stop(Cause::Cancel, "");
        refused
    });
    for (report, is_late) in [(held, false), (refused, true)] {
        let report = report.expect("a report");
        let late: Vec<_> =
            report.overruns.iter().map(|one| (one.limit, one.threshold_ms)).collect();
        let expected = is_late.then_some((Limit::ScheduleToStartTimeout, 21));
        assert_eq!(late, Vec::from_iter(expected), "what it was compiled in counts, too");
        assert_eq!(report.time_split_us.compile, 1234);
        assert!(report.wall_us > 20_000, "{report:?}");
        adds_up(&report);
    }
}
