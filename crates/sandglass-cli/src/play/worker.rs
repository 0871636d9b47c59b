//! The worker: the runtime and the host of one scenario, in a process of their own
//! that does what it is told on standard input. It ends when that closes.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use sandglass_host::manifest::Found;
use sandglass_host::{Host, Manifest, Settings};
use sandglass_journal::{Around, Batch, Error, Journal, Opened, Pending, Positions, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::{Clock, Position, SystemClock};
use sandglass_runtime::{ActorError, HostHandlers, Module as Guest, Runtime, Signal};
use sandglass_source::Finding;
use sandglass_telemetry::otlp::{self, Otlp, Stopped};
use sandglass_telemetry::prometheus::{Exporter, Serving};
use sandglass_telemetry::{Prefix, Telemetry};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::watch;

use super::protocol::{Ask, Reply, Request, Start};
use super::wait::every;
use crate::exit::Exit;
use crate::scenario::Module;
use crate::terminal::unless_nobody_reads;
use crate::threads;
use sandglass_host::file;

/// How long an orderly stop waits for handlers to end: a handler is told, and a
/// host call is dropped at once.
const GRACE: Duration = Duration::from_secs(5);
/// How long the last spans may take to be exported.
const EXPORT_MAX: Duration = Duration::from_secs(2);
/// How often observations of metrics are taken in while nobody scrapes them.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);
/// Runs a worker until it is told to stop, or until its standard input closes.
pub(crate) fn execute() -> anyhow::Result<Exit> {
    let threads = threads::start(None)?;
    let done = threads.block_on(serve());
    // Reading standard input can't be cut short; nothing else is left to wait for.
    threads.shutdown_background();
    done.map(|()| Exit::Ok)
}

async fn serve() -> anyhow::Result<()> {
    let mut requests = BufReader::new(tokio::io::stdin()).lines();
    let Some(line) = requests.next_line().await? else { return Ok(()) };
    let start: Start = serde_json::from_str(&line).context("can't read what to start with")?;
    let worker = match Worker::start(start).await {
        Ok(worker) => worker,
        Err(error) => return say(&Reply::Failed { why: format!("{error:#}") }),
    };
    let stop = worker.obey(&mut requests).await?;
    worker.stop().await;
    stop.map_or(Ok(()), |id| say(&Reply::Done { id, text: None }))
}

/// A director that has gone away hears nothing; standard input has closed with it,
/// which ends the worker orderly.
fn say(reply: &Reply) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(&line).and_then(|()| stdout.flush());
    Ok(unless_nobody_reads(written)?)
}

struct Worker {
    runtime: Runtime,
    host: Host,
    exporter: Exporter,
    serving: Option<Serving>,
    otlp: Option<Otlp>,
    appended: watch::Receiver<Position>,
}

impl Worker {
    async fn start(start: Start) -> anyhow::Result<Self> {
        let exporter = Exporter::new(Prefix::default());
        let metrics = exporter.metrics();
        let otlp = otlp::from_env(&metrics)?;
        let tracer = otlp.as_ref().map(Otlp::tracer).unwrap_or_default();
        let telemetry = Telemetry { metrics, tracer };
        let serving = match start.metrics {
            Some(address) => {
                let serving = exporter.serve(address).await;
                Some(serving.with_context(|| format!("can't serve metrics at {address}"))?)
            }
            None => None,
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let guests = start.modules.iter().map(guest).collect::<anyhow::Result<Vec<_>>>()?;
        let host = Host::builder()
            .settings(settings(&guests))
            .clock(Arc::clone(&clock))
            .telemetry(telemetry.clone())
            .build()
            .context("can't start the host")?;
        let modules =
            guests.into_iter().map(|(name, manifest, bytes)| (name, Guest::new(bytes, manifest)));
        let handlers = HostHandlers::new(host.clone(), Arc::clone(&clock), modules);
        handlers.compile().await;
        let opened = tokio::task::spawn_blocking(move || {
            SqliteJournal::open(&start.journal, sandglass_journal::Settings::default())
        });
        let Opened { journal, recovered } = opened.await??;
        let (noticed, appended) = watch::channel(Position(0));
        let runtime = Runtime::builder(Arc::new(Noticing { journal, noticed }))
            .clock(clock)
            .handlers(Arc::new(handlers))
            .telemetry(telemetry)
            .specs(specs(&start.specs)?)
            .build()
            .await?;
        let recovered =
            recovered.iter().map(|torn| format!("position {}: {}", torn.position, torn.what));
        let metrics = serving.as_ref().map(Serving::local_addr);
        say(&Reply::Ready { metrics, recovered: recovered.collect() })?;
        Ok(Self { runtime, host, exporter, serving, otlp, appended })
    }

    /// Does what it is told. Answers the number of the request to stop, where there
    /// was one.
    async fn obey(&self, requests: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<Option<u64>> {
        let mut appended = self.appended.clone();
        // One for all rounds: a request a second must not put it off for ever.
        let mut upkeep = every(UPKEEP_EVERY);
        loop {
            tokio::select! {
                line = requests.next_line() => {
                    let Some(line) = line? else { return Ok(None) };
                    let request: Request = serde_json::from_str(&line)?;
                    if let Ask::Stop = request.ask {
                        return Ok(Some(request.id));
                    }
                    say(&self.answer(request).await)?;
                }
                Ok(()) = appended.changed() => {
                    let last = *appended.borrow_and_update();
                    say(&Reply::Appended { last })?;
                }
                _ = upkeep.tick() => self.exporter.upkeep(),
            }
        }
    }

    async fn answer(&self, request: Request) -> Reply {
        let id = request.id;
        let done = match request.ask {
            Ask::Create { entity } => self.runtime.create(entity).await.map(|_| None),
            Ask::Send { entity, action, params } => {
                let sent = async {
                    if let Err(ActorError::UnknownEntity(_)) = self.runtime.entity(&entity).await {
                        self.runtime.create(entity.clone()).await?;
                    }
                    self.runtime.send(&entity, &action, params).await
                };
                sent.await.map(|_| None)
            }
            Ask::Signal { entity, name, from, payload } => {
                self.runtime.signal(&entity, Signal { name, from, payload }).await.map(|()| None)
            }
            Ask::Cancel { entity, reason } => {
                self.runtime.cancel(&entity, None, &reason).map(|_| None)
            }
            Ask::Metrics => Ok(Some(self.exporter.render())),
            // Obeyed before it comes here.
            Ask::Stop => Ok(None),
        };
        match done {
            Ok(text) => Reply::Done { id, text },
            Err(error) => Reply::Refused { id, why: error.to_string() },
        }
    }

    async fn stop(self) {
        self.runtime.shutdown(GRACE).await;
        self.host.shutdown().await;
        if let Some(serving) = self.serving {
            serving.shutdown().await;
        }
        if let Some(otlp) = self.otlp {
            let exported = tokio::task::spawn_blocking(move || otlp.shutdown(EXPORT_MAX)).await;
            if let Ok(Stopped { lost, error: Some(error), .. }) = exported {
                tracing::warn!(%error, lost, "the last spans are lost");
            }
        }
    }
}

fn specs(files: &[crate::scenario::SpecFile]) -> anyhow::Result<Vec<Spec>> {
    let parsed = files.iter().map(|file| {
        // The director has told what is wrong with it, if anything.
        let spec = Spec::parse(&file.source).spec;
        spec.ok_or_else(|| anyhow!("spec `{}` can't be used", file.path.display()))
    });
    parsed.collect()
}

/// The host's usual bounds, and room for the module that is granted the most memory.
fn settings(modules: &[(String, Manifest, Vec<u8>)]) -> Settings {
    let defaults = Settings::default();
    let granted = modules.iter().map(|(_, manifest, _)| manifest.granted_limits().memory_bytes);
    let max_memory_bytes = granted.fold(defaults.max_memory_bytes, u64::max);
    Settings { max_memory_bytes, ..defaults }
}

/// A module's name, its grants and its bytes.
pub(crate) fn guest(module: &Module) -> anyhow::Result<(String, Manifest, Vec<u8>)> {
    let wrong = |finding: &Finding| anyhow!("module `{}`: {}", module.name, finding.diagnostic);
    let (manifest, bytes) = if module.is_manifest {
        let found = Found::read(&module.path)?;
        let manifest = module.manifest(&found);
        let manifest =
            manifest.map_err(|wrongs| wrongs.first().map_or_else(|| anyhow!(""), wrong))?;
        (manifest, found.module().map_err(|finding| wrong(&finding))?)
    } else {
        let manifest =
            module.bare_manifest().map_err(|why| anyhow!("module `{}`: {why}", module.name))?;
        let bytes = file::read(&module.path, manifest.module_max_bytes());
        (manifest, bytes.with_context(|| format!("module `{}`", module.name))?)
    };
    Ok((module.name.clone(), manifest, bytes))
}

/// A journal that tells how far it has come.
#[derive(Debug)]
struct Noticing {
    journal: SqliteJournal,
    noticed: watch::Sender<Position>,
}

impl Around for Noticing {
    fn inner(&self) -> &dyn Journal {
        &self.journal
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Box::pin(async move {
            let positions = self.journal.append(batch).await?;
            self.noticed.send_replace(positions.last);
            Ok(positions)
        })
    }
}
