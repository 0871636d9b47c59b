//! The guarantees of a host with and without the kernel's features.

use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, KernelFeatures, Manifest, Outcome, Settings,
};

/// Traps if what it is about to write is there already: in its memory below and above what stays resident
/// in a slot, and in its table.
const LEAVES_TRACES: &str = r#"(module
    (memory (export "memory") 128)
    (table 64 funcref)
    (func $fill (param $at i32)
        (if (i32.load (local.get $at)) (then unreachable))
        (i32.store (local.get $at) (i32.const -1)))
    (elem declare func $fill)
    (func (export "run") (param i32 i32) (result i32)
        (call $fill (i32.const 0))
        (call $fill (i32.const 100000))
        (call $fill (i32.const 5000000))
        (call $fill (i32.const 8388604))
        (if (i32.eqz (ref.is_null (table.get (i32.const 7)))) (then unreachable))
        (table.set (i32.const 7) (ref.func $fill))
        i32.const 0))"#;

const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

fn host(kernel_features: KernelFeatures) -> Host {
    let settings = Settings { max_runs: 1, max_asking: 0, kernel_features, ..Settings::default() };
    Host::builder().settings(settings).build().expect("a host")
}

fn dispatch(budget_ms: u64) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(Duration::from_millis(budget_ms)))
}

#[tokio::test]
async fn each_instance_is_clean_and_each_spinner_killed_with_and_without_kernel_features() {
    for allowed in [KernelFeatures::ALL, KernelFeatures::NONE] {
        let host = host(allowed);
        let traces = host.load(LEAVES_TRACES.as_bytes(), Manifest::named("traces"));
        let spins = host.load(SPINS.as_bytes(), Manifest::named("spins"));
        let (traces, spins) = (traces.expect("a guest"), spins.expect("a guest"));
        // There is one slot, so each handler run gets what the previous one left.
        for _ in 0..10 {
            let outcome = host.dispatch(&traces, dispatch(60_000)).await.expect("it ran");
            assert!(matches!(outcome, Outcome::Failed(_)), "{allowed:?}: {outcome:?}");
            let outcome = host.dispatch(&spins, dispatch(5)).await.expect("it ran");
            assert!(matches!(outcome, Outcome::TimedOut(_)), "{allowed:?}: {outcome:?}");
        }
    }
}

#[test]
fn a_feature_that_is_not_allowed_is_not_used() {
    assert_eq!(host(KernelFeatures::NONE).kernel_features(), KernelFeatures::NONE);
    let without_scan = KernelFeatures { pagemap_scan: false, ..KernelFeatures::ALL };
    assert!(!host(without_scan).kernel_features().pagemap_scan);
    let used = host(KernelFeatures::ALL).kernel_features();
    // Every supported Linux has it.
    assert_eq!(used.timer_slack, cfg!(target_os = "linux"));
}
