//! A host with nothing to do uses no CPU. In a process of its own, so that only the host's time is
//! measured.

#![cfg(target_os = "linux")]

use std::time::Duration;

use sandglass_host::{Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome, Settings};

const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

/// In this time, a guest that spins would use 50 ticks of the kernel.
const SPAN: Duration = Duration::from_millis(500);

/// Far below that, and above the cost of reading the figure.
const IDLE_TICKS: u64 = 3;

#[tokio::test]
async fn killed_guests_burn_no_cpu() {
    let settings = Settings { max_runs: 8, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let spins = host.load(SPINS.as_bytes(), Manifest::default()).expect("a guest");
    for _ in 0..4 {
        let dispatch =
            Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
                .deadline(DispatchDeadline::after(Duration::from_millis(100)));
        let outcome = host.dispatch(&spins, dispatch).await.expect("it ran");
        assert!(matches!(outcome, Outcome::TimedOut(_)));
    }
    let before = cpu_ticks();
    #[allow(clippy::disallowed_methods, reason = "idleness is measured over a span of time")]
    tokio::time::sleep(SPAN).await;
    let used = cpu_ticks() - before;
    assert!(used <= IDLE_TICKS, "{used} ticks in {SPAN:?}");
}

/// CPU time of this process, user and system, in ticks of 10 ms (`proc(5)`, fields
/// 14 and 15 of `stat`).
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let (_, after_name) = stat.rsplit_once(')').expect("the name is in parentheses");
    let field = |number: usize| -> u64 {
        after_name
            .split_whitespace()
            .nth(number - 3)
            .and_then(|text| text.parse().ok())
            .expect("a number")
    };
    field(14) + field(15)
}
