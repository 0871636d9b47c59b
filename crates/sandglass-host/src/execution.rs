//! Executes one guest, from its slot in the queue to the dropped store, and reports its end.
//!
//! ```text
//! queue --> begin the budget, arm the ticker --> instantiate --> call --> read the result
//!                                                     |            |            |
//!                                                     +-- Stopped, trap, limit  |
//!                                                                  v            v
//!                                              drop the store and all it held --> report
//! ```

mod templates;

use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use sandglass_model::report::micros;
use sandglass_model::{
    Cause, DeadlineReport, DispatchId, HandlerDeadlineExceeded, Limit, Monotonic, Outcome, Overrun,
    Rejection, RejectionKind, RunReport, TimeSplit, TraceContext, WallTime,
};
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::{DispatchEnded, DispatchMetrics, Level, Refusal};
use wasmtime::{Store, UpdateDeadline};

use crate::abi::{self, Called, Moments};
use crate::ending::{EndLocation, Ending, cancelled};
use crate::host::Shared;
use crate::integration::Integration;
use crate::limiter::Limiter;
use crate::mappings;
use crate::sandbox::{Concurrency, Metering};
use crate::store::RunStore;
use sandglass_supervisor::admission::{AdmittedDispatch, PermitWait};
use sandglass_supervisor::call_spans::CallSpans;
use sandglass_supervisor::capability::Guest;
use sandglass_supervisor::capability::cache::Scope;
use sandglass_supervisor::capability::context::{Facts, RunContext};
use sandglass_supervisor::capability::log::GuestLog;
use sandglass_supervisor::capability::run_telemetry::RunTelemetry;
use sandglass_supervisor::cpu_time::CpuTime;
use sandglass_supervisor::deadline::StartedDeadline;
use sandglass_supervisor::dispatch::Dispatch;
use sandglass_supervisor::executor::give_way;
use sandglass_supervisor::host_memory::HostMemory;
use sandglass_supervisor::in_flight::InFlight;
use sandglass_supervisor::node::{NodeCall, Work};
use sandglass_supervisor::notice::{About, Notice};
use sandglass_supervisor::origin::Origin;
use sandglass_supervisor::race::Race;
use sandglass_supervisor::recording::{
    Header, Invocation, Recorder, RecordingMode, RunRecording, SeenSecrets,
};
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::run::{Phase, Run};
use sandglass_supervisor::run_clock::RunClock;
use sandglass_supervisor::secret::Redactor;
use sandglass_supervisor::supervision::{self, Account, Supervision};
use sandglass_supervisor::template::Resolved;
use sandglass_supervisor::ticker::{self, TickerHealth};

/// How late a handler may end before the log names its module, in microseconds.
const OVERDUE_US: u64 = 1_000_000;

/// Everything that a handler run needs, gathered before it is queued.
pub(crate) struct Execution {
    pub(crate) shared: Arc<Shared>,
    /// The metrics of its entity type and action.
    pub(crate) metrics: DispatchMetrics,
    /// With the limits of the dispatch.
    pub(crate) integration: Integration,
    /// Why the dispatch is invalid, if it is.
    pub(crate) invalid: Option<Rejection>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) id: DispatchId,
    pub(crate) trace: TraceContext,
    pub(crate) span: Arc<Span>,
    pub(crate) queued_at: Monotonic,
    /// Set when the budget begins.
    pub(crate) began: OnceLock<StartedDeadline>,
    pub(crate) permit: PermitWait,
    /// Outlives the store, because dropping the last clone admits the next dispatch.
    pub(crate) slot: Arc<AdmittedDispatch>,
}

/// The context of a handler run, and its recording or replay.
struct Start {
    context: RunContext,
    redactor: Redactor,
    recording: RunRecording,
}

/// Why a handler did not start.
enum NotStarted {
    Invalid(Rejection),
    /// It was stopped before; its run has the cause.
    Stopped,
    WaitedTooLong,
    /// The deadline of the parent dispatch has passed.
    ParentExpired(StartedDeadline),
    TickerUnhealthy(TickerHealth),
    /// The process has too few memory mappings left.
    NoMappings,
}

/// What a handler has when it starts.
struct Permit {
    now: Monotonic,
    /// For its store.
    mappings: mappings::Reserved,
}

impl Execution {
    pub(crate) async fn run(mut self) -> RunReport {
        let permit = mem::take(&mut self.permit);
        let unfinished = Unfinished(Some(&self));
        let report = match self.wait_for_permit(permit).await {
            Ok(permit) => self.start(permit).await,
            Err(why) => self.report_not_started(&why),
        };
        unfinished.finish();
        self.account(&report);
        report
    }

    /// Waits until the handler may start, with a ticker that enforces its deadline.
    async fn wait_for_permit(&self, permit: PermitWait) -> Result<Permit, NotStarted> {
        if let Some(rejection) = &self.invalid {
            return Err(NotStarted::Invalid(rejection.clone()));
        }
        if !permit.is_over() {
            self.wait_for(permit).await?;
        }
        if self.dispatch.run.cause().is_some() {
            return Err(NotStarted::Stopped);
        }
        let now = self.shared.clock.now();
        match self.shared.ticker.health_at(now) {
            TickerHealth::Healthy => {
                let mappings = self.integration.compiled.reserve_mappings();
                mappings.map(|mappings| Permit { now, mappings }).ok_or(NotStarted::NoMappings)
            }
            unhealthy => Err(NotStarted::TickerUnhealthy(unhealthy)),
        }
    }

    async fn wait_for(&self, permit: PermitWait) -> Result<(), NotStarted> {
        let race = Race::new(&self.dispatch.run, &self.shared.clock);
        let now = self.shared.clock.now();
        let patience = self.patience();
        // A dispatch with a parent waits at most until the parent's deadline.
        let parent_remaining = self.dispatch.deadline.parent_has_left(now);
        let expired = self.dispatch.deadline.of_parent(self.queued_at);
        let expired = expired.filter(|_| parent_remaining <= patience);
        let patience = patience.min(parent_remaining);
        #[allow(clippy::disallowed_methods, reason = "the guest executor waits in real time")]
        match tokio::time::timeout(patience, race.run(permit.wait())).await {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(NotStarted::Stopped),
            Err(_) => Err(expired.map_or(NotStarted::WaitedTooLong, NotStarted::ParentExpired)),
        }
    }

    fn report_not_started(&self, why: &NotStarted) -> RunReport {
        let waited = self.shared.clock.now().since(self.queued_at);
        self.metrics.queue_wait(waited);
        if let NotStarted::ParentExpired(deadline) = why {
            return self.report_expired(deadline, waited);
        }
        let run = &self.dispatch.run;
        let (outcome, cause) = match (self.refusal(why, waited), run.set_cause(Cause::NotStarted)) {
            (Some(rejection), Cause::NotStarted) => {
                (Outcome::Rejected(rejection), Cause::NotStarted)
            }
            (_, cause) => (cancelled(run, cause, None), cause),
        };
        let is_too_late = matches!((why, cause), (NotStarted::WaitedTooLong, Cause::NotStarted));
        let overruns = is_too_late.then(|| self.started_too_late(waited));
        let deadline = self.dispatch.deadline.start(self.shared.clock.now());
        RunReport {
            outcome,
            cause,
            overruns: overruns.into_iter().collect(),
            ..self.queued_report(deadline, waited)
        }
    }

    /// Why the host refuses to start the handler; `None` if it does not.
    fn refusal(&self, why: &NotStarted, waited: Duration) -> Option<Rejection> {
        let metrics = &self.shared.telemetry.metrics;
        let message = match why {
            NotStarted::Invalid(rejection) => return Some(rejection.clone()),
            NotStarted::Stopped | NotStarted::ParentExpired(_) => return None,
            NotStarted::WaitedTooLong => {
                metrics.dispatch_refused(Refusal::QueueTimeout);
                let waited = waited.as_millis();
                format!("handler could not start within {waited} ms; the host is too busy")
            }
            NotStarted::TickerUnhealthy(health) => {
                metrics.dispatch_refused(Refusal::TickerUnhealthy);
                format!("the epoch ticker is not healthy ({health:?}), so no guest is started")
            }
            NotStarted::NoMappings => {
                "the process has too few memory mappings left for one more guest; allow fewer, or \
                 raise `vm.max_map_count`"
                    .to_owned()
            }
        };
        Some(rejection(RejectionKind::HostUnavailable, message))
    }

    /// The overrun of a handler that has `waited` longer than it may. Compiling the module counts.
    fn started_too_late(&self, waited: Duration) -> Overrun {
        let compile = self.dispatch.compile;
        let allowed = self.patience().saturating_add(compile);
        Overrun::once(Limit::ScheduleToStartTimeout, allowed, waited.saturating_add(compile))
    }

    /// How long the handler may wait for its start.
    fn patience(&self) -> Duration {
        self.dispatch.schedule_to_start.unwrap_or_else(|| self.dispatch.deadline.budget())
    }

    /// The report of a handler whose parent's deadline passed while it waited for its start. The
    /// report names instantiation as the dying span, because that would have come next.
    fn report_expired(&self, deadline: &StartedDeadline, waited: Duration) -> RunReport {
        let run = &self.dispatch.run;
        let cause = run.set_cause(Cause::ParentDeadline);
        let mut report = RunReport {
            outcome: cancelled(run, cause, None),
            cause,
            ..self.queued_report(*deadline, waited)
        };
        if cause == Cause::ParentDeadline {
            report.dying_span = Some(Phase::Instantiating.own_span().to_owned());
            self.measure(&mut report, deadline, self.shared.clock.now());
        }
        report
    }

    /// The report of a handler that spent all its time in the queue.
    fn queued_report(&self, deadline: StartedDeadline, waited: Duration) -> RunReport {
        let time_split_us = TimeSplit { queue: micros(waited), ..self.split() };
        let wall_us = time_split_us.total();
        RunReport { time_split_us, wall_us, ..self.report(None, deadline) }
    }

    /// Executes the guest, whose budget begins now.
    async fn start(&self, Permit { now, mappings }: Permit) -> RunReport {
        let metrics = &self.shared.telemetry.metrics;
        let queue = now.since(self.queued_at);
        let _live = metrics.hold_scoped(Level::LiveDispatches);
        self.metrics.queue_wait(queue);

        let started_at = self.shared.clock.wall();
        let deadline = self.begin_budget(now);
        let notice = self.notice(&deadline);
        let armed =
            self.shared.ticker.arm(&self.dispatch.run, notice.as_ref().and_then(Notice::wakes_at));
        self.metrics.started(deadline.budget);

        let templates = match self.replace_templates(now, notice.as_ref()).await {
            Ok(replaced) => replaced,
            Err(why) => return self.report_unresolved(why, started_at, &deadline, notice.as_ref()),
        };
        let mut store = self.store(&deadline, templates.resolved);
        let gone = Gone(&self.dispatch.run);
        let live_store = metrics.hold_scoped(Level::LiveStores);
        let (called, cpu) = self.call(&mut store, templates.until, notice.as_ref()).await;
        gone.has_returned();
        let moments = store.data().moments;
        let off_cpu = moments.returned.unwrap_or_else(|| self.shared.clock.now());
        if let Some(notice) = &notice {
            notice.close(off_cpu);
        }

        let fuel = self.integration.manifest.limits.fuel;
        let Ending { outcome, cause, end_location } = Ending::of(&mut store, called, off_cpu, fuel);
        let data = store.data_mut();
        let account = data.finish(deadline.start, off_cpu);
        let mut report = RunReport {
            outcome,
            cause,
            time_split_us: self.time_split(&account, &deadline, moments, off_cpu),
            host_calls: account.host_calls,
            overruns: account.overruns,
            story: account.story,
            recording: account.recording,
            cpu_us: micros(templates.cpu.saturating_add(cpu)),
            peak_memory_bytes: data.memory.limiter.peak_memory_bytes,
            peak_host_memory_bytes: data.guest().memory.peak(),
            telemetry_dropped: Some(data.guest().log.dropped()),
            ..self.report(Some(started_at), deadline)
        };
        // Whatever frees the guest's memory counts as teardown, and a handler that does not get past
        // it is overdue, so the ticker is disarmed only afterwards.
        drop(store);
        drop(armed);
        drop((live_store, mappings));
        let ended = self.shared.clock.now();
        report.time_split_us.queue = micros(queue);
        report.time_split_us.teardown = micros(ended.since(off_cpu));
        report.wall_us = self.wall_us(ended);
        if let Some(end_location) = end_location {
            self.locate_end(&mut report, end_location).await;
        }
        self.measure(&mut report, &deadline, off_cpu);
        report
    }

    /// Adds to the report where the run ended.
    async fn locate_end(&self, report: &mut RunReport, end: EndLocation) {
        report.dying_span = Some(end.dying.name);
        report.dying_call = end.dying.call;
        report.ended_at = Some(end.ended_at);
        let wait = self.shared.settings.symbols_wait;
        report.backtrace = self.integration.compiled.symbols.resolve(end.backtrace, wait).await;
    }

    fn begin_budget(&self, now: Monotonic) -> StartedDeadline {
        let deadline = *self.began.get_or_init(|| self.dispatch.deadline.start(now));
        self.dispatch.run.begin(&deadline);
        if let Some(before) = self.integration.manifest.soft_deadline {
            self.dispatch.run.warn_from(deadline.soft(before));
        }
        deadline
    }

    /// Calls the guest. Returns how the call ended, and its time on the CPU.
    async fn call(
        &self,
        store: &mut Store<RunStore>,
        now: Monotonic,
        notice: Option<&Notice<'_>>,
    ) -> (wasmtime::Result<Called>, Duration) {
        let _in_flight = self.shared.telemetry.metrics.hold_scoped(Level::InFlight);
        let work = (&self.integration.compiled.code, &self.dispatch.work);
        poll_on_cpu(&self.shared, now, notice, abi::call(work, store)).await
    }

    /// What is announced about the handler while it is executed. `None` for a replay, because the
    /// original handler run was announced.
    fn notice<'a>(&'a self, deadline: &'a StartedDeadline) -> Option<Notice<'a>> {
        if self.dispatch.is_replay() {
            return None;
        }
        let soft_before = self.integration.manifest.soft_deadline;
        let compiled = &self.integration.compiled;
        Some(Notice {
            run: &self.dispatch.run,
            span: &self.span,
            metrics: &self.metrics,
            functions: compiled.sandbox.functions_of(&compiled.code),
            deadline,
            at: soft_before.map_or_else(|| deadline.mostly_used(), |before| deadline.soft(before)),
            about: About {
                dispatch: self.id,
                trace: self.trace,
                integration: self.integration_name(),
                entity_type: self.dispatch.entity.entity_type(),
                action: &self.dispatch.action,
            },
        })
    }

    fn integration_name(&self) -> &str {
        self.dispatch.integration_name(&self.integration.manifest)
    }

    /// A store for this handler run alone. Its deadline is set before anything of the guest can be
    /// executed in it.
    fn store(&self, deadline: &StartedDeadline, resolved: Resolved) -> Store<RunStore> {
        let limits = &self.integration.manifest.limits;
        let compiled = &self.integration.compiled;
        let limiter = Limiter::of_run(
            limits,
            &compiled.state,
            Arc::clone(&self.dispatch.run),
            Arc::clone(&self.shared.clock),
        );
        let supervision = self.supervision(deadline, resolved);
        let mut data = RunStore::new(supervision, limiter);
        data.evaluation = Some(Arc::clone(&self.shared.evaluation));
        let mut store = Store::new(&compiled.sandbox.engine, data);
        store.limiter(|data| &mut data.memory.limiter);
        store.set_hostcall_fuel(HostMemory::call_bytes(limits.response_bytes));
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut context| {
            if context.data().in_flight().is_some() {
                let objects = context.concurrent_state_table_size();
                context.data_mut().charge_tasks(objects)?;
            }
            end_slice(context.data_mut())
        });
        if let (Metering::Fuel, Some(fuel)) = (compiled.sandbox.kind.target.metering, limits.fuel) {
            store.set_fuel(fuel).expect("the engine counts fuel");
        }
        store
    }

    fn supervision(&self, deadline: &StartedDeadline, resolved: Resolved) -> Supervision {
        let compiled = &self.integration.compiled;
        let Start { context, redactor, recording } = self.start_recording(deadline, resolved);
        let integration: Arc<str> = match &self.dispatch.integration {
            Some(name) => name.as_str().into(),
            None => Arc::clone(&self.integration.counts_as.name),
        };
        let metrics = &self.shared.telemetry.metrics;
        let owner = (self.tenant(), Arc::clone(&integration));
        let rates = Arc::clone(&self.shared.rates);
        let telemetry = Arc::new(RunTelemetry::new(owner, redactor, metrics.clone(), rates));
        let log = GuestLog::new(Arc::clone(&telemetry), (self.id, self.trace));
        let span_telemetry = self.span.is_recorded().then(|| Arc::clone(&telemetry));
        let cache = self.shared.cache.view(Scope {
            tenant: self.tenant(),
            integration,
            module: compiled.hash,
        });
        let guest = Guest::new(
            context,
            log,
            telemetry,
            Arc::clone(&self.integration.grants),
            (Arc::clone(&self.dispatch), self.id),
            (Arc::clone(&self.span), self.trace),
            cache,
        );
        let in_flight = self.in_flight(&recording);
        Supervision::new(supervision::Start {
            run: Arc::clone(&self.dispatch.run),
            clock: RunClock::new(Arc::clone(&self.shared.clock)),
            lease: self.shared.lease.clone(),
            ticker: Some(Arc::clone(&self.shared.ticker)),
            began: deadline.start,
            deadline: deadline.at,
            functions: Arc::clone(compiled.sandbox.functions_of(&compiled.code)),
            recording,
            spans: CallSpans::new(Arc::clone(&self.span), span_telemetry),
            in_flight,
            metrics: metrics.clone(),
            guest,
            origin: Some(Arc::new(Origin {
                dispatch: Arc::clone(&self.dispatch),
                manifest: Arc::clone(&self.integration.manifest),
                id: self.id,
                trace: self.trace,
                admitted: Arc::clone(&self.slot),
            })),
        })
    }

    /// The calls in flight of a guest that can have several; `None` for any other.
    fn in_flight(&self, recording: &RunRecording) -> Option<InFlight> {
        match (self.integration.compiled.sandbox.kind.target.concurrency, recording) {
            (Concurrency::OneCall, _) => None,
            (Concurrency::SeveralCalls, RunRecording::Replaying(replayer)) => {
                // What cannot be read is a divergence where the replay gets there.
                Some(InFlight::replaying(replayer.schedule().unwrap_or_default()))
            }
            (Concurrency::SeveralCalls, _) => Some(InFlight::new()),
        }
    }

    /// The tenant of the dispatch, which may differ from the one for which its slot was reserved.
    fn tenant(&self) -> Arc<str> {
        let (of_slot, tenant) = (self.slot.tenant(), self.dispatch.context.tenant.as_str());
        if **of_slot == *tenant { Arc::clone(of_slot) } else { tenant.into() }
    }

    /// The context of the handler run, from a recording that is replayed or from the dispatch.
    fn start_recording(&self, deadline: &StartedDeadline, resolved: Resolved) -> Start {
        if let RecordingMode::Replay(replayer) = &self.dispatch.recording_mode
            && let Some(replayer) = replayer.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let context = RunContext::from_json(Arc::clone(&replayer.context));
            let redactor = replayer.redactor.clone();
            return Start { context, redactor, recording: RunRecording::Replaying(replayer) };
        }
        let context = RunContext::new(Facts {
            dispatch: Arc::clone(&self.dispatch),
            id: self.id,
            trace: self.trace,
            remaining_ms: deadline.budget_ms(),
            module: Arc::clone(&self.integration.grants.integration),
            resolved: resolved.config,
        });
        let redactor = Redactor::default();
        resolved.secrets.values().for_each(|secret| redactor.hide(secret));
        let recording = match self.dispatch.recording_mode {
            RecordingMode::Record(limits) => {
                let mut seen = SeenSecrets::new(redactor.clone());
                resolved.secrets.iter().for_each(|(name, secret)| seen.add(name, secret));
                let header = self.recording_header(&context);
                let share = self.shared.recordings.share();
                RunRecording::Recording(Box::new(Recorder::new(limits, share, header, seen)))
            }
            RecordingMode::Off | RecordingMode::Replay(_) => RunRecording::Off,
        };
        Start { context, redactor, recording }
    }

    /// The beginning of a recording: what a replay has to give the guest.
    fn recording_header<'a>(&self, context: &'a RunContext) -> (Header, &'a [u8]) {
        let node = match &self.dispatch.work {
            Work::Invoke(NodeCall { index, request, .. }) => {
                Some(Invocation { index: *index, request: request.clone() })
            }
            Work::Handle | Work::Describe => None,
        };
        let context = if node.is_some() { &[] } else { &**context.json() };
        let (module, limits) = (self.integration.compiled.hash, self.integration.manifest.limits);
        let concurrency = self.integration.compiled.sandbox.kind.target.concurrency;
        let has_tasks = concurrency == Concurrency::SeveralCalls;
        (Header { module, limits, context: Vec::new(), node, has_tasks }, context)
    }

    /// Completes a report with its times, and turns the end by a deadline into its outcome.
    fn measure(&self, report: &mut RunReport, deadline: &StartedDeadline, off_cpu: Monotonic) {
        report.deadline = DeadlineReport {
            budget_ms: deadline.budget_ms(),
            elapsed_ms: deadline.elapsed_ms(off_cpu),
            overrun_us: deadline.overrun_us(off_cpu),
            owner: deadline.owner,
        };
        if report.deadline.overrun_us > OVERDUE_US {
            tracing::error!(
                module = %self.integration.compiled.hash,
                integration = self.integration_name(),
                dispatch = %self.id,
                overrun_us = report.deadline.overrun_us,
                dying_span = report.dying_span.as_deref().unwrap_or_default(),
                "a handler ended more than a second after its deadline"
            );
        }
        if matches!(report.cause, Cause::Deadline | Cause::ParentDeadline) {
            report.outcome = Outcome::TimedOut(Box::new(HandlerDeadlineExceeded {
                integration: self.integration_name().to_owned(),
                entity_type: self.dispatch.entity.entity_type().to_owned(),
                entity_id: self.dispatch.entity.id().to_owned(),
                action: self.dispatch.action.clone(),
                attempt: self.dispatch.attempt,
                budget_ms: report.deadline.budget_ms,
                elapsed_ms: report.deadline.elapsed_ms,
                overrun_us: report.deadline.overrun_us,
                owner: deadline.owner,
                dying_span: report.dying_span.clone().unwrap_or_default(),
                dying_call: report.dying_call.clone(),
                backtrace: report.backtrace.clone(),
                host_calls: report.host_calls.count,
                time_split_us: report.time_split_us,
                trace_id: self.trace.trace_id,
            }));
        }
    }

    /// How the time between the start of the budget and `off_cpu` was spent.
    fn time_split(
        &self,
        account: &Account,
        deadline: &StartedDeadline,
        moments: Moments,
        off_cpu: Monotonic,
    ) -> TimeSplit {
        let (host, host_then) = (account.in_host, account.in_host_while_instantiating);
        // A handler that did not get past its instantiation spent all of the time there.
        let instantiated = moments.instantiated.unwrap_or(off_cpu);
        let instantiate = instantiated.since(deadline.start).saturating_sub(host_then);
        let guest = off_cpu.since(instantiated).saturating_sub(host.saturating_sub(host_then));
        TimeSplit {
            instantiate: micros(instantiate),
            guest: micros(guest),
            host: micros(host),
            ..self.split()
        }
    }

    /// The time from the dispatch to `ended`, and the time to compile its module before.
    fn wall_us(&self, ended: Monotonic) -> u64 {
        micros(ended.since(self.queued_at).saturating_add(self.dispatch.compile))
    }

    fn split(&self) -> TimeSplit {
        TimeSplit { compile: micros(self.dispatch.compile), ..TimeSplit::default() }
    }

    /// A report with what is known of every dispatch.
    fn report(&self, started_at: Option<WallTime>, deadline: StartedDeadline) -> RunReport {
        RunReport {
            module: Some(self.integration.compiled.hash),
            allocation: Some(self.integration.allocation()),
            started_at,
            deadline: DeadlineReport {
                budget_ms: deadline.budget_ms(),
                owner: deadline.owner,
                ..DeadlineReport::default()
            },
            ..RunReport::new(self.id, self.trace, Outcome::Interrupted, Cause::NotStarted)
        }
    }

    fn account(&self, report: &RunReport) {
        self.integration.compiled.brief.note(report, self.shared.settings.brief_handler);
        let overrun = Duration::from_micros(report.deadline.overrun_us);
        self.metrics.ended(&DispatchEnded {
            outcome: report.outcome.kind(),
            budget: Duration::from_millis(report.deadline.budget_ms),
            duration: Duration::from_millis(report.deadline.elapsed_ms),
            overrun,
        });
        self.metrics.memory_peak(report.peak_memory_bytes);
        if let Outcome::TimedOut(exceeded) = &report.outcome {
            self.metrics.deadline_exceeded(&exceeded.dying_span);
            self.metrics.kill_latency(overrun);
        }
        if !self.dispatch.is_replay() {
            sandglass_supervisor::attribution::describe(&self.span, report, &self.dispatch.work);
        }
    }
}

/// If it is dropped while the guest is executed, the caller has gone, which what the store holds can see
/// when it is dropped afterwards.
struct Gone<'a>(&'a Run);

impl Gone<'_> {
    fn has_returned(self) {
        mem::forget(self);
    }
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.set_cause(if thread::panicking() { Cause::HostLost } else { Cause::CallerGone });
    }
}

/// A handler run that has not ended. If it is dropped before its end, it is still accounted for.
struct Unfinished<'a>(Option<&'a Execution>);

impl Unfinished<'_> {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Some(execution) = self.0 else { return };
        let (run, now) = (&execution.dispatch.run, execution.shared.clock.now());
        let (outcome, cause) = if thread::panicking() {
            (Outcome::Interrupted, Cause::HostLost)
        } else {
            let cause = run.set_cause(Cause::CallerGone);
            (cancelled(run, cause, None), cause)
        };
        let began = execution.began.get();
        let deadline = began.copied().unwrap_or_else(|| execution.dispatch.deadline.start(now));
        let wall_us = execution.wall_us(now);
        let mut report = RunReport { outcome, cause, wall_us, ..execution.report(None, deadline) };
        execution.measure(&mut report, &deadline, now);
        execution.account(&report);
    }
}

/// For this many slices, a handler takes precedence over older ones: one of a few milliseconds has
/// ended by then.
const YOUNG_SLICES: u64 = 4;

/// Decides how a guest continues in its own code when its time slice has ended. It ends if it must;
/// otherwise it yields to others. After a yield it is checked again before it continues (every second
/// slice), because a tick that came while others were executed, perhaps that of its own deadline, did
/// not interrupt it.
fn end_slice(store: &mut RunStore) -> wasmtime::Result<UpdateDeadline> {
    store.check()?;
    let slices = store.end_slice();
    let in_flight = store.in_flight().cloned();
    // A guest with tasks must not be taken for one that yields.
    let pause = |pause: Pin<Box<dyn Future<Output = ()> + Send>>| match in_flight {
        Some(in_flight) => Box::pin(in_flight.interrupted(pause)),
        None => pause,
    };
    let simulated = store.watch.ticker.as_ref().and_then(|ticker| ticker.simulated());
    Ok(if slices.is_multiple_of(2) {
        UpdateDeadline::Continue(1)
    } else if let Some(simulated) = simulated {
        let time = simulated.time_to_advance(slices, store.watch.unchecked_until);
        UpdateDeadline::YieldCustom(0, pause(Box::pin(ticker::wait(time))))
    } else if slices < YOUNG_SLICES {
        UpdateDeadline::YieldCustom(0, pause(Box::pin(tokio::task::yield_now())))
    } else {
        UpdateDeadline::YieldCustom(0, pause(Box::pin(give_way())))
    })
}

/// Polls `guest`, and counts its time on the CPU from `now`, when its store was made. The ticker knows
/// that it is on the CPU, and a `notice` that is due is sent.
async fn poll_on_cpu<T>(
    shared: &Shared,
    now: Monotonic,
    notice: Option<&Notice<'_>>,
    guest: impl Future<Output = T>,
) -> (T, Duration) {
    let mut guest = pin!(guest);
    let mut spent = CpuTime::from(now);
    let output = std::future::poll_fn(|context| {
        if let Some(notice) = notice {
            notice.send_if_due(|| shared.clock.now());
        }
        let _on_cpu = shared.ticker.enter_cpu();
        spent.of(&*shared.clock, || guest.as_mut().poll(context))
    });
    (output.await, spent.total())
}
