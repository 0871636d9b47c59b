//! The daemon: wires a journal, a host, a runtime and its HTTP interface together, and
//! follows signals until one ends it.

mod config;
mod folder;
mod limits;
mod mounted;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sandglass_daemon::{Daemon, Modules, Parts, Serving, ShutdownProgress};
use sandglass_host::Host;
use sandglass_http::Tls;
use sandglass_journal::{Journal, MemoryJournal};
use sandglass_liveness::Retention;
use sandglass_model::{Clock, SystemClock};
use sandglass_openwop::OpenWop;
use sandglass_runtime::{Handlers, HostHandlers, Pruned, Runtime};
use sandglass_source::{Diagnostic, Finding};
use sandglass_telemetry::Telemetry;
use sandglass_telemetry::otlp::{self, Otlp, ShutdownReport};
use sandglass_telemetry::prometheus::Exporter;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::command::up::Arguments;
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::terminal::{Output, complain, tell};
use crate::tls::{TlsFiles, warn_of_plain_http};
use crate::wait::every;
use crate::{compiling, duration, journal_file};

use config::{Config, MetricsConfig};
use folder::Served;
use mounted::Mounted;

/// How often entities that have ended are looked for, where they are not to be kept: what is
/// to go is days old, mostly.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// How often observations of metrics are taken in while nobody scrapes them.
pub(crate) const UPKEEP_EVERY: Duration = Duration::from_secs(1);
/// How long the last spans may take to be exported.
const EXPORT_MAX: Duration = Duration::from_secs(2);
/// Most handlers that are named when they are stopped; the journal names all.
const NAMED_MAX: usize = 20;

/// All that is wrong in a configuration, of which nothing is done.
pub(crate) fn configuration(source: &str) -> Vec<Diagnostic> {
    Config::default().take_text(source, Path::new(""), &mut Vec::new())
}

/// Runs the daemon to its end.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    // Before anything that takes time, so that no wish to end is lost.
    let mut interrupts = Interrupts::listen()?;
    let mut hangups = signal(SignalKind::hangup()).context("can't listen for SIGHUP")?;
    let config = Config::read(arguments)?;
    let up = tokio::select! {
        up = Up::start(arguments, config) => up?,
        _ = interrupts.next() => {
            tell("stopped before it listened; nothing was accepted");
            return Ok(Exit::Ok);
        }
    };
    let mut upkeep = every(UPKEEP_EVERY);
    let mut pruning = every(PRUNE_EVERY);
    let mut pruner = JoinSet::new();
    // One at a time, beside the loop: compiling may take long, and a wish to end is heard
    // meanwhile. One that is overtaken by it goes on until the process ends.
    let mut reloading = JoinSet::new();
    loop {
        tokio::select! {
            _ = interrupts.next() => break,
            _ = hangups.recv(), if reloading.is_empty() => {
                tell("reloading");
                reloading.spawn(reload(
                    up.daemon.clone(),
                    up.tls.clone(),
                    up.config.clone(),
                    arguments.clone(),
                ));
            }
            Some(_) = reloading.join_next() => {}
            _ = upkeep.tick() => up.exporter.upkeep(),
            _ = pruning.tick() => {
                if let Some(retention) = up.config.retention.filter(|_| pruner.is_empty()) {
                    pruner.spawn(prune(up.daemon.runtime().clone(), retention));
                }
            }
            Some(_) = pruner.join_next() => {}
        }
    }
    tokio::select! {
        exit = up.stop() => Ok(exit),
        _ = interrupts.next() => {
            tell("ended at once; what was in flight is found as interrupted by the next start");
            Ok(Exit::Cancelled)
        }
    }
}

struct Up {
    config: Config,
    daemon: Daemon,
    serving: Serving,
    host: Host,
    exporter: Exporter,
    otlp: Option<Otlp>,
    openwop: Option<OpenWop>,
    tls: Option<Tls>,
}

impl Up {
    async fn start(arguments: &Arguments, config: Config) -> anyhow::Result<Self> {
        let Served { specs, modules, warnings } = folder::read(&arguments.specs, &config.secrets)?;
        limits::of_known_types(&config.ceilings, specs.iter().map(|spec| spec.name.as_str()))?;
        warnings.iter().for_each(|warning| tell(warning));
        let tls = config.tls.as_ref().map(TlsFiles::read).transpose()?.map(Tls::new);
        if tls.is_none() && !config.keys.is_empty() {
            warn_of_plain_http(config.listen);
        }
        // The address before the journal: one that is taken must leave no trace there.
        let listener = sandglass_http::listen(config.listen)
            .with_context(|| format!("can't listen on {}", config.listen))?;
        let MetricsConfig { prefix, scrape_max_bytes } = config.metrics.clone();
        let exporter = Exporter::with_scrape_limit(prefix, scrape_max_bytes);
        let metrics = exporter.metrics();
        let otlp = otlp::from_env(&metrics)?;
        let tracer = otlp.as_ref().map(Otlp::tracer).unwrap_or_default();
        let telemetry = Telemetry { metrics, tracer };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let most = modules.iter().map(|module| module.manifest.granted_limits().memory_bytes).max();
        let max_memory_bytes = config.host.max_memory_bytes.max(most.unwrap_or(0));
        let host = Host::builder()
            .settings(sandglass_host::Settings { max_memory_bytes, ..config.host.clone() })
            .clock(Arc::clone(&clock))
            .telemetry(telemetry.clone())
            .compile_in(compiling::helper(config.compiling))
            .build()
            .context("can't start the host")?;
        let journal = journal(config.journal.clone()).await?;
        let modules = Modules::open(modules, config.journal.as_deref().map(modules_beside))?;
        for (name, by) in modules.uploaded() {
            tell(&format!("module `{name}` is the version that `{by}` put, not the folder's"));
        }
        let handlers = HostHandlers::new(host.clone(), Arc::clone(&clock), modules.for_handlers())
            .recording(config.recording);
        handlers.compile().await;
        let mounted = Mounted::read(arguments, &host, &journal, &clock, &config).await?;
        let all_handlers: Arc<dyn Handlers> = match &mounted {
            Some(mounted) => Arc::new(mounted.handlers.clone().beside(Arc::new(handlers.clone()))),
            None => Arc::new(handlers.clone()),
        };
        let runtime = Runtime::builder(Arc::clone(&journal))
            .clock(Arc::clone(&clock))
            .handlers(all_handlers)
            .telemetry(telemetry)
            .accounts_one_in(config.accounts_one_in)
            .ceilings(mounted::ceilings(arguments, config.ceilings.clone()))
            .specs(specs.into_iter().chain(mounted::specs(arguments)))
            .build()
            .await?;
        let openwop = match mounted {
            Some(mounted) => Some(mounted.start(&runtime, &exporter).await?),
            None => None,
        };
        let parts = Parts {
            runtime,
            handlers,
            journal,
            exporter: exporter.clone(),
            clock,
            modules,
            operated_elsewhere: mounted::types(arguments),
        };
        let daemon = Daemon::new(parts, config.http.clone(), config.keys.clone());
        let beside = openwop.as_ref().map(OpenWop::beside).unwrap_or_default();
        let serving = daemon.serve_with(listener, beside, tls.clone())?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Output::new().line(format!("listening on {scheme}://{}", serving.local_addr()))?;
        Ok(Self { config, daemon, serving, host, exporter, otlp, openwop, tls })
    }

    async fn stop(self) -> Exit {
        let Self { config, serving, host, otlp, openwop, .. } = self;
        if let Some(openwop) = &openwop {
            openwop.close();
        }
        let grace = duration::told(config.grace);
        let unrecorded = serving.shutdown(config.grace, |draining| say(&draining, &grace)).await;
        host.shutdown().await;
        export_rest(otlp).await;
        if unrecorded.is_empty() {
            tell(match config.journal {
                Some(_) => "stopped; all outcomes are in the journal",
                None => "stopped; outcomes are lost, because there is no journal",
            });
            return Exit::Ok;
        }
        tell(&format!(
            "stopped; how {} handlers ended could not be recorded, and the next start finds them \
             as interrupted",
            unrecorded.len()
        ));
        Exit::Failed
    }
}

/// Exports the last spans, or says how many are lost.
pub(crate) async fn export_rest(otlp: Option<Otlp>) {
    let Some(otlp) = otlp else { return };
    let exported = tokio::task::spawn_blocking(move || otlp.shutdown(EXPORT_MAX)).await;
    if let Ok(ShutdownReport { lost, error: Some(error), .. }) = exported {
        tracing::warn!(%error, lost, "the last spans are lost");
    }
}

/// Removes what need not be kept, or says why not.
async fn prune(runtime: Runtime, retention: Retention) {
    match runtime.prune(retention).await {
        Ok(Pruned { entities: 0, .. }) => {}
        Ok(Pruned { entities, records }) => {
            tracing::info!(entities, records, "removed entities that have ended");
        }
        Err(error) => tracing::warn!(%error, "entities that have ended could not be removed"),
    }
}

/// Takes the folder, the configuration and the certificate as they are now, or says why not.
async fn reload(daemon: Daemon, tls: Option<Tls>, running: Config, arguments: Arguments) {
    let reloaded = async {
        let new = Config::read(&arguments)?;
        config::require_same(&running, &new)?;
        let certificate = new.tls.as_ref().map(TlsFiles::read).transpose()?;
        let Served { specs, modules, warnings } = folder::read(&arguments.specs, &new.secrets)?;
        limits::of_known_types(&new.ceilings, specs.iter().map(|spec| spec.name.as_str()))?;
        warnings.iter().for_each(|warning| tell(warning));
        let specs = specs.into_iter().chain(mounted::specs(&arguments)).collect();
        let ceilings = mounted::ceilings(&arguments, new.ceilings);
        daemon.reload(specs, modules, new.keys, ceilings).await?;
        if let (Some(tls), Some(certificate)) = (&tls, certificate) {
            tls.replace(certificate);
        }
        anyhow::Ok(())
    };
    match reloaded.await {
        Ok(()) => tell("reloaded"),
        Err(error) => complain(&error.context("nothing was reloaded, all goes on as before")),
    }
}

fn say(draining: &ShutdownProgress, grace: &str) {
    match draining {
        ShutdownProgress::Waiting { in_flight } => {
            tell(&format!(
                "accepting no more; {in_flight} handlers in flight have {grace} at most"
            ));
        }
        ShutdownProgress::Stopping { handlers } => {
            for (entity, run) in handlers.iter().take(NAMED_MAX) {
                tell(&format!("stopping `{}` of {entity} ({})", run.integration, run.dispatch));
            }
            if let Some(more) = handlers.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
                tell(&format!("stopping {more} more"));
            }
        }
    }
}

/// All that is wrong, a line each, with its place and what to do.
fn told(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let found = &finding.diagnostic;
        let help = found.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        let (path, line, column) = (finding.path.display(), found.line, found.column);
        format!("{path}:{line}:{column}: {}{help}", found.message)
    };
    findings.iter().map(line).collect::<Vec<_>>().join("; ")
}

pub(crate) async fn journal(path: Option<PathBuf>) -> anyhow::Result<Arc<dyn Journal>> {
    let Some(path) = path else {
        tell("without --journal all is in memory, and gone with this process");
        return Ok(Arc::new(MemoryJournal::new()));
    };
    let opening = tokio::task::spawn_blocking(move || journal_file::open(&path));
    Ok(Arc::new(opening.await?.context("--journal")?))
}

/// Where the modules that were put are kept.
fn modules_beside(journal: &Path) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(".modules");
    name.into()
}
