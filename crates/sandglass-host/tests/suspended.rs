//! Guests that wait in host calls take little memory, and each stack has its guard page. In a process of
//! its own, so that only their memory is measured.

#![cfg(target_os = "linux")]

use std::time::Duration;

use sandglass_host::{
    BuildError, Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome, Settings,
};
use sandglass_model::Cause;

/// Waits for an hour in a poll.
const SLEEPS: &str = r#"(module
    (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32)
        (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const 3600000000000))
        (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
        i32.const 0))"#;

/// Enough to measure what each takes, and quick in a debug build.
const GUESTS: u32 = 400;

/// At most twice what one takes in a release build, because a debug build has larger frames.
const EACH_BYTES: u64 = 64 << 10;

/// Size of the stack of a handler run, as in the host.
const STACK_BYTES: u64 = 2 << 20;

#[tokio::test]
async fn waiting_guests_take_little_memory_and_each_stack_has_a_guard_page() {
    let settings = Settings { max_runs: GUESTS, max_asking: 0, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let sleeps = host.load(SLEEPS.as_bytes(), Manifest::named("sleeps")).expect("a guest");
    let (resident, mappings) = (resident_bytes(), maps().len() as u64);
    let mut stops = Vec::new();
    let mut runs: Vec<_> = (0..GUESTS)
        .map(|_| {
            let dispatch =
                Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
                    .deadline(DispatchDeadline::after(Duration::from_secs(3600)));
            stops.push(dispatch.stop_handle());
            Box::pin(host.run_in_place(&sleeps, dispatch))
        })
        .collect();
    for run in &mut runs {
        // Polled here, so that each waits in its call when this returns.
        let polled =
            run.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(polled.is_pending());
    }
    let each = (resident_bytes() - resident) / u64::from(GUESTS);
    assert!(each <= EACH_BYTES, "{each} bytes each");
    let maps = maps();
    let each = (maps.len() as u64 - mappings).div_ceil(u64::from(GUESTS));
    assert!(each <= 6, "{each} mappings each");
    let is_guarded = |pair: &&[Mapping]| {
        pair[0].end == pair[1].start
            && pair[0].access == "---p"
            && pair[1].access == "rw-p"
            && pair[1].end - pair[1].start == STACK_BYTES
    };
    let guarded = maps.windows(2).filter(is_guarded).count();
    assert!(guarded >= GUESTS as usize, "{guarded} stacks have a guard page");
    for (stop, run) in stops.into_iter().zip(runs) {
        stop.stop(Cause::Cancel, "");
        let outcome = run.await.expect("it ran").outcome;
        assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
    }
}

#[test]
fn a_pool_that_could_not_be_filled_is_not_built() {
    let settings = Settings { max_runs: 1_000_000, ..Settings::default() };
    let refused = Host::builder().settings(settings).build();
    let Err(BuildError::Sandbox { max_runs, why }) = refused else { panic!("{refused:?}") };
    assert_eq!(max_runs, 1_000_200);
    assert!(why.contains("vm.max_map_count"), "{why}");
}

struct Mapping {
    start: u64,
    end: u64,
    access: String,
}

/// The memory mappings of this process (`proc(5)`).
fn maps() -> Vec<Mapping> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            access: rest.split_whitespace().next()?.to_owned(),
        })
    };
    maps.lines().filter_map(mapping).collect()
}

/// Anonymous memory of this process that is in use, in bytes (`proc(5)`): stacks, heap and
/// guests' memories. The pages of its program do not count, because they are loaded on first use.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).expect("a number") << 10
}
