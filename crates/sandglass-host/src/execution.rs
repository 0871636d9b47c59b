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

use std::mem;
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use sandglass_model::report::micros;
use sandglass_model::{
    Cause, DeadlineReport, DispatchId, HandlerDeadlineExceeded, HostCalls, Limit, Monotonic,
    Outcome, Overrun, RejectionKind, RunReport, Story, TimeSplit, TraceContext, WallTime,
};
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::{DispatchEnded, DispatchMetrics, Level, Refusal};
use wasmtime::{Store, UpdateDeadline};

use crate::abi::{self, Moments};
use crate::ending::{Ending, cancelled};
use crate::host::Shared;
use crate::integration::Integration;
use crate::limiter::Limiter;
use crate::mappings;
use crate::sandbox::Metering;
use crate::store::RunStore;
use sandglass_supervisor::admission::{Place, Turn};
use sandglass_supervisor::call_spans::CallSpans;
use sandglass_supervisor::capability::Guest;
use sandglass_supervisor::capability::cache::Scope;
use sandglass_supervisor::capability::context::{Facts, RunContext};
use sandglass_supervisor::capability::log::GuestLog;
use sandglass_supervisor::capability::speaker::Speaker;
use sandglass_supervisor::cpu_time::CpuTime;
use sandglass_supervisor::deadline::StartedDeadline;
use sandglass_supervisor::dispatch::Dispatch;
use sandglass_supervisor::executor::give_way;
use sandglass_supervisor::host_memory::HostMemory;
use sandglass_supervisor::node::{NodeCall, Work};
use sandglass_supervisor::notice::{About, Notice};
use sandglass_supervisor::origin::Origin;
use sandglass_supervisor::race::Race;
use sandglass_supervisor::recording::{Header, Invocation, Recorder, Tape, Taping};
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::run::Phase;
use sandglass_supervisor::run_clock::RunClock;
use sandglass_supervisor::secret::Redactor;
use sandglass_supervisor::supervision::{Account, Start, Supervision};
use sandglass_supervisor::ticker::{self, TickerHealth};

/// How late a run may end before the log names its module, in microseconds.
const OVERDUE_US: u64 = 1_000_000;

/// Everything that a run needs, gathered before it is queued.
pub(crate) struct Execution {
    pub(crate) shared: Arc<Shared>,
    /// What is measured of dispatches like this one.
    pub(crate) metrics: DispatchMetrics,
    pub(crate) integration: Integration,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) id: DispatchId,
    pub(crate) trace: TraceContext,
    pub(crate) span: Arc<Span>,
    pub(crate) queued_at: Monotonic,
    /// When the guest might run, and until when, once it may.
    pub(crate) began: OnceLock<StartedDeadline>,
    pub(crate) turn: Turn,
    /// The last owner lets the next dispatch start, so it outlives the store.
    pub(crate) place: Arc<Place>,
}

/// What a store begins with.
struct Begun {
    context: RunContext,
    redactor: Redactor,
    tape: Tape,
}

/// Why a run never began.
enum NeverBegan {
    /// Its run has the cause.
    Stopped,
    OutOfPatience,
    /// Whoever asked for it has nothing left.
    ParentExpired(StartedDeadline),
    TickerUnhealthy(TickerHealth),
    /// The process has too few memory mappings left.
    NoMappings,
}

impl Execution {
    pub(crate) async fn run(mut self) -> RunReport {
        let turn = mem::take(&mut self.turn);
        let unfinished = Unfinished(Some(&self));
        let report = match self.place(turn).await {
            Ok((now, mappings)) => self.start(now, mappings).await,
            Err(why) => self.never_began(&why),
        };
        unfinished.finish();
        self.account(&report);
        report
    }

    /// Waits for a place to run, with a ticker that keeps time; answers since when it has one.
    async fn place(&self, turn: Turn) -> Result<(Monotonic, mappings::Held), NeverBegan> {
        if !turn.has_come() {
            self.wait_for(turn).await?;
        }
        if self.dispatch.run.cause().is_some() {
            return Err(NeverBegan::Stopped);
        }
        let now = self.shared.clock.now();
        match self.shared.ticker.health_at(now) {
            TickerHealth::Healthy => {
                let mappings = self.integration.compiled.mappings();
                mappings.map(|held| (now, held)).ok_or(NeverBegan::NoMappings)
            }
            unhealthy => Err(NeverBegan::TickerUnhealthy(unhealthy)),
        }
    }

    async fn wait_for(&self, turn: Turn) -> Result<(), NeverBegan> {
        let race = Race::new(&self.dispatch.run, &self.shared.clock);
        let now = self.shared.clock.now();
        let patience = self.patience();
        // Nor does anybody wait past the deadline of whoever asked.
        let parent_has = self.dispatch.deadline.parent_has_left(now);
        let expired = self.dispatch.deadline.of_parent(self.queued_at);
        let expired = expired.filter(|_| parent_has <= patience);
        let patience = patience.min(parent_has);
        #[allow(clippy::disallowed_methods, reason = "the guest executor waits in real time")]
        match tokio::time::timeout(patience, race.run(turn.come())).await {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(NeverBegan::Stopped),
            Err(_) => Err(expired.map_or(NeverBegan::OutOfPatience, NeverBegan::ParentExpired)),
        }
    }

    fn never_began(&self, why: &NeverBegan) -> RunReport {
        let waited = self.shared.clock.now().since(self.queued_at);
        let metrics = &self.shared.telemetry.metrics;
        self.metrics.queue_wait(waited);
        let refused = match why {
            NeverBegan::ParentExpired(deadline) => return self.expired(deadline, waited),
            NeverBegan::Stopped => None,
            NeverBegan::OutOfPatience => {
                metrics.dispatch_refused(Refusal::QueueTimeout);
                let waited = waited.as_millis();
                Some(format!("handler could not start within {waited} ms; the host is too busy"))
            }
            NeverBegan::TickerUnhealthy(health) => {
                metrics.dispatch_refused(Refusal::TickerUnhealthy);
                Some(format!(
                    "the epoch ticker is not healthy ({health:?}), so no guest is started"
                ))
            }
            NeverBegan::NoMappings => Some(
                "the process has too few memory mappings left for one more guest; allow fewer, or \
                 raise `vm.max_map_count`"
                    .to_owned(),
            ),
        };
        let run = &self.dispatch.run;
        let (outcome, cause) = match (refused, run.name(Cause::NotStarted)) {
            (Some(message), Cause::NotStarted) => {
                let rejection = rejection(RejectionKind::HostUnavailable, message);
                (Outcome::Rejected(rejection), Cause::NotStarted)
            }
            (_, cause) => (cancelled(run, cause, None), cause),
        };
        let overruns = match (why, cause) {
            (NeverBegan::OutOfPatience, Cause::NotStarted) => {
                vec![self.started_too_late(waited)]
            }
            _ => Vec::new(),
        };
        let deadline = self.dispatch.deadline.start(self.shared.clock.now());
        let time_split_us = TimeSplit { queue: micros(waited), ..self.split() };
        let wall_us = time_split_us.total();
        RunReport {
            outcome,
            cause,
            overruns,
            time_split_us,
            wall_us,
            ..self.report(None, deadline)
        }
    }

    /// That it had to start within less than it has `waited`; compiling it counts, too.
    fn started_too_late(&self, waited: Duration) -> Overrun {
        let compile = self.dispatch.compile;
        let allowed = self.patience().saturating_add(compile);
        Overrun::once(Limit::ScheduleToStartTimeout, allowed, waited.saturating_add(compile))
    }

    /// How long it may wait for its place.
    fn patience(&self) -> Duration {
        self.dispatch.schedule_to_start.unwrap_or_else(|| self.dispatch.deadline.budget())
    }

    /// The report of a run whose asker's deadline came while it waited for its place. It died
    /// on the way to its instantiation, which is what its report names.
    fn expired(&self, deadline: &StartedDeadline, waited: Duration) -> RunReport {
        let run = &self.dispatch.run;
        let cause = run.name(Cause::ParentDeadline);
        let time_split_us = TimeSplit { queue: micros(waited), ..self.split() };
        let mut report = RunReport {
            outcome: cancelled(run, cause, None),
            cause,
            time_split_us,
            wall_us: time_split_us.total(),
            ..self.report(None, *deadline)
        };
        if cause == Cause::ParentDeadline {
            report.dying_span = Some(Phase::Instantiating.own_span().to_owned());
            self.measure(&mut report, deadline, self.shared.clock.now());
        }
        report
    }

    /// Runs the guest, whose budget begins `now`; its store has `mappings`.
    async fn start(&self, now: Monotonic, mappings: mappings::Held) -> RunReport {
        let metrics = &self.shared.telemetry.metrics;
        let queue = now.since(self.queued_at);
        let _live = metrics.hold_scoped(Level::LiveDispatches);
        self.metrics.queue_wait(queue);

        let started_at = self.shared.clock.wall();
        let deadline = *self.began.get_or_init(|| self.dispatch.deadline.start(now));
        self.dispatch.run.begin(&deadline);
        if let Some(before) = self.integration.manifest.soft_deadline {
            self.dispatch.run.warn_from(deadline.soft(before));
        }
        let notice = self.notice(&deadline);
        let armed =
            self.shared.ticker.arm(&self.dispatch.run, notice.as_ref().and_then(Notice::wakes_at));
        self.metrics.started(deadline.budget);

        let limits = self.integration.manifest.limits;
        let mut store = self.store(&deadline);
        let live_store = metrics.hold_scoped(Level::LiveStores);
        let in_flight = metrics.hold_scoped(Level::InFlight);
        let mut moments = Moments::default();
        let code = &self.integration.compiled.code;
        let work = (code, &self.dispatch.work);
        let call = abi::call(work, &mut store, limits.response_bytes, &mut moments);
        let (called, cpu) = on_cpu(&self.shared, now, notice.as_ref(), call).await;
        let off_cpu = moments.returned.unwrap_or_else(|| self.shared.clock.now());
        drop(in_flight);
        if let Some(notice) = &notice {
            notice.close(off_cpu);
        }

        let ending = Ending::of(&mut store, called, off_cpu, limits.fuel);
        let data = store.data_mut();
        let account = data.finish(deadline.start, off_cpu);
        let split = self.time_split(&account, &deadline, &moments, off_cpu);
        let peak_memory_bytes = data.limiter().peak_memory_bytes();
        let peak_host_memory_bytes = data.guest().memory.peak();
        let telemetry_dropped = Some(data.guest().telemetry_dropped());
        drop(store);
        // Until here, a run that does not end is overdue.
        drop(armed);
        drop((live_store, mappings));
        let ended = self.shared.clock.now();
        let teardown = ended.since(off_cpu);

        let ended_at = ending.place.as_ref().map(|place| place.ended_at);
        let (dying_span, backtrace) =
            ending.place.map(|place| (place.dying_span, place.backtrace)).unzip();
        let symbols = &self.integration.compiled.symbols;
        let wait = self.shared.settings.symbols_wait;
        let backtrace = symbols.resolve(backtrace.unwrap_or_default(), wait).await;
        let mut report = RunReport {
            outcome: ending.outcome,
            cause: ending.cause,
            dying_span,
            ended_at,
            backtrace,
            host_calls: account.host_calls,
            overruns: account.overruns,
            story: account.story,
            time_split_us: TimeSplit { queue: micros(queue), teardown: micros(teardown), ..split },
            wall_us: self.wall_us(ended),
            cpu_us: micros(cpu),
            peak_memory_bytes,
            peak_host_memory_bytes,
            telemetry_dropped,
            recording: account.recording,
            ..self.report(Some(started_at), deadline)
        };
        self.measure(&mut report, &deadline, off_cpu);
        report
    }

    /// What is told of the run while it runs, and when; nothing of one that was had before.
    fn notice<'a>(&'a self, deadline: &'a StartedDeadline) -> Option<Notice<'a>> {
        if self.dispatch.is_replay() {
            return None;
        }
        let warned_before = self.integration.manifest.soft_deadline;
        let compiled = &self.integration.compiled;
        Some(Notice {
            run: &self.dispatch.run,
            span: &self.span,
            metrics: &self.metrics,
            functions: compiled.sandbox.functions_of(&compiled.code),
            deadline,
            at: warned_before
                .map_or_else(|| deadline.mostly_used(), |before| deadline.soft(before)),
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

    /// A store of its own for this run, with its deadline set before anything of
    /// the guest's can run in it.
    fn store(&self, deadline: &StartedDeadline) -> Store<RunStore> {
        let manifest = &self.integration.manifest;
        let compiled = &self.integration.compiled;
        let Begun { context, redactor, tape } = self.tape(deadline);
        let integration: Arc<str> = match &self.dispatch.integration {
            Some(name) => name.as_str().into(),
            None => Arc::clone(&self.integration.counts_as.name),
        };
        let metrics = self.shared.telemetry.metrics.clone();
        let whose = (self.tenant(), Arc::clone(&integration));
        let rates = Arc::clone(&self.shared.rates);
        let speaker = Arc::new(Speaker::new(whose, redactor, metrics, rates));
        let log = GuestLog::new(Arc::clone(&speaker), (self.id, self.trace));
        let span = (Arc::clone(&self.span), self.trace);
        let heard = self.span.is_recorded().then(|| Arc::clone(&speaker));
        let call_spans = CallSpans::new(Arc::clone(&self.span), heard);
        let cache = self.shared.cache.view(Scope {
            tenant: self.tenant(),
            integration,
            module: compiled.hash,
        });
        let kept = (self.dispatch.streams.clone(), cache);
        let call_limits = self.dispatch.call_limits.clone();
        let grants = (Arc::clone(&self.integration.grants), call_limits);
        let signals = self.dispatch.signals.clone();
        let guest = Guest::new(context, log, speaker, grants, signals, span, kept);
        let limiter = Limiter::of_run(
            &manifest.limits,
            &compiled.state,
            Arc::clone(&self.dispatch.run),
            Arc::clone(&self.shared.clock),
        );
        let supervision = Supervision::new(Start {
            run: Arc::clone(&self.dispatch.run),
            clock: RunClock::new(Arc::clone(&self.shared.clock)),
            ticker: Arc::clone(&self.shared.ticker),
            began: deadline.start,
            deadline: deadline.at,
            functions: compiled.sandbox.functions(&compiled.code),
            tape,
            spans: call_spans,
            metrics: self.shared.telemetry.metrics.clone(),
            guest,
            origin: Arc::new(self.origin()),
        });
        let mut store = Store::new(&compiled.sandbox.engine, RunStore::new(supervision, limiter));
        store.limiter(|data| data.limiter_mut());
        store.set_hostcall_fuel(HostMemory::call_bytes(manifest.limits.response_bytes));
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut context| slice_ended(context.data_mut()));
        if let (Metering::Fuel, Some(fuel)) = (compiled.sandbox.kind.metering, manifest.limits.fuel)
        {
            store.set_fuel(fuel).expect("an engine that counts fuel takes some");
        }
        store
    }

    /// The tenant of the dispatch, which may not be the one that its place was reserved for.
    fn tenant(&self) -> Arc<str> {
        let (of_place, tenant) = (self.place.tenant(), self.dispatch.context.tenant.as_str());
        if **of_place == *tenant { Arc::clone(of_place) } else { tenant.into() }
    }

    /// What the run is given, and what becomes of its recording.
    fn tape(&self, deadline: &StartedDeadline) -> Begun {
        if let Taping::Play(player) = &self.dispatch.taping
            && let Some(player) = player.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let context = RunContext::made(Arc::clone(&player.context));
            let redactor = player.redactor.clone();
            return Begun { context, redactor, tape: Tape::Playing(player) };
        }
        let context = RunContext::of(Facts {
            dispatch: Arc::clone(&self.dispatch),
            id: self.id,
            trace: self.trace,
            remaining_ms: deadline.budget_ms(),
        });
        let redactor = Redactor::default();
        let tape = match self.dispatch.taping {
            Taping::Record(limits) => {
                let node = match &self.dispatch.work {
                    Work::Invoke(NodeCall { index, request, .. }) => {
                        Some(Invocation { index: *index, request: request.clone() })
                    }
                    Work::Handle | Work::Describe => None,
                };
                let header = Header {
                    module: self.integration.compiled.hash,
                    limits: self.integration.manifest.limits,
                    context: node.as_ref().map_or_else(|| context.json().to_vec(), |_| Vec::new()),
                    node,
                };
                let share = self.shared.recordings.share();
                Tape::Recording(Box::new(Recorder::new(limits, share, &header, redactor.clone())))
            }
            Taping::Off | Taping::Play(_) => Tape::Off,
        };
        Begun { context, redactor, tape }
    }

    fn origin(&self) -> Origin {
        Origin {
            dispatch: Arc::clone(&self.dispatch),
            manifest: Arc::clone(&self.integration.manifest),
            id: self.id,
            trace: self.trace,
            place: Arc::clone(&self.place),
        }
    }

    /// Completes a report with what is known only when the guest is off the CPU.
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
                backtrace: report.backtrace.clone(),
                host_calls: report.host_calls.count,
                time_split_us: report.time_split_us,
                trace_id: self.trace.trace_id,
            }));
        }
    }

    /// Where the time between the start of the budget and `off_cpu` went.
    fn time_split(
        &self,
        account: &Account,
        deadline: &StartedDeadline,
        moments: &Moments,
        off_cpu: Monotonic,
    ) -> TimeSplit {
        let (host, host_then) = (account.in_host, account.in_host_while_instantiating);
        // A run that never got past its instantiation spent all of it there.
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

    /// From the dispatch to `ended`, and what was compiled for it before.
    fn wall_us(&self, ended: Monotonic) -> u64 {
        micros(ended.since(self.queued_at).saturating_add(self.dispatch.compile))
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
            allocation: Some(self.integration.allocation()),
            outcome: Outcome::Interrupted,
            cause: Cause::NotStarted,
            started_at,
            deadline: DeadlineReport {
                budget_ms: deadline.budget_ms(),
                owner: deadline.owner,
                ..DeadlineReport::default()
            },
            dying_span: None,
            ended_at: None,
            backtrace: Vec::new(),
            host_calls: HostCalls::default(),
            overruns: Vec::new(),
            story: Story::default(),
            time_split_us: TimeSplit::default(),
            wall_us: 0,
            cpu_us: 0,
            peak_memory_bytes: 0,
            peak_host_memory_bytes: 0,
            telemetry_dropped: None,
            recording: None,
        }
    }

    fn account(&self, report: &RunReport) {
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
            sandglass_supervisor::attribution::describe(&self.span, report);
        }
    }
}

/// A run under way. Where it is dropped before its end, it is accounted for all the same.
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
            let cause = run.name(Cause::CallerGone);
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

/// For how many slices a run goes before those that are older, once new ones had their turn: a
/// handler of a few milliseconds is done by then.
const YOUNG_SLICES: u64 = 4;

/// What becomes of a guest in its own code when its slice has ended: it is ended where it
/// must be, or lets others run and is looked at once more before it goes on. A tick that
/// comes while others run is lost on it, and it might be the one of its deadline.
fn slice_ended(store: &mut RunStore) -> wasmtime::Result<UpdateDeadline> {
    store.check()?;
    let slices = store.end_slice();
    let simulated = store.ticker().and_then(|ticker| ticker.simulated());
    Ok(if slices.is_multiple_of(2) {
        UpdateDeadline::Continue(1)
    } else if let Some(simulated) = simulated {
        let time = simulated.goes_on(slices, store.unchecked_until());
        UpdateDeadline::YieldCustom(0, Box::pin(ticker::wait(time)))
    } else if slices < YOUNG_SLICES {
        UpdateDeadline::YieldCustom(0, Box::pin(tokio::task::yield_now()))
    } else {
        UpdateDeadline::YieldCustom(0, Box::pin(give_way()))
    })
}

/// Polls `guest` with its time on the CPU made known to the ticker, and counted from `now`,
/// when its store was begun; and tells the `notice` that is due.
async fn on_cpu<T>(
    shared: &Shared,
    now: Monotonic,
    notice: Option<&Notice<'_>>,
    guest: impl Future<Output = T>,
) -> (T, Duration) {
    let mut guest = pin!(guest);
    let mut spent = CpuTime::from(now);
    let answer = std::future::poll_fn(|context| {
        if let Some(notice) = notice {
            notice.send_if_due(|| shared.clock.now());
        }
        let _on_cpu = shared.ticker.enter_cpu();
        spent.of(&*shared.clock, || guest.as_mut().poll(context))
    });
    (answer.await, spent.total())
}
