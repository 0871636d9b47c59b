//! The OpenWOP host: workflows over HTTP.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{CompileHelper, Host, Lease};
use sandglass_http::key::{Digest, KEY_MIN_BYTES};
use sandglass_http::{Serving, Tls, is_loopback_address, serve};
use sandglass_journal::{Checking, Journals};
use sandglass_openwop::{LeftOut, Library, OpenWop, RunHandlers, Service, Settings};
use sandglass_postgres::Database;
use sandglass_runtime::Runtime;
use sandglass_telemetry::Prefix;
use sandglass_telemetry::prometheus::Exporter;

use crate::base::{Base, listen};
use crate::error::{Error, Result};
use crate::journal::{JournalPlace, Opened};
use crate::tls::{TlsFiles, warn_of_plain_http};
use crate::{Report, Server, Stopped, journal};

/// Connections besides those of clients that read events.
const CONNECTIONS_BESIDE: usize = 1_024;
/// How long nodes in flight may take to end when the host stops.
const GRACE: Duration = Duration::from_secs(2);
/// How long responses may take after that.
const ANSWERS_MAX: Duration = Duration::from_secs(5);
/// Nodes of packs that execute at once. They do not execute in the pool, so each maps its memory,
/// which `--pack-memory-mib` bounds.
const PACKS_AT_ONCE: u32 = 64;

/// What an OpenWOP host is started with.
#[derive(Clone, Debug)]
pub struct OpenWopOptions {
    /// The folder of workflow definitions.
    pub workflows: PathBuf,
    /// The folder of node packs.
    pub packs: Option<PathBuf>,
    /// Where to listen.
    pub listen: SocketAddr,
    /// The environment variable with the key of clients.
    pub api_key_env: String,
    /// Where the journal is.
    pub journal: Option<JournalPlace>,
    /// The files for HTTPS.
    pub tls: Option<TlsFiles>,
    /// The bounds of runs and packs.
    pub settings: Settings,
    /// The program that compiles modules.
    pub compile_helper: CompileHelper,
}

/// An OpenWOP host that runs.
pub struct OpenWopServer {
    options: OpenWopOptions,
    interface: OpenWop,
    runtime: Runtime,
    serving: Serving,
    base: Base,
    database: Option<Database>,
    report: Report,
}

impl fmt::Debug for OpenWopServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenWopServer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl OpenWopServer {
    /// Starts the host: reads the folders, and listens.
    ///
    /// # Errors
    /// Errors if a folder cannot be read, and if the key, the address, the journal or a resource of
    /// the operating system cannot be used.
    pub async fn start(options: OpenWopOptions, report: Report) -> Result<Self> {
        let key = key(&options.api_key_env, options.listen, &report)?;
        let settings = options.settings;
        let tls = options.tls.as_ref().map(|files| files.read(&report)).transpose()?.map(Tls::new);
        if tls.is_none() {
            warn_of_plain_http(options.listen, &report);
        }
        let listener = listen(options.listen)?;
        let exporter = Exporter::new(Prefix::default());
        let compile_helper = options.compile_helper.clone();
        let base =
            Base::start(tls, exporter, host_settings(&settings), compile_helper, Lease::default())?;
        let (packs, workflows) = (options.packs.as_deref(), options.workflows.as_path());
        let library = library(&base.host, workflows, packs, &settings, &report).await?;
        // Last, because a process that has the journal in a database stops then.
        let place = options.journal.as_ref();
        let Opened { journals, database } =
            journal::open(place, None, Checking::Later, &base, &report).await?;
        let handlers = handlers(&base, &journals, library, settings);
        let runtime = Runtime::builder_over(journals)
            .clock(Arc::clone(&base.clock))
            .handlers(Arc::new(handlers.clone()))
            .telemetry(base.telemetry.clone())
            .accounts_one_in(0)
            .ceilings(settings.ceilings())
            .specs(sandglass_openwop::specs())
            .build()
            .await?;
        let http = sandglass_http::Settings {
            max_connections: settings.max_readers.saturating_add(CONNECTIONS_BESIDE),
            ..sandglass_http::Settings::default()
        };
        let service = Service::start(runtime.clone(), &handlers);
        let interface = OpenWop::new(service, key, base.exporter.clone(), None);
        let serving = serve(listener, interface.router(), http, base.tls.clone())?;
        Ok(Self { options, interface, runtime, serving, base, database, report })
    }
}

impl Server for OpenWopServer {
    fn url(&self) -> String {
        self.base.url(self.serving.local_addr())
    }

    async fn upkeep(&self) -> Error {
        self.base.upkeep(self.database.as_ref(), false).await
    }

    fn reload(&self) -> impl Future<Output = Result<String>> + Send + 'static {
        let (files, tls) = (self.options.tls.clone(), self.base.tls.clone());
        let report = Arc::clone(&self.report);
        async move {
            let folders = "folders are read only at the start";
            let (Some(files), Some(tls)) = (files, tls) else {
                return Ok(format!("nothing was reloaded: {folders}; start it again"));
            };
            tls.replace(files.read(&report)?);
            Ok(format!("reloaded the certificate; {folders}"))
        }
    }

    fn if_ended_at_once(&self) -> &'static str {
        match self.options.journal {
            Some(_) => "runs in flight continue with the next start",
            None => "its runs are lost, because there is no journal",
        }
    }

    async fn stop(self) -> Stopped {
        let left = self.if_ended_at_once();
        let Self { interface, runtime, serving, base, database, report, .. } = self;
        serving.stop_accepting();
        interface.close();
        runtime.shutdown(journal::grace(database.as_ref(), GRACE)).await;
        base.host.shutdown().await;
        // A client that reads its response more slowly finds the result in the journal.
        let _ = serving.drain(ANSWERS_MAX).await;
        base.export_spans().await;
        report(&format!("stopped; {left}"));
        Stopped::Recorded
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

/// Reads the definitions and packs, and reports those that are left out.
pub(crate) async fn library(
    host: &Host,
    workflows: &Path,
    packs: Option<&Path>,
    settings: &Settings,
    report: &Report,
) -> Result<Library> {
    let read = Library::read(host, workflows, packs, &settings.packs).await;
    let (library, left_out) = read.map_err(|(folder, error)| {
        Error::system(format!("cannot read the folder `{}`", folder.display()))(error)
    })?;
    for LeftOut { file, why, .. } in left_out {
        for problem in why {
            report(&format!("note: left out `{}`: {problem}", file.display()));
        }
    }
    Ok(library)
}

pub(crate) fn handlers(
    base: &Base,
    journals: &Journals,
    library: Library,
    settings: Settings,
) -> RunHandlers {
    let (host, clock) = (base.host.clone(), Arc::clone(&base.clock));
    RunHandlers::new(host, journals.clone(), clock, library, settings)
}

/// The key in an environment variable. No message contains it.
pub(crate) fn key(variable: &str, listen: SocketAddr, report: &Report) -> Result<Digest> {
    let text = std::env::var(variable).map_err(|error| {
        Error::Unusable(format!("the environment has no `{variable}`, the key of clients: {error}"))
    })?;
    if text.len() >= KEY_MIN_BYTES {
        return Digest::of_key(&text)
            .map_err(|error| Error::Unusable(format!("`{variable}` holds no key: {error}")));
    }
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::Unusable(format!(
            "`{variable}` holds no key: a key has only printable ASCII characters and no space"
        )));
    }
    let short = format!(
        "the key in `{variable}` has fewer than {KEY_MIN_BYTES} characters, which is enough only on \
         a loopback address"
    );
    if !is_loopback_address(listen.ip()) {
        return Err(Error::Unusable(format!("{short}; set a longer one")));
    }
    report(&format!("note: {short}"));
    Ok(Digest::of(&text))
}
