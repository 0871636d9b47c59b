//! The worker: the runtime and the host of one scenario, in a process of its own. It takes commands
//! from standard input, and stops when that closes.

mod journal;
mod paused_time;
mod servers;

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{CompileHelper, Host, Manifest, Settings};
use sandglass_journal::{Journal, Opened, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_liveness::session::{LimitSettings, StatusView};
use sandglass_model::{Clock, Monotonic, Object, Position, StopCause, SystemClock};
use sandglass_runtime::{
    ActorError, HostHandlers, Module as Guest, NewEntity, Runtime, SessionResume, SessionStop,
    Signal, SimClock, SpecDecisions,
};
use sandglass_telemetry::otlp::{self, Otlp, ShutdownReport};
use sandglass_telemetry::prometheus::{Exporter, Serving};
use sandglass_telemetry::{Prefix, Telemetry};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::watch;

use crate::error::{Error, Result, with_causes};
use crate::file::Module;
use crate::protocol::{Command, Ready, Reply, Request, Start, VirtualTime, WorkerMessage};
use crate::wait::{every, pause};

use journal::{JournalSwitch, ReportingJournal};
use paused_time::{PausedTime, PausingJournal};
use servers::SimulatedServers;

/// How long handlers may take to end in an orderly stop. Host calls are dropped at once.
const GRACE: Duration = Duration::from_secs(5);
/// How long the export of the last spans may take.
const EXPORT_MAX: Duration = Duration::from_secs(2);
/// How often the observations of metrics are taken in if no client scrapes them.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

/// Runs a worker until its director stops it or goes away. Modules are compiled by `helper`. In real
/// time, the runtime runs on `threads`; virtual time needs a single thread.
///
/// # Errors
/// Errors if the first line of standard input cannot be read, if `threads` fails, and if a message of
/// the director is invalid.
pub fn execute(
    helper: CompileHelper,
    threads: impl FnOnce() -> io::Result<tokio::runtime::Runtime>,
) -> Result<()> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(());
    }
    let start: Start = serde_json::from_str(&line)
        .map_err(|why| Error::failed("the first line is invalid", &why))?;
    let threads = match start.virtual_time {
        Some(_) => {
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?
        }
        None => threads()?,
    };
    let done = threads.block_on(serve(start, helper));
    // A read of standard input cannot be cut short, and nothing else is left to wait for.
    threads.shutdown_background();
    done
}

async fn serve(start: Start, helper: CompileHelper) -> Result<()> {
    let mut requests = BufReader::new(tokio::io::stdin()).lines();
    let time = Time::starting_at(start.virtual_time.as_ref());
    let paused = time.pause();
    let worker = match Worker::start(start, time.clone(), helper).await {
        Ok(worker) => worker,
        Err(error) => return time.send(Reply::Failed { why: with_causes(&error) }),
    };
    let stop = worker.perform_commands(&mut requests, paused).await?;
    worker.stop().await;
    stop.map_or(Ok(()), |id| time.send(Reply::Done { id, text: None }))
}

/// The time that a worker lives in.
#[derive(Clone)]
struct Time {
    clock: Arc<dyn Clock>,
    /// If time is virtual: when the worker started, and what had elapsed of the scenario by then.
    virtual_from: Option<(Monotonic, u64)>,
}

impl Time {
    fn starting_at(virtual_time: Option<&VirtualTime>) -> Self {
        let clock: Arc<dyn Clock> = match virtual_time {
            Some(time) => Arc::new(SimClock::starting_at(time.wall)),
            None => Arc::new(SystemClock::new()),
        };
        let virtual_from = virtual_time.map(|time| (clock.now(), time.elapsed_ms));
        Self { clock, virtual_from }
    }

    /// Pauses virtual time until the result is dropped.
    fn pause(&self) -> Option<PausedTime> {
        self.virtual_from.map(|_| PausedTime::begin())
    }

    fn elapsed_ms(&self) -> Option<u64> {
        let (began, before_ms) = self.virtual_from?;
        let elapsed = self.clock.now().since(began).as_millis();
        Some(before_ms.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }

    /// Waits until so much virtual time has elapsed; does not wait in real time.
    async fn reach(&self, until_ms: u64) {
        let left_ms = self.elapsed_ms().map_or(0, |elapsed| until_ms.saturating_sub(elapsed));
        pause(Duration::from_millis(left_ms)).await;
    }

    fn send(&self, reply: Reply) -> Result<()> {
        write_message(&WorkerMessage { elapsed_ms: self.elapsed_ms(), reply })
    }
}

/// Writes a message. If the director is gone, that is no error: standard input is closed too, which
/// ends the worker in order.
fn write_message(message: &WorkerMessage) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(&line).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

struct Worker {
    time: Time,
    runtime: Runtime,
    host: Host,
    exporter: Exporter,
    serving: Option<Serving>,
    otlp: Option<Otlp>,
    appended: watch::Receiver<Position>,
    journal_switch: JournalSwitch,
}

impl Worker {
    async fn start(start: Start, time: Time, helper: CompileHelper) -> Result<Self> {
        let exporter = Exporter::new(Prefix::default());
        let metrics = exporter.metrics();
        let otlp = otlp::from_env(&metrics)?;
        let tracer = otlp.as_ref().map(Otlp::tracer).unwrap_or_default();
        let telemetry = Telemetry { metrics, tracer };
        let serving = match start.metrics {
            Some(address) => {
                let serving = exporter.serve(address).await;
                let what = format!("cannot serve metrics at {address}");
                Some(serving.map_err(Error::system(what))?)
            }
            None => None,
        };
        let clock = Arc::clone(&time.clock);
        let guests = start.modules.iter().map(Module::read).collect::<Result<Vec<_>>>()?;
        let host = Host::builder().settings(settings(&guests)).telemetry(telemetry.clone());
        let host = match start.virtual_time {
            Some(VirtualTime { servers, .. }) => host
                .simulated_clock(Arc::clone(&clock))
                .http_client(Arc::new(SimulatedServers(servers))),
            None => host.clock(Arc::clone(&clock)),
        };
        let host = host.spec_evaluator(Arc::new(SpecDecisions));
        let baseline_from = start.baseline_from.unwrap_or(u64::MAX);
        let helper = helper.limits(start.compiling).baseline_from(baseline_from);
        let host = host.compile_in(helper).build();
        let host = host.map_err(|why| Error::failed("cannot start the host", &why))?;
        let modules =
            guests.into_iter().map(|(name, manifest, bytes)| (name, Guest::new(bytes, manifest)));
        let handlers = HostHandlers::new(host.clone(), Arc::clone(&clock), modules);
        handlers.compile().await;
        let opened = tokio::task::spawn_blocking(move || {
            SqliteJournal::open(&start.journal, sandglass_journal::Settings::default())
        });
        let Opened { journal, recovered } = opened.await.map_err(io::Error::from)??;
        let journal: Box<dyn Journal> = match time.virtual_from {
            Some(_) => Box::new(PausingJournal(journal)),
            None => Box::new(journal),
        };
        let (sender, appended) = watch::channel(Position(0));
        let journal_switch = JournalSwitch::default();
        let journal =
            ReportingJournal { journal, appended: sender, switch: journal_switch.clone() };
        let runtime = Runtime::builder(Arc::new(journal))
            .clock(clock)
            .handlers(Arc::new(handlers))
            .telemetry(telemetry)
            .specs(specs(&start.specs)?)
            .build()
            .await?;
        let recovered =
            recovered.iter().map(|torn| format!("position {}: {}", torn.position, torn.what));
        let metrics = serving.as_ref().map(Serving::local_addr);
        time.send(Reply::Ready(Ready { metrics, recovered: recovered.collect() }))?;
        Ok(Self { time, runtime, host, exporter, serving, otlp, appended, journal_switch })
    }

    /// Performs the commands of the director, until it sends a stop, whose number is returned, or goes
    /// away. Virtual time passes only while a command is performed.
    async fn perform_commands(
        &self,
        requests: &mut Lines<BufReader<Stdin>>,
        mut paused: Option<PausedTime>,
    ) -> Result<Option<u64>> {
        let mut appended = self.appended.clone();
        // In virtual time only a command to advance may take notice of what was appended. Such a
        // request may be on its way, made by a director that has not read the records yet. If the
        // notice were taken before it arrives, time would pass over them.
        let is_real_time = self.time.virtual_from.is_none();
        // Created once: a command every second must not postpone the next tick forever.
        let mut upkeep = every(UPKEEP_EVERY);
        loop {
            tokio::select! {
                line = requests.next_line() => {
                    let Some(line) = line? else { return Ok(None) };
                    let Request { id, command } = serde_json::from_str(&line)?;
                    drop(paused.take());
                    let done = match command {
                        Command::Stop => return Ok(Some(id)),
                        Command::Advance { until_ms } => {
                            tokio::select! {
                                biased;
                                Ok(()) = appended.changed() => self.report_appended(&mut appended)?,
                                () = self.time.reach(until_ms) => {}
                            }
                            Ok(None)
                        }
                        command => self.perform(command).await,
                    };
                    paused = self.time.pause();
                    self.time.send(match done {
                        Ok(text) => Reply::Done { id, text },
                        Err(why) => Reply::Refused { id, why },
                    })?;
                }
                Ok(()) = appended.changed(), if is_real_time => {
                    self.report_appended(&mut appended)?;
                }
                _ = upkeep.tick() => self.exporter.upkeep(),
            }
        }
    }

    fn report_appended(&self, appended: &mut watch::Receiver<Position>) -> Result<()> {
        let last = *appended.borrow_and_update();
        self.time.send(Reply::Appended { last })
    }

    async fn perform(&self, command: Command) -> Result<Option<String>, String> {
        let runtime = &self.runtime;
        let done = match command {
            Command::Create { entity, limits } => {
                let limits = read_limits(&limits)?;
                runtime
                    .create_as(entity, NewEntity { limits, ..NewEntity::default() })
                    .await
                    .map(|_| None)
            }
            Command::Send { entity, action, params } => {
                let sent = async {
                    if let Err(ActorError::UnknownEntity(_)) = runtime.entity(&entity).await {
                        runtime.create(entity.clone()).await?;
                    }
                    runtime.send(&entity, &action, params).await
                };
                sent.await.map(|_| None)
            }
            Command::Signal { entity, name, from, payload } => {
                runtime.signal(&entity, Signal { name, from, payload }).await.map(|()| None)
            }
            Command::Cancel { entity, by, reason } => match runtime.session_status(&entity).await {
                Ok(None | Some(StatusView { run_seq: None, .. })) => {
                    runtime.cancel(&entity, None, &reason).await.map(|_| None)
                }
                Ok(Some(_)) => {
                    let cause = StopCause::Operator { by, reason };
                    let stop = SessionStop { run_seq: None, cause };
                    runtime.stop_session(&entity, stop).await.map(|_| None)
                }
                Err(error) => Err(error),
            },
            Command::Resume { entity, by, limits } => {
                let limits = read_limits(&limits)?;
                let resume =
                    SessionResume { by, reason: String::new(), expected_run: None, limits };
                runtime.resume_session(&entity, resume).await.map(|_| None)
            }
            Command::Session { entity } => match runtime.session_status(&entity).await {
                Ok(Some(view)) => {
                    return serde_json::to_string(&view).map(Some).map_err(|why| why.to_string());
                }
                Ok(None) => {
                    return Err(format!("{entity} is not a session, because nothing limits it"));
                }
                Err(error) => Err(error),
            },
            Command::Journal { works } => {
                self.journal_switch.set(works);
                Ok(None)
            }
            Command::Metrics => Ok(Some(self.exporter.render())),
            // `perform_commands` performs these.
            Command::Stop | Command::Advance { .. } => Ok(None),
        };
        done.map_err(|error| error.to_string())
    }

    async fn stop(self) {
        self.runtime.shutdown(GRACE).await;
        self.host.shutdown().await;
        if let Some(serving) = self.serving {
            serving.shutdown().await;
        }
        if let Some(otlp) = self.otlp {
            let exported = tokio::task::spawn_blocking(move || otlp.shutdown(EXPORT_MAX)).await;
            if let Ok(ShutdownReport { lost, error: Some(error), .. }) = exported {
                tracing::warn!(%error, lost, "the last spans are lost");
            }
        }
    }
}

fn read_limits(limits: &Object) -> Result<LimitSettings, String> {
    LimitSettings::of_request(limits).map_err(|bad| bad.to_string())
}

fn specs(files: &[crate::file::SpecFile]) -> Result<Vec<Spec>> {
    let parsed = files.iter().map(|file| {
        // The director has reported the errors of a spec before it starts a worker.
        let spec = Spec::parse(&file.source).spec;
        let path = file.path.display();
        spec.ok_or_else(|| Error::Failed(format!("the spec `{path}` has errors")))
    });
    parsed.collect()
}

/// The default settings, with enough memory for the module that is granted the most.
fn settings(modules: &[(String, Manifest, Vec<u8>)]) -> Settings {
    let defaults = Settings::default();
    let granted = modules.iter().map(|(_, manifest, _)| manifest.limits.memory_bytes);
    let max_memory_bytes = granted.fold(defaults.max_memory_bytes, u64::max);
    Settings { max_memory_bytes, ..defaults }
}
