//! The measured host, with one guest. It has the default settings and no telemetry unless the
//! measurement states otherwise.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, FixedSecrets, Host, HostCall, HostError, HostFunction,
    Integration, Manifest, Outcome, Secret, Settings,
};
use sandglass_model::EntityRef;
use sandglass_telemetry::Telemetry;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Failure;

/// The interface and the name of the embedder's host function that never returns.
const NEVER: (&str, &str) = ("bench:waiting/never", "answer");

/// The secret that each guest is granted.
pub(crate) const SECRET: &str = "API_KEY";

/// Longer than any guest needs to complete, and longer than any measurement with guests that never
/// complete.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A host with one guest.
#[derive(Clone, Debug)]
pub(crate) struct BenchHost {
    pub(crate) inner: Host,
    integration: Integration,
    entity: EntityRef,
    context: Context,
    /// Has one permit for each started call of [`NEVER`].
    pub(crate) waits: Arc<Semaphore>,
}

impl BenchHost {
    pub(crate) fn new(guest: &str) -> Result<Self, Failure> {
        Self::with(Settings::default(), Telemetry::disabled(), guest)
    }

    /// Like [`Self::new`], with this number of guest threads.
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
        let (entity, context) = ("Bench/1".parse()?, Context::default());
        Ok(Self { inner: host, integration, entity, context, waits })
    }

    /// The same host and guest, dispatched with this context.
    pub(crate) fn with_context(&self, context: Context) -> Self {
        Self { context, ..self.clone() }
    }

    /// Loads another guest into the same host.
    pub(crate) fn with_guest(&self, guest: &str) -> Result<Self, Failure> {
        Ok(Self { integration: load(&self.inner, guest)?, ..self.clone() })
    }

    /// A dispatch of the guest with this budget.
    pub(crate) fn dispatch(&self, budget: Duration) -> Dispatch {
        Dispatch::new(self.entity.clone(), "Measure", self.context.clone())
            .deadline(DispatchDeadline::after(budget))
            // By default, the budget also bounds the wait in the queue. A handler with a budget
            // of 1 ms might then never begin on a crowded host, but all of them must begin.
            .schedule_to_start(LONG)
    }

    /// Dispatches the guest, and returns its outcome.
    pub(crate) async fn run(&self, budget: Duration) -> Result<Outcome, Failure> {
        Ok(self.inner.dispatch(&self.integration, self.dispatch(budget)).await?)
    }

    /// Dispatches the guest in place on the caller's task.
    ///
    /// # Errors
    /// The guest did not complete.
    pub(crate) async fn complete_in_place(&self) -> Result<(), Failure> {
        self.complete_dispatch(self.dispatch(LONG)).await
    }

    /// Executes a dispatch in place on the caller's task.
    ///
    /// # Errors
    /// The guest did not complete.
    pub(crate) async fn complete_dispatch(&self, dispatch: Dispatch) -> Result<(), Failure> {
        let report = self.inner.run_in_place(&self.integration, dispatch).await?;
        check_completed(&report.outcome)
    }

    /// Dispatches the guest.
    ///
    /// # Errors
    /// The guest did not complete.
    pub(crate) async fn complete(&self) -> Result<(), Failure> {
        check_completed(&self.run(LONG).await?)
    }

    /// Dispatches the guest, and returns how long after its deadline it left the CPU, in
    /// nanoseconds.
    ///
    /// # Errors
    /// The guest was not killed at its deadline.
    pub(crate) async fn kill(&self, budget: Duration) -> Result<f64, Failure> {
        match self.run(budget).await? {
            Outcome::TimedOut(exceeded) => Ok(exceeded.overrun_us as f64 * 1e3),
            other => Err(unexpected(&other)),
        }
    }

    /// Keeps `count` handlers in flight, until the set is dropped. Each is killed after `budget`,
    /// and dispatched again immediately.
    pub(crate) fn keep_busy(&self, count: usize, budget: Duration) -> JoinSet<Failure> {
        let mut crowd = JoinSet::new();
        for _ in 0..count {
            let host = self.clone();
            crowd.spawn(async move {
                loop {
                    if let Err(failure) = host.kill(budget).await {
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
    let secrets = [(SECRET.to_owned(), Secret::new("correct horse battery staple"))];
    let secrets: FixedSecrets = secrets.into_iter().collect();
    let manifest = Manifest::named("bench").functions([never]).secrets(Arc::new(secrets));
    Ok(host.load(guest.as_bytes(), manifest)?)
}

fn check_completed(outcome: &Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Completed(_) => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn unexpected(outcome: &Outcome) -> Failure {
    format!("the guest ended in an unexpected way: {outcome:?}").into()
}

/// The asynchronous runtime of an embedder with a single thread for all tasks.
pub(crate) fn one_thread() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// A runtime with one worker, which hands tasks to other threads while its own works: waking a task
/// from another thread then costs no system call. On the runtime of [`one_thread`], every such
/// wake-up costs one.
pub(crate) fn one_worker() -> Result<Runtime, Failure> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// The asynchronous runtime of an embedder with a thread for each core.
pub(crate) fn a_thread_for_each_core() -> Result<Runtime, Failure> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
