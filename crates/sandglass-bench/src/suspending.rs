//! Measures how many handlers can be suspended in host calls at once, and how much memory each
//! takes.

use std::time::Duration;

use sandglass_host::{BuildError, Outcome, Settings};
use sandglass_telemetry::Telemetry;
use tokio::task::JoinSet;

use crate::bench_host::{BenchHost, LONG, one_thread};
use crate::figure::{Figure, Unit};
use crate::guests;
use crate::idling::pause;
use crate::process::{mappings, resident_bytes};
use crate::timing::Samples;
use crate::{Effort, Failure};

/// The number of suspended handlers that a host is expected to support.
const EXPECTED: u32 = 10_000;

/// The memory that each may take, in bytes.
const EACH_BYTES: f64 = (32 << 10) as f64;

/// The search for the ceiling ends here. With the default settings of Linux, such as
/// `vm.max_map_count`, the ceiling is much lower.
const LOOK_UP_TO: u32 = 80_000;

/// Mappings that an allocator may keep after a host is gone.
const MAPPINGS_SLACK: u64 = 500;

/// The result of suspending many handlers.
struct Suspended {
    count: u32,
    bytes_each: f64,
    /// Why there were not more; `None` if the host accepted all of them.
    refusal: Option<String>,
}

/// Measures the resident bytes of each of [`EXPECTED`] handlers, and how many more are possible.
pub(crate) fn measure(effort: Effort) -> Result<Figure, Failure> {
    let mut samples = Samples::default();
    for _ in 0..effort.of(1, 3) {
        let suspended = suspend(EXPECTED)?;
        if let Some(refusal) = suspended.refusal {
            return Err(format!("{} of {EXPECTED} were taken: {refusal}", suspended.count).into());
        }
        samples.push(suspended.bytes_each);
    }
    let figure = Figure { samples: u64::from(EXPECTED), ..Figure::of(&samples, Unit::Bytes) };
    let p50 = figure.p50;
    let (ceiling, refusal) = ceiling()?;
    let refusal = refusal.unwrap_or_else(|| "none".to_owned());
    Ok(figure.with("ceiling", ceiling).with("refusal", refusal).with_goal("p50", EACH_BYTES, p50))
}

/// Finds how many handlers were suspended when the host refused one more, and its reason.
fn ceiling() -> Result<(u32, Option<String>), Failure> {
    let mut most = EXPECTED;
    while most < LOOK_UP_TO {
        let suspended = suspend(most + most / 20)?;
        match suspended.refusal {
            None => most = suspended.count,
            Some(refusal) => return Ok((suspended.count.max(most), Some(refusal))),
        }
    }
    Ok((most, None))
}

/// Suspends `count` guests at once, or as many as the host accepts, and waits until their memory is
/// released.
fn suspend(count: u32) -> Result<Suspended, Failure> {
    let before = mappings()?;
    let suspended = suspend_at_once(count)?;
    // The host's threads end by themselves, and the last of them unmaps the pool.
    for _ in 0..500 {
        if mappings()? <= before + MAPPINGS_SLACK {
            break;
        }
        pause(Duration::from_millis(10));
    }
    Ok(suspended)
}

fn suspend_at_once(count: u32) -> Result<Suspended, Failure> {
    let settings = Settings { max_runs: count, max_runs_per_tenant: count, ..Settings::default() };
    let host = match BenchHost::with(settings, Telemetry::disabled(), guests::WAITS) {
        Ok(host) => host,
        Err(failure) if failure.is::<BuildError>() => {
            return Ok(Suspended { count: 0, bytes_each: 0.0, refusal: Some(failure.to_string()) });
        }
        Err(failure) => return Err(failure),
    };
    one_thread()?.block_on(async {
        let before = resident_bytes()?;
        let mut runs = JoinSet::new();
        for _ in 0..count {
            let host = host.clone();
            runs.spawn(async move { host.run(LONG).await });
        }
        // Either all guests wait in their host call, or one handler ends, which means that the host
        // refused it.
        let refusal = tokio::select! {
            all = host.waits.acquire_many(count) => {
                all?.forget();
                None
            }
            ended = runs.join_next() => match ended.ok_or("none was dispatched")?? {
                Ok(Outcome::Rejected(rejection)) => Some(rejection.message),
                Ok(other) => return Err(format!("a guest ended: {other:?}").into()),
                Err(refused) => Some(refused.to_string()),
            },
        };
        let held = match refusal {
            None => count,
            Some(_) => u32::try_from(host.waits.available_permits())?,
        };
        let added = resident_bytes()?.saturating_sub(before);
        drop(runs);
        host.inner.shutdown().await;
        Ok(Suspended { count: held, bytes_each: added as f64 / f64::from(held.max(1)), refusal })
    })
}
