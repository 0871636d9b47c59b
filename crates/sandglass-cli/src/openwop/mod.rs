//! The OpenWOP host: wires a journal, a host, a runtime and the protocol's interface
//! together, and follows signals until one ends it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sandglass_host::Host;
use sandglass_http::key::Digest;
use sandglass_http::{Serving, Tls, is_loopback_address, serve};
use sandglass_journal::Journal;
use sandglass_model::{Clock, SystemClock};
use sandglass_openwop::{LeftOut, Library, OpenWop, PackLimits, RunHandlers, Service, Settings};
use sandglass_runtime::Runtime;
use sandglass_telemetry::otlp::{self, Otlp};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry};
use tokio::signal::unix::{SignalKind, signal};

use crate::command::openwop::{Arguments, Bounds};
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::terminal::{Output, complain, note, tell};
use crate::tls::{TlsFiles, warn_of_plain_http};
use crate::up::{UPKEEP_EVERY, export_rest, journal};
use crate::wait::every;

/// Connections besides those of readers of events.
const CONNECTIONS_BESIDE: usize = 1_024;
/// How long nodes that are under way may take to end when the host is to.
const GRACE: Duration = Duration::from_secs(2);
/// How long answers may take then.
const ANSWERS_MAX: Duration = Duration::from_secs(5);
/// Nodes of packs that run at once. They don't run in the pool, so each maps its memory; what it
/// has at most is `--pack-memory-mib`.
const PACKS_AT_ONCE: u32 = 64;
/// Shortest key where clients come from elsewhere, in bytes: what can't be guessed over a
/// network in any time.
const KEY_MIN_BYTES: usize = sandglass_http::key::KEY_MIN_BYTES;

/// Runs the host to its end.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    // Before anything that takes time, so that no wish to end is lost.
    let mut interrupts = Interrupts::listen()?;
    let mut hangups = signal(SignalKind::hangup()).context("can't listen for SIGHUP")?;
    let up = tokio::select! {
        up = Up::start(arguments) => up?,
        _ = interrupts.next() => {
            tell("stopped before it listened; nothing was accepted");
            return Ok(Exit::Ok);
        }
    };
    let mut upkeep = every(UPKEEP_EVERY);
    loop {
        tokio::select! {
            _ = interrupts.next() => break,
            _ = hangups.recv() => up.reload(),
            _ = upkeep.tick() => up.exporter.upkeep(),
        }
    }
    let left = match arguments.journal {
        Some(_) => "runs that are under way go on with the next start",
        None => "its runs are gone, since there is no --journal",
    };
    tokio::select! {
        () = up.stop() => {
            tell(&format!("stopped; {left}"));
            Ok(Exit::Ok)
        }
        _ = interrupts.next() => {
            tell(&format!("ended at once; {left}"));
            Ok(Exit::Cancelled)
        }
    }
}

struct Up {
    interface: OpenWop,
    runtime: Runtime,
    serving: Serving,
    host: Host,
    exporter: Exporter,
    otlp: Option<Otlp>,
    /// What HTTPS is served with, and from which files.
    tls: Option<(Tls, TlsFiles)>,
}

impl Up {
    async fn start(arguments: &Arguments) -> anyhow::Result<Self> {
        let key = key(&arguments.api_key_env, arguments.listen)?;
        let settings = settings(&arguments.bounds);
        let tls = arguments.tls.files().map(|files| anyhow::Ok((Tls::new(files.read()?), files)));
        let tls = tls.transpose()?;
        if tls.is_none() {
            warn_of_plain_http(arguments.listen);
        }
        // The address before the journal: one that is taken must leave no trace there.
        let listener = sandglass_http::listen(arguments.listen)
            .with_context(|| format!("can't listen on {}", arguments.listen))?;
        let exporter = Exporter::new(Prefix::default());
        let metrics = exporter.metrics();
        let otlp = otlp::from_env(&metrics)?;
        let tracer = otlp.as_ref().map(Otlp::tracer).unwrap_or_default();
        let telemetry = Telemetry { metrics, tracer };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let host = Host::builder()
            .settings(host_settings(&settings))
            .clock(Arc::clone(&clock))
            .telemetry(telemetry.clone())
            .compile_in(arguments.compiling.helper())
            .build()
            .context("can't start the host")?;
        let journal = journal(arguments.journal.clone()).await?;
        let (packs, workflows) = (arguments.packs.as_deref(), arguments.workflows.as_path());
        let library = library(&host, workflows, packs, &settings).await?;
        let handlers = handlers(&host, &journal, &clock, library, settings);
        let runtime = Runtime::builder(Arc::clone(&journal))
            .clock(clock)
            .handlers(Arc::new(handlers.clone()))
            .telemetry(telemetry)
            .accounts_one_in(0)
            .ceilings(settings.ceilings())
            .specs(sandglass_openwop::specs())
            .build()
            .await?;
        let service = Service::start(runtime.clone(), &handlers).await?;
        let interface = OpenWop::new(service, key, exporter.clone());
        let http = sandglass_http::Settings {
            max_connections: settings.max_readers.saturating_add(CONNECTIONS_BESIDE),
            ..sandglass_http::Settings::default()
        };
        let serving = serve(listener, interface.router(), http, tls.clone().map(|(tls, _)| tls))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Output::new().line(format!("listening on {scheme}://{}", serving.local_addr()))?;
        Ok(Self { interface, runtime, serving, host, exporter, otlp, tls })
    }

    /// Reads the certificate again, if there is one. One that cannot be used leaves the old one.
    fn reload(&self) {
        let folders = "folders are read at the start only";
        let Some((tls, files)) = &self.tls else {
            return tell(&format!("nothing was reloaded: {folders}; start it again"));
        };
        match files.read() {
            Ok(settings) => {
                tls.replace(settings);
                tell(&format!("reloaded the certificate; {folders}"));
            }
            Err(error) => complain(&error.context("the old certificate remains in use")),
        }
    }

    async fn stop(self) {
        let Self { interface, runtime, serving, host, otlp, .. } = self;
        serving.stop_accepting();
        interface.close();
        runtime.shutdown(GRACE).await;
        host.shutdown().await;
        // Whoever takes the answer more slowly finds it in the journal.
        let _ = serving.drain(ANSWERS_MAX).await;
        export_rest(otlp).await;
    }
}

/// The bounds that the command line says.
pub(crate) fn settings(bounds: &Bounds) -> Settings {
    Settings {
        max_node_executions: bounds.max_node_executions.into(),
        max_run_duration: bounds.max_run_duration,
        max_loop_iterations: bounds.max_loop_iterations.into(),
        max_active_runs: bounds.max_active_runs as usize,
        packs: PackLimits {
            max_memory_bytes: u64::from(bounds.pack_memory_mib) << 20,
            max_execution: bounds.pack_execution,
            fuel: bounds.pack_fuel,
        },
        ..Settings::default()
    }
}

fn host_settings(settings: &Settings) -> sandglass_host::Settings {
    let usual = sandglass_host::Settings::default();
    let max_queued = usual.max_queued.max(settings.max_active_runs);
    sandglass_host::Settings {
        max_memory_bytes: settings.packs.max_memory_bytes.max(1 << 20),
        max_queued,
        max_on_demand: usual.max_on_demand.max(PACKS_AT_ONCE),
        // There is one tenant.
        max_queued_per_tenant: max_queued,
        ..usual
    }
}

/// The definitions and packs; what is left out is told.
pub(crate) async fn library(
    host: &Host,
    workflows: &Path,
    packs: Option<&Path>,
    settings: &Settings,
) -> anyhow::Result<Library> {
    let read = Library::read(host, workflows, packs, &settings.packs).await;
    let (library, left_out) = read.map_err(|(folder, error)| {
        anyhow::Error::new(error).context(format!("can't read the folder `{}`", folder.display()))
    })?;
    for LeftOut { file, why, .. } in left_out {
        for problem in why {
            note(&format!("left out `{}`: {problem}", file.display()));
        }
    }
    Ok(library)
}

pub(crate) fn handlers(
    host: &Host,
    journal: &Arc<dyn Journal>,
    clock: &Arc<dyn Clock>,
    library: Library,
    settings: Settings,
) -> RunHandlers {
    RunHandlers::new(host.clone(), Arc::clone(journal), Arc::clone(clock), library, settings)
}

/// The key that the variable holds. What is said of it never holds it.
pub(crate) fn key(variable: &str, listen: SocketAddr) -> anyhow::Result<Digest> {
    let text = std::env::var(variable)
        .with_context(|| format!("the environment has no `{variable}`, the key of clients"))?;
    let is_short = text.len() < KEY_MIN_BYTES;
    if !is_short || !is_loopback_address(listen.ip()) {
        return Digest::of_key(&text).with_context(|| format!("`{variable}` holds no key"));
    }
    anyhow::ensure!(
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()),
        "`{variable}` holds no key: it must have printable characters of ASCII, and no space"
    );
    note(&format!(
        "the key in `{variable}` has fewer than {KEY_MIN_BYTES} characters: enough on a loopback \
         address alone"
    ));
    Ok(Digest::of(&text))
}
