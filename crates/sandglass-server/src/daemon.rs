//! The daemon: entities over HTTP, with an OpenWOP host beside them if there are workflows.

use std::fmt;
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use humantime::format_duration;
use sandglass_cluster::Cluster;
use sandglass_daemon::{Daemon, DeclaredModule, Modules, Parts, Serving, ShutdownProgress};
use sandglass_host::{CompileHelper, Lease};
use sandglass_http::Tls;
use sandglass_openwop::OpenWop;
use sandglass_postgres::Database;
use sandglass_runtime::{Handlers, HostHandlers, Pruned, Runtime};
use sandglass_telemetry::prometheus::Exporter;

use crate::base::{Base, every, listen};
use crate::config::{self, Config, MetricsConfig};
use crate::error::{Error, Result};
use crate::folder::{self, Served};
use crate::journal::{JournalPlace, Opened};
use crate::mounted::{self, Mounted};
use crate::tls::{TlsFiles, warn_of_plain_http};
use crate::{Report, Server, Stopped, cluster, journal, limits};

/// How often ended entities are removed that need not be kept any longer. They are usually days
/// old.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Most handlers that are reported by name when they are stopped; the journal names all.
const NAMED_MAX: usize = 20;

/// What the caller sets. It takes precedence over the configuration file.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The folder of specs.
    pub specs: PathBuf,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// Where the journal is.
    pub journal: Option<JournalPlace>,
    /// The folder of compiled modules.
    pub compiled_cache: Option<PathBuf>,
    /// Environment variables with API keys; the name of each is also that of the key's owner.
    pub api_key_env: Vec<String>,
    /// The folder of workflow definitions; without it there is no OpenWOP host.
    pub workflows: Option<PathBuf>,
    /// The folder of node packs.
    pub packs: Option<PathBuf>,
    /// The address at which other hosts reach this one, to be a member of a cluster. It contains no
    /// secret.
    pub advertise: Option<String>,
    /// The environment variable with the key that all hosts of the cluster share.
    pub cluster_key_env: Option<String>,
    /// The files for HTTPS.
    pub tls: Option<TlsFiles>,
    /// The program that compiles modules.
    pub compile_helper: CompileHelper,
    /// Time limit for compiling one module.
    pub compile_timeout: Option<Duration>,
    /// Memory limit for compiling one module.
    pub compile_memory_bytes: Option<u64>,
}

/// A daemon that runs.
pub struct DaemonServer {
    options: DaemonOptions,
    config: Config,
    base: Base,
    database: Option<Database>,
    cluster: Option<Cluster>,
    daemon: Daemon,
    serving: Serving,
    openwop: Option<OpenWop>,
    report: Report,
}

impl fmt::Debug for DaemonServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DaemonServer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl DaemonServer {
    /// Starts the daemon: reads the configuration and the folders, and listens.
    ///
    /// # Errors
    /// Errors if the configuration or a folder is wrong, and if the address, the journal or a
    /// resource of the operating system cannot be used.
    pub async fn start(options: DaemonOptions, report: Report) -> Result<Self> {
        let config = Config::read(&options, &report)?;
        let Served { specs, modules } = read_folder(&options, &config, &report)?;
        let tls = config.tls.as_ref().map(|files| files.read(&report)).transpose()?.map(Tls::new);
        if tls.is_none() && !config.keys.is_empty() {
            warn_of_plain_http(config.listen, &report);
        }
        let listener = listen(config.listen)?;
        let lease = config.cluster.as_ref().map(|_| Lease::expired()).unwrap_or_default();
        let base = start_base(&options, &config, tls, &modules, lease.clone())?;
        folder::check_timed_functions(&specs, &base.host)?;
        let specs = specs.into_iter().map(|(_, spec)| spec);
        let uploads = config.modules.clone();
        let uploads = uploads.or_else(|| config.journal.as_ref().and_then(JournalPlace::modules));
        if uploads.is_none() && config.journal.is_some() {
            report(
                "modules that clients upload are lost when this process ends: set `modules` in \
                 [journal]",
            );
        }
        let modules = Modules::open(modules, uploads)?;
        for (name, by) in modules.uploaded() {
            report(&format!(
                "module `{name}` is the version that `{by}` uploaded, not the one in the folder"
            ));
        }
        let handlers =
            HostHandlers::new(base.host.clone(), Arc::clone(&base.clock), modules.for_handlers())
                .recording(config.recording);
        handlers.compile().await;
        // Last, because a process that has the journal in a database stops then.
        let url = config.cluster.as_ref().map(|cluster| cluster.advertise.as_str());
        let Opened { journals, database } =
            journal::open(config.journal.as_ref(), url, config.checking, &base, &report).await?;
        let mounted = Mounted::read(&options, &base, &journals, &config, &report).await?;
        let all_handlers: Arc<dyn Handlers> = match &mounted {
            Some(mounted) => Arc::new(mounted.handlers.clone().beside(Arc::new(handlers.clone()))),
            None => Arc::new(handlers.clone()),
        };
        let builder = Runtime::builder_over(journals.clone())
            .clock(Arc::clone(&base.clock))
            .handlers(all_handlers)
            .telemetry(base.telemetry.clone())
            .accounts_one_in(config.accounts_one_in)
            .busy_spawned_max(config.busy_spawned_max)
            .ceilings(mounted::ceilings(&options, config.ceilings.clone()))
            .specs(specs.chain(mounted::specs(&options)));
        let (runtime, cluster) = match (&config.cluster, &database) {
            (Some(cluster), Some(database)) => {
                let runtime = builder.without_partitions().build().await?;
                let database = database.clone();
                let cluster = cluster::join(cluster, database, runtime.clone(), lease, &base)?;
                report(&format!("a member of the cluster, as {}", cluster.state().me));
                (runtime, Some(cluster))
            }
            _ => (builder.build().await?, None),
        };
        let openwop = match mounted {
            Some(mounted) => Some(mounted.start(&runtime, &base.exporter).await?),
            None => None,
        };
        let parts = Parts {
            runtime,
            handlers,
            journals,
            exporter: base.exporter.clone(),
            clock: Arc::clone(&base.clock),
            modules,
            operated_elsewhere: mounted::types(&options),
            cluster: cluster.clone().map(|one| cluster::of_daemon(one, config.cluster.as_ref())),
        };
        let daemon = Daemon::new(parts, config.http.clone(), config.keys.clone());
        let beside = openwop.as_ref().map(OpenWop::beside).unwrap_or_default();
        let serving = daemon.serve_with(listener, beside, base.tls.clone())?;
        Ok(Self { options, config, base, database, cluster, daemon, serving, openwop, report })
    }

    /// Waits until this host does not take part in its cluster any more; forever if it is in none.
    async fn wait_until_left(&self) -> Error {
        match &self.cluster {
            None => pending().await,
            Some(cluster) => {
                cluster.wait_until_ended().await;
                Error::Unusable(
                    "the task that keeps this host in its cluster has ended by a fault, which the log \
                     describes: restart the host"
                        .to_owned(),
                )
            }
        }
    }

    /// Removes the entities that need not be kept, or logs why it cannot.
    async fn prune(&self) {
        let Some(retention) = self.config.retention else { return };
        match self.daemon.runtime().prune(retention).await {
            Ok(Pruned { entities: 0, .. }) => {}
            Ok(Pruned { entities, records }) => {
                tracing::info!(entities, records, "removed entities that have ended");
            }
            Err(error) => tracing::warn!(%error, "entities that have ended could not be removed"),
        }
    }
}

impl Server for DaemonServer {
    fn url(&self) -> String {
        self.base.url(self.serving.local_addr())
    }

    async fn upkeep(&self) -> Error {
        let mut pruning = every(PRUNE_EVERY);
        let prune = async {
            loop {
                pruning.tick().await;
                self.prune().await;
            }
        };
        tokio::select! {
            why = self.base.upkeep(self.database.as_ref(), self.cluster.is_some()) => why,
            never = prune => never,
            why = self.wait_until_left() => why,
        }
    }

    fn reload(&self) -> impl Future<Output = Result<String>> + Send + 'static {
        let (options, running) = (self.options.clone(), self.config.clone());
        let (daemon, tls, host) =
            (self.daemon.clone(), self.base.tls.clone(), self.base.host.clone());
        let report = Arc::clone(&self.report);
        async move {
            let new = Config::read(&options, &report)?;
            config::require_same(&running, &new)?;
            let certificate = new.tls.as_ref().map(|files| files.read(&report)).transpose()?;
            let Served { specs, modules } = read_folder(&options, &new, &report)?;
            folder::check_timed_functions(&specs, &host)?;
            let specs = specs.into_iter().map(|(_, spec)| spec);
            let specs = specs.chain(mounted::specs(&options)).collect();
            let ceilings = mounted::ceilings(&options, new.ceilings);
            daemon.reload(specs, modules, new.keys, ceilings).await?;
            if let (Some(tls), Some(certificate)) = (&tls, certificate) {
                tls.replace(certificate);
            }
            Ok("reloaded".to_owned())
        }
    }

    fn if_ended_at_once(&self) -> &'static str {
        "the next start finds the handlers in flight as interrupted"
    }

    async fn stop(self) -> Stopped {
        let Self { config, base, database, cluster, serving, openwop, report, .. } = self;
        let mut grace = journal::grace(database.as_ref(), config.grace);
        if let Some(cluster) = &cluster {
            let begun = base.clock.now();
            report("giving the partitions of this host to the others");
            let left = cluster.give_away(grace * 3 / 4).await;
            if left > 0 {
                report(&format!("{left} partitions are left; their handlers are stopped"));
            }
            grace = grace.saturating_sub(base.clock.now().since(begun));
        }
        if let Some(openwop) = &openwop {
            openwop.close();
        }
        let unrecorded =
            serving.shutdown(grace, |draining| report_draining(&draining, grace, &report)).await;
        if let (Some(cluster), Some(database)) = (&cluster, &database) {
            cluster.stop().await;
            // Leaves the cluster, so that the others need not find out that this host is gone.
            database.close().await;
        }
        base.host.shutdown().await;
        base.export_spans().await;
        if !unrecorded.is_empty() {
            report(&format!(
                "stopped; the outcomes of {} handlers could not be recorded, and the next start \
                 finds them as interrupted",
                unrecorded.len()
            ));
            return Stopped::Unrecorded;
        }
        report(match config.journal {
            Some(_) if database.as_ref().is_some_and(Database::is_taken) => {
                "stopped; another process has the journal"
            }
            Some(_) => "stopped; all outcomes are in the journal",
            None => "stopped; outcomes are lost, because there is no journal",
        });
        Stopped::Recorded
    }
}

/// Reads the folder of specs, and checks the configuration against it.
fn read_folder(options: &DaemonOptions, config: &Config, report: &Report) -> Result<Served> {
    let served = folder::read(&options.specs, &config.secrets, report)?;
    let types = served.specs.iter().map(|(_, spec)| spec.name.as_str());
    limits::require_known_types(&config.ceilings, types)?;
    Ok(served)
}

/// Starts telemetry, and a host that can run the module with the most memory.
fn start_base(
    options: &DaemonOptions,
    config: &Config,
    tls: Option<Tls>,
    modules: &[DeclaredModule],
    lease: Lease,
) -> Result<Base> {
    let MetricsConfig { prefix, scrape_max_bytes } = config.metrics.clone();
    let granted = modules.iter().map(|module| module.manifest.limits.memory_bytes);
    let max_memory_bytes = granted.fold(config.host.max_memory_bytes, u64::max);
    let settings = sandglass_host::Settings { max_memory_bytes, ..config.host.clone() };
    let compile_helper = options.compile_helper.clone().limits(config.compiling);
    Base::start(
        tls,
        Exporter::with_scrape_limit(prefix, scrape_max_bytes),
        settings,
        compile_helper,
        lease,
    )
}

fn report_draining(draining: &ShutdownProgress, grace: Duration, report: &Report) {
    match draining {
        ShutdownProgress::Waiting { in_flight } => report(&format!(
            "accepting no more; {in_flight} handlers in flight have at most {}",
            format_duration(grace)
        )),
        ShutdownProgress::Stopping { handlers } => {
            for (entity, run) in handlers.iter().take(NAMED_MAX) {
                report(&format!("stopping `{}` of {entity} ({})", run.integration, run.dispatch));
            }
            if handlers.len() > NAMED_MAX {
                report(&format!("stopping {} more", handlers.len() - NAMED_MAX));
            }
        }
    }
}
