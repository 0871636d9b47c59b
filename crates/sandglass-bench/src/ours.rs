//! The host as it is measured: with its default settings and without telemetry, where
//! nothing else is said.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, HostCall, HostError, HostFunction, Integration,
    Manifest, Outcome, Settings,
};
use sandglass_model::EntityRef;
use sandglass_telemetry::Telemetry;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Failure;

/// The embedder's own host function that never answers, by its interface and its name.
const NEVER: (&str, &str) = ("bench:waiting/never", "answer");

/// Longer than any guest takes that is to complete, or any measurement of those that aren't.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A host with one guest.
#[derive(Clone, Debug)]
pub(crate) struct Ours {
    pub(crate) host: Host,
    integration: Integration,
    entity: EntityRef,
    /// Has a permit for each call of [`NEVER`] that was begun.
    pub(crate) waits: Arc<Semaphore>,
}

impl Ours {
    pub(crate) fn new(guest: &str) -> Result<Self, Failure> {
        Self::with(Settings::default(), Telemetry::disabled(), guest)
    }

    /// The same, on so many threads.
    pub(crate) fn on_threads(threads: usize, guest: &str) -> Result<Self, Failure> {
        let settings = Settings { guest_threads: threads, ..Settings::default() };
        Self::with(settings, Telemetry::disabled(), guest)
    }

    pub(crate) fn with(
        settings: Settings,
        telemetry: Telemetry,
        guest: &str,
    ) -> Result<Self, Failure> {
        let waits = Arc::new(Semaphore::new(0));
        let begun = Arc::clone(&waits);
        let never = HostFunction::asynchronous(NEVER.0, NEVER.1, move |_: HostCall| {
            begun.add_permits(1);
            std::future::pending::<Result<(), HostError>>()
        });
        let host =
            Host::builder().settings(settings).telemetry(telemetry).function(never).build()?;
        let integration = load(&host, guest)?;
        Ok(Self { host, integration, entity: "Bench/1".parse()?, waits })
    }

    /// Another guest of the same host.
    pub(crate) fn also(&self, guest: &str) -> Result<Self, Failure> {
        Ok(Self { integration: load(&self.host, guest)?, ..self.clone() })
    }

    fn dispatch(&self, budget: Duration) -> Dispatch {
        Dispatch::new(self.entity.clone(), "Measure", Context::default())
            .deadline(DispatchDeadline::after(budget))
            // However crowded the host is, each begins: a budget of 1 ms would be its
            // patience, too.
            .schedule_to_start(LONG)
    }

    /// Dispatches the guest; answers how that ended.
    pub(crate) async fn run(&self, budget: Duration) -> Result<Outcome, Failure> {
        Ok(self.host.dispatch(&self.integration, self.dispatch(budget)).await?)
    }

    /// The same, in place on the caller's task; the guest has to complete.
    pub(crate) async fn complete_in_place(&self) -> Result<(), Failure> {
        match self.host.run_in_place(&self.integration, self.dispatch(LONG)).await?.outcome {
            Outcome::Completed(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Dispatches the guest, which has to complete.
    pub(crate) async fn complete(&self) -> Result<(), Failure> {
        match self.run(LONG).await? {
            Outcome::Completed(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Dispatches the guest, which has to be killed at its deadline; answers how long after
    /// that it was off the CPU, in nanoseconds.
    pub(crate) async fn kill(&self, budget: Duration) -> Result<f64, Failure> {
        match self.run(budget).await? {
            Outcome::TimedOut(exceeded) => Ok(exceeded.overrun_us as f64 * 1e3),
            other => Err(unexpected(&other)),
        }
    }

    /// Dispatches the guest `count` times over, each to be killed after `budget`, and begun
    /// again at once, until the set is dropped.
    pub(crate) fn keep_busy(&self, count: usize, budget: Duration) -> JoinSet<Failure> {
        let mut crowd = JoinSet::new();
        for _ in 0..count {
            let ours = self.clone();
            crowd.spawn(async move {
                loop {
                    if let Err(failure) = ours.kill(budget).await {
                        return failure;
                    }
                }
            });
        }
        crowd
    }
}

fn load(host: &Host, guest: &str) -> Result<Integration, Failure> {
    let never = format!("{}.{}", NEVER.0, NEVER.1);
    Ok(host.load(guest.as_bytes(), Manifest::named("bench").functions([never]))?)
}

fn unexpected(outcome: &Outcome) -> Failure {
    format!("the guest ended otherwise than meant: {outcome:?}").into()
}

/// The asynchronous runtime of an embedder who has one thread for all that waits.
pub(crate) fn one_thread() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// The same, of the kind that gives others tasks while its thread works: an answer that
/// comes meanwhile costs no system call. On that of [`one_thread`] each one does.
pub(crate) fn one_worker() -> Result<Runtime, Failure> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// The asynchronous runtime of an embedder who has a thread for each core.
pub(crate) fn a_thread_for_each_core() -> Result<Runtime, Failure> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
