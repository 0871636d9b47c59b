//! Runs one guest from its place in the queue to the dropped store, and says how
//! it went.
//!
//! ```text
//! queue --> begin the budget, arm the ticker --> instantiate --> call --> read the answer
//!                                                     |            |
//!                                                     +-- Stopped, trap, limit --+
//!                                                                                v
//!                                         drop the store and all it held --> report
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{
    Cancellation, CancelledBy, Cause, DeadlineReport, DispatchId, Failure, FailureKind,
    HandlerDeadlineExceeded, LimitBreach, LimitKind, Monotonic, Outcome, RejectionKind, RunReport,
    TimeSplit, TraceContext, Trap, TrapKind, WallTime,
};
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::{DispatchEnded, Level, Refusal};
use tokio::sync::Semaphore;
use wasmtime::{Instance, Store, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use crate::abi::{answer, guest_memory, wasi_preview1};
use crate::accounting::Accounting;
use crate::boundary::{self, Stopped};
use crate::capability::log::GuestLog;
use crate::capability::result::violation;
use crate::capability::{Grants, Guest};
use crate::deadline::StartedDeadline;
use crate::dispatch::Dispatch;
use crate::error::rejection;
use crate::host::Shared;
use crate::limiter::Limiter;
use crate::manifest::Integration;
use crate::sandbox::{Metering, Sandbox};
use crate::secret::Redactor;
use crate::store::{Phase, RunStore, StoppedAt, frames};
use crate::ticker::Ticker;

/// Size of a WebAssembly page, in bytes.
const PAGE_BYTES: u64 = 64 << 10;

/// Everything that a run needs, gathered before it is queued.
pub(crate) struct Execution {
    pub(crate) shared: Arc<Shared>,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) integration: Integration,
    pub(crate) dispatch: Dispatch,
    pub(crate) id: DispatchId,
    pub(crate) trace: TraceContext,
    pub(crate) span: Arc<Span>,
    pub(crate) queued_at: Monotonic,
    pub(crate) places: Arc<Semaphore>,
}

/// How a guest's code came back.
enum Ended {
    /// Its export returned.
    Answered(Outcome),
    /// Its export was never called: there was no place for its context.
    NotCalled(Outcome),
    Died(wasmtime::Error),
}

/// What is known of a run once its guest is off the CPU, before its store is gone.
struct Finished {
    outcome: Outcome,
    cause: Cause,
    stopped: Option<StoppedAt>,
}

/// Moments of a run, for the split of its time.
struct Moments {
    started: Monotonic,
    /// With the time in host functions until then.
    instantiated: Option<(Monotonic, Duration)>,
    /// When the guest's export returned; none where it never did.
    returned: Option<Monotonic>,
}

impl Execution {
    pub(crate) async fn run(self) -> RunReport {
        let queued = self.shared.telemetry.metrics.hold(Level::Queued);
        let place = self.place().await;
        drop(queued);
        let place = match place {
            Ok(place) => place,
            Err(cause) => return self.never_started(cause),
        };
        let queue = self.shared.clock.now().since(self.queued_at);
        if let Some(cause) = self.dispatch.run.cause() {
            return self.never_started(Some(cause));
        }
        self.report_pool();
        let report = self.start(queue).await;
        drop(place);
        self.report_pool();
        self.account(&report);
        report
    }

    /// Waits for a place to run.
    ///
    /// # Errors
    /// It waited too long, or was stopped meanwhile (then with the cause).
    async fn place(&self) -> Result<tokio::sync::OwnedSemaphorePermit, Option<Cause>> {
        let race = boundary::Race::new(&self.dispatch.run, &self.shared.clock);
        let acquire = Arc::clone(&self.places).acquire_owned();
        let patience =
            self.dispatch.schedule_to_start.unwrap_or_else(|| self.dispatch.deadline.budget());
        #[allow(clippy::disallowed_methods, reason = "the guest executor waits in real time")]
        let waited = tokio::time::timeout(patience, race.run(acquire)).await;
        match waited {
            Ok(Some(Ok(permit))) => Ok(permit),
            Ok(None) => Err(self.dispatch.run.cause()),
            Ok(Some(Err(_))) | Err(_) => Err(None),
        }
    }

    /// The report of a run whose guest never ran: stopped, or out of patience.
    fn never_started(&self, cause: Option<Cause>) -> RunReport {
        let waited = self.shared.clock.now().since(self.queued_at);
        let outcome = match cause {
            Some(cause) => self.cancelled(cause, None),
            None => Outcome::Rejected(rejection(
                RejectionKind::HostUnavailable,
                format!(
                    "handler could not start within {} ms; the host is too busy",
                    waited.as_millis()
                ),
            )),
        };
        let cause = self.dispatch.run.name(cause.unwrap_or(Cause::NotStarted));
        let split = TimeSplit { queue: micros(waited), ..self.split() };
        let metrics = &self.shared.telemetry.metrics;
        metrics.queue_wait(self.dispatch.entity.entity_type(), waited);
        if matches!(outcome, Outcome::Rejected(_)) {
            metrics.dispatch_refused(Refusal::QueueTimeout);
        }
        let report = RunReport {
            outcome,
            cause,
            time_split_us: split,
            ..self.report(None, self.dispatch.deadline.start(self.shared.clock.now()))
        };
        self.account(&report);
        report
    }

    async fn start(&self, queue: Duration) -> RunReport {
        let metrics = &self.shared.telemetry.metrics;
        let _live = metrics.hold(Level::LiveDispatches);
        let (entity_type, action) = (self.dispatch.entity.entity_type(), &*self.dispatch.action);
        metrics.queue_wait(entity_type, queue);

        let started_at = self.shared.clock.wall();
        let deadline = self.dispatch.deadline.start(self.shared.clock.now());
        self.dispatch.run.begin(&deadline);
        let armed = self.shared.ticker.arm(&self.dispatch.run);
        metrics.dispatch_started(entity_type, action, deadline.budget);

        let mut store = self.store(&deadline);
        let live_store = metrics.hold(Level::LiveStores);
        let in_flight = metrics.hold(Level::InFlight);
        let mut moments = Moments { started: deadline.start, instantiated: None, returned: None };
        let ended = on_cpu(&self.shared.ticker, self.call(&mut store, &mut moments)).await;
        let off_cpu = moments.returned.unwrap_or_else(|| self.shared.clock.now());
        drop((armed, in_flight));

        let finished = self.finish(&mut store, ended, off_cpu);
        let data = store.data_mut();
        if let Some((function, took)) = data.accounting.cut(off_cpu) {
            metrics.host_call(data.functions.name(function), took);
        }
        let host_calls = data.accounting.report(&data.functions);
        let in_host = data.accounting.total();
        let peak_memory_bytes = data.limiter.peak_memory_bytes();
        drop(store);
        drop(live_store);
        let teardown = self.shared.clock.now().since(off_cpu);

        let split = TimeSplit {
            queue: micros(queue),
            teardown: micros(teardown),
            ..self.time_split(&moments, off_cpu, in_host)
        };
        let (dying_span, backtrace) = match finished.stopped {
            Some(stopped) => (Some(stopped.dying_span), stopped.backtrace),
            None => (None, Vec::new()),
        };
        let mut report = RunReport {
            outcome: finished.outcome,
            cause: finished.cause,
            dying_span,
            backtrace,
            host_calls,
            time_split_us: split,
            peak_memory_bytes,
            ..self.report(Some(started_at), deadline)
        };
        self.measure(&mut report, &deadline, off_cpu);
        report
    }

    fn report_pool(&self) {
        let slots = self.shared.settings.max_runs as usize;
        let in_use = slots.saturating_sub(self.places.available_permits());
        self.shared.telemetry.metrics.pool(in_use, slots);
    }

    /// A store of its own for this run, with its deadline set before anything of
    /// the guest's can run in it.
    fn store(&self, deadline: &StartedDeadline) -> Store<RunStore> {
        let manifest = &self.integration.manifest;
        let compiled = &self.integration.compiled;
        let context: Arc<[u8]> =
            self.dispatch.context_json(self.id, self.trace, deadline.budget_ms()).into();
        let redactor = Redactor::default();
        let log = GuestLog::new(&manifest.name, self.id, self.trace, redactor.clone());
        let grants = Grants {
            destinations: manifest.destinations.clone(),
            secrets: Arc::clone(&manifest.secrets),
            http: Arc::clone(&self.shared.http),
            response_bytes: manifest.limits.response_bytes,
            host_call_timeout: self.shared.settings.host_call_timeout,
        };
        let wasi = compiled.imports_wasi.then(|| wasi_preview1::context(&log));
        let signals = self.dispatch.signals.clone();
        let mut store = Store::new(
            &self.sandbox.engine,
            RunStore {
                run: Arc::clone(&self.dispatch.run),
                clock: Arc::clone(&self.shared.clock),
                functions: Arc::clone(&self.sandbox.functions),
                phase: Phase::Instantiating,
                accounting: Accounting::default(),
                limiter: Limiter::new(&manifest.limits),
                stopped: None,
                guest: Guest::new(
                    context,
                    log,
                    redactor,
                    Arc::new(grants),
                    signals,
                    self.trace.to_string(),
                ),
                wasi,
                memory: None,
                span: Arc::clone(&self.span),
                call_span: Span::disabled(),
                metrics: self.shared.telemetry.metrics.clone(),
            },
        );
        store.limiter(|data| &mut data.limiter);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut context| {
            boundary::check(&mut context)?;
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        if let (Metering::Fuel, Some(fuel)) = (compiled.metering, manifest.limits.fuel) {
            store.set_fuel(fuel).expect("an engine that counts fuel takes some");
        }
        store
    }

    async fn call(&self, store: &mut Store<RunStore>, moments: &mut Moments) -> Ended {
        match self.try_call(store, moments).await {
            Ok(ended) => ended,
            Err(error) => Ended::Died(error),
        }
    }

    async fn try_call(
        &self,
        store: &mut Store<RunStore>,
        moments: &mut Moments,
    ) -> wasmtime::Result<Ended> {
        // A budget of nothing ends before the guest begins.
        boundary::check(&mut *store)?;
        let compiled = &self.integration.compiled;
        let instance = compiled.pre.instantiate_async(&mut *store).await?;
        if let Some(initialize) = &compiled.initialize {
            let initialize = instance
                .get_module_export(&mut *store, initialize)
                .and_then(wasmtime::Extern::into_func)
                .expect("its exports were checked when it was loaded");
            initialize.typed::<(), ()>(&*store)?.call_async(&mut *store, ()).await?;
        }
        moments.instantiated = Some((self.shared.clock.now(), store.data().accounting.total()));
        store.data_mut().phase = Phase::Running;

        let (ptr, len) = match self.place_context(store, &instance).await? {
            Ok(placed) => placed,
            Err(outcome) => return Ok(Ended::NotCalled(outcome)),
        };
        let run = instance
            .get_module_export(&mut *store, &compiled.run)
            .and_then(wasmtime::Extern::into_func)
            .expect("its exports were checked when it was loaded");
        let run = run.typed::<(i32, i32), i32>(&*store)?;
        let returned = run.call_async(&mut *store, (ptr, len)).await?;
        // The clock is read as the export returns: a success past the deadline is
        // none, and one before it stays one however long the rest takes.
        moments.returned = Some(boundary::check(&mut *store)?);
        let cause = self.dispatch.run.name(Cause::Returned);
        if cause != Cause::Returned {
            return Err(Stopped(cause).into());
        }
        Ok(Ended::Answered(self.read_answer(store, &instance, returned)))
    }

    /// Where the guest finds its context: in memory grown for it, unless it asks
    /// for it by itself.
    async fn place_context(
        &self,
        store: &mut Store<RunStore>,
        instance: &Instance,
    ) -> wasmtime::Result<Result<(i32, i32), Outcome>> {
        if self.integration.compiled.fetches_context {
            return Ok(Ok((0, 0)));
        }
        let context = store.data().guest.context();
        let len = i32::try_from(context.len())?;
        let memory = self.memory(store, instance);
        let at = memory.data_size(&*store);
        let pages = (context.len() as u64).div_ceil(PAGE_BYTES);
        if memory.grow_async(&mut *store, pages).await.is_err() {
            return Ok(Err(match store.data().limiter.denied() {
                Some(breach) => Outcome::Limit(breach.clone()),
                None => Outcome::Rejected(rejection(
                    RejectionKind::NeedsTooMuch,
                    format!("guest's memory has no room for its context of {len} bytes"),
                )),
            }));
        }
        memory.write(&mut *store, at, &context)?;
        Ok(Ok((u32::try_from(at)?.cast_signed(), len)))
    }

    fn memory(&self, store: &mut Store<RunStore>, instance: &Instance) -> wasmtime::Memory {
        instance
            .get_module_export(store, &self.integration.compiled.memory)
            .and_then(wasmtime::Extern::into_memory)
            .expect("its exports were checked when it was loaded")
    }

    /// The guest's answer: what it set, or what the pointer that it returned
    /// points to; exactly one of the two.
    fn read_answer(
        &self,
        store: &mut Store<RunStore>,
        instance: &Instance,
        returned: i32,
    ) -> Outcome {
        let pointed = returned > 0;
        let bytes = match (store.data().guest.result.is_set(), pointed) {
            (true, true) => Err(violation(
                FailureKind::MultipleSources,
                "the guest set its result and returned a pointer to one; do one of the two"
                    .to_owned(),
            )),
            (true, false) => store.data_mut().guest.result.take(),
            (false, true) => self.read_pointed(store, instance, returned).map(Some),
            (false, false) => Ok(None),
        };
        match bytes {
            Ok(Some(bytes)) => answer::outcome(&bytes, &store.data().guest.redactor),
            Ok(None) => Outcome::Failed(violation(
                FailureKind::AbsentResult,
                "the guest gave no result: it called no `host_set_result` and returned no pointer"
                    .to_owned(),
            )),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// The result of older guests: at the pointer, its length before it.
    fn read_pointed(
        &self,
        store: &mut Store<RunStore>,
        instance: &Instance,
        ptr: i32,
    ) -> Result<Vec<u8>, Failure> {
        let memory = self.memory(store, instance);
        let memory = memory.data(&*store);
        let outside = |unreadable: guest_memory::Unreadable| {
            violation(FailureKind::ResultOutOfBounds, unreadable.to_string())
        };
        let before = ptr.checked_sub(4).unwrap_or(-1);
        let length = guest_memory::slice(memory, "the length before the result", before, 4)
            .map_err(outside)?;
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        let allowed = self.integration.manifest.limits.response_bytes;
        let bytes = guest_memory::slice(memory, "the result", ptr, length.cast_signed())
            .map_err(outside)?;
        if u64::from(length) > allowed {
            return Err(violation(
                FailureKind::ResultTooLarge,
                format!("the result has {length} bytes, and {allowed} are allowed"),
            ));
        }
        Ok(bytes.to_vec())
    }

    /// What the end of the guest's code means: the first cause that was named
    /// decides.
    fn finish(&self, store: &mut Store<RunStore>, ended: Ended, now: Monotonic) -> Finished {
        let run = &self.dispatch.run;
        let error = match ended {
            Ended::Answered(outcome) => {
                let cause = run.name(Cause::Returned);
                return Finished { outcome, cause, stopped: None };
            }
            Ended::NotCalled(outcome) => {
                let cause = run.name(Cause::NotStarted);
                return Finished { outcome, cause, stopped: None };
            }
            Ended::Died(error) => error,
        };
        let stopped = error.downcast_ref::<Stopped>().map(|stopped| stopped.0);
        let cause = stopped.or_else(|| run.due(now)).unwrap_or_else(|| run.name(Cause::Trap));
        if cause == Cause::Trap {
            return self.died(store, &error);
        }
        let place = store.data_mut().stopped.take().unwrap_or_else(|| StoppedAt {
            dying_span: store.data().phase.own_span().to_owned(),
            backtrace: Vec::new(),
        });
        // A deadline's outcome is completed when everything is measured.
        let outcome = self.cancelled(cause, Some(place.dying_span.clone()));
        Finished { outcome, cause, stopped: Some(place) }
    }

    /// What it means that a guest died of itself.
    fn died(&self, store: &Store<RunStore>, error: &wasmtime::Error) -> Finished {
        let cause = Cause::Trap;
        if error.is::<wasmtime::PoolConcurrencyLimitError>() {
            // A place to run has a slot of each kind; a guest that wants more finds none.
            let message = format!("host has no slot left for what the module needs: {error}");
            let outcome = Outcome::Rejected(rejection(RejectionKind::HostUnavailable, message));
            return Finished { outcome, cause: Cause::NotStarted, stopped: None };
        }
        let data = store.data();
        let backtrace = error.downcast_ref::<WasmBacktrace>().map(frames).unwrap_or_default();
        let stopped = Some(StoppedAt { dying_span: data.present_span(), backtrace });
        let trap = trap(error);
        let outcome = if error.downcast_ref() == Some(&wasmtime::Trap::OutOfFuel) {
            let limit = self.integration.manifest.limits.fuel.unwrap_or(0);
            Outcome::Limit(LimitBreach {
                kind: LimitKind::WasmFuel,
                limit,
                observed: limit.saturating_add(1),
            })
        } else {
            match data.limiter.denied() {
                Some(breach) if follows_a_refusal(trap.kind) => Outcome::Limit(breach.clone()),
                _ => Outcome::Trapped(trap),
            }
        };
        Finished { outcome, cause, stopped }
    }

    fn cancelled(&self, cause: Cause, dying_span: Option<String>) -> Outcome {
        let by = match cause {
            Cause::StateLeft => CancelledBy::StateLeft,
            Cause::Shutdown | Cause::HostLost => CancelledBy::Shutdown,
            Cause::CallerGone => CancelledBy::Caller,
            _ => CancelledBy::Operator,
        };
        Outcome::Cancelled(Cancellation { by, reason: self.dispatch.run.reason(), dying_span })
    }

    /// Completes a report with what is known only when the guest is off the CPU.
    fn measure(&self, report: &mut RunReport, deadline: &StartedDeadline, off_cpu: Monotonic) {
        report.deadline = DeadlineReport {
            budget_ms: deadline.budget_ms(),
            elapsed_ms: deadline.elapsed_ms(off_cpu),
            overrun_us: deadline.overrun_us(off_cpu),
            owner: deadline.owner,
        };
        if matches!(report.cause, Cause::Deadline | Cause::ParentDeadline) {
            report.outcome = Outcome::TimedOut(Box::new(HandlerDeadlineExceeded {
                integration: self.integration.manifest.name.clone(),
                entity_type: self.dispatch.entity.entity_type().to_owned(),
                entity_id: self.dispatch.entity.id().to_owned(),
                action: self.dispatch.action.clone(),
                attempt: self.dispatch.attempt,
                budget_ms: report.deadline.budget_ms,
                elapsed_ms: report.deadline.elapsed_ms,
                overrun_us: report.deadline.overrun_us,
                owner: deadline.owner,
                dying_span: report.dying_span.clone().unwrap_or_default(),
                backtrace: report.backtrace.clone(),
                host_calls: report.host_calls.count,
                time_split_us: report.time_split_us,
                trace_id: self.trace.trace_id,
            }));
        }
    }

    fn time_split(&self, moments: &Moments, off_cpu: Monotonic, in_host: Duration) -> TimeSplit {
        let total = off_cpu.since(moments.started);
        // A run that never got past its instantiation spent all of it there.
        let (instantiate, rest, host_then) = match moments.instantiated {
            Some((at, host)) => (at.since(moments.started), off_cpu.since(at), host),
            None => (total, Duration::ZERO, in_host),
        };
        TimeSplit {
            instantiate: micros(instantiate.saturating_sub(host_then)),
            guest: micros(rest.saturating_sub(in_host.saturating_sub(host_then))),
            host: micros(in_host),
            ..self.split()
        }
    }

    fn split(&self) -> TimeSplit {
        TimeSplit { compile: micros(self.dispatch.compile), ..TimeSplit::default() }
    }

    /// What every report begins with.
    fn report(&self, started_at: Option<WallTime>, deadline: StartedDeadline) -> RunReport {
        RunReport {
            dispatch_id: self.id,
            trace: self.trace,
            module: Some(self.integration.compiled.hash),
            outcome: Outcome::Interrupted,
            cause: Cause::NotStarted,
            started_at,
            deadline: DeadlineReport {
                budget_ms: deadline.budget_ms(),
                owner: deadline.owner,
                ..DeadlineReport::default()
            },
            dying_span: None,
            backtrace: Vec::new(),
            host_calls: sandglass_model::HostCalls::default(),
            time_split_us: TimeSplit::default(),
            peak_memory_bytes: 0,
        }
    }

    fn account(&self, report: &RunReport) {
        let metrics = &self.shared.telemetry.metrics;
        let (entity_type, action) = (self.dispatch.entity.entity_type(), &*self.dispatch.action);
        let overrun = Duration::from_micros(report.deadline.overrun_us);
        metrics.dispatch_ended(&DispatchEnded {
            entity_type,
            action,
            outcome: report.outcome.kind(),
            budget: Duration::from_millis(report.deadline.budget_ms),
            duration: Duration::from_millis(report.deadline.elapsed_ms),
            overrun,
        });
        metrics.memory_peak(entity_type, report.peak_memory_bytes);
        if let Outcome::TimedOut(exceeded) = &report.outcome {
            metrics.deadline_exceeded(entity_type, action, &exceeded.dying_span);
            metrics.kill_latency(entity_type, overrun);
        }
        crate::attribution::describe(&self.span, report);
    }
}

/// Polls `guest` with its time on the CPU made known to the ticker.
async fn on_cpu<T>(ticker: &Ticker, guest: impl Future<Output = T>) -> T {
    let mut guest = pin!(guest);
    std::future::poll_fn(|context| {
        let _on_cpu = ticker.enter_cpu();
        guest.as_mut().poll(context)
    })
    .await
}

/// Whether a guest that was refused memory ends like this: by giving up, or by
/// touching what it didn't get.
fn follows_a_refusal(kind: TrapKind) -> bool {
    matches!(
        kind,
        TrapKind::Unreachable
            | TrapKind::MemoryOutOfBounds
            | TrapKind::TableOutOfBounds
            | TrapKind::Exit
            | TrapKind::UncaughtException
    )
}

fn trap(error: &wasmtime::Error) -> Trap {
    use wasmtime::Trap as T;
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        return Trap { kind: TrapKind::Exit, message: format!("guest exited with code {code}") };
    }
    if error.is::<wasmtime::ThrownException>() {
        let message = "guest threw an exception that nothing caught".to_owned();
        return Trap { kind: TrapKind::UncaughtException, message };
    }
    let Some(trap) = error.downcast_ref::<T>() else {
        // Only a host function answers another error: its arguments made no sense.
        let message = crate::store::printable(&format!("host call failed: {}", error.root_cause()));
        return Trap { kind: TrapKind::BadHostCall, message };
    };
    let kind = match trap {
        T::UnreachableCodeReached => TrapKind::Unreachable,
        T::StackOverflow => TrapKind::StackOverflow,
        T::MemoryOutOfBounds | T::HeapMisaligned | T::ArrayOutOfBounds => {
            TrapKind::MemoryOutOfBounds
        }
        T::TableOutOfBounds => TrapKind::TableOutOfBounds,
        T::IndirectCallToNull | T::BadSignature | T::NullReference => TrapKind::BadIndirectCall,
        T::IntegerOverflow | T::IntegerDivisionByZero | T::BadConversionToInteger => {
            TrapKind::Arithmetic
        }
        _ => TrapKind::Other,
    };
    Trap { kind, message: trap.to_string() }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
