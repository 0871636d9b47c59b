//! The daemon: entities over HTTP, with an OpenWOP host beside them if there are workflows.

mod loading;

use std::fmt;
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use humantime::format_duration;
use sandglass_cluster::Cluster;
use sandglass_daemon::{
    Daemon, DeclaredModule, Deployments as _, ExpectedActive, Parts, Serving, ShutdownProgress,
};
use sandglass_host::{CompileHelper, Lease};
use sandglass_http::Tls;
use sandglass_model::SystemClock;
use sandglass_openwop::OpenWop;
use sandglass_postgres::Database;
use sandglass_runtime::{Handlers, Pruned, Runtime};
use sandglass_telemetry::prometheus::Exporter;
use tokio::task::JoinHandle;

use self::loading::{load_active, load_alone, local};
use crate::base::{Base, every, listen};
use crate::config::{self, ClusterFiles, Config, MetricsConfig};
use crate::deployments::{self, Follower, Worker};
use crate::error::{Error, Result};
use crate::folder::{self, Served};
use crate::journal::{JournalPlace, Opened};
use crate::mounted::{self, Mounted};
use crate::package::Package;
use crate::tls::{Certificates, TlsFiles, warn_of_plain_http};
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
    /// The files by which the hosts of the cluster prove to each other that they are hosts.
    pub cluster_files: ClusterFiles,
    /// The files for HTTPS.
    pub tls: Option<TlsFiles>,
    /// The program that compiles modules.
    pub compile_helper: CompileHelper,
    /// Time limit for compiling one module.
    pub compile_timeout: Option<Duration>,
    /// Memory limit for compiling one module.
    pub compile_memory_bytes: Option<u64>,
    /// Whether a member of a cluster activates what its folder contains.
    pub activate: bool,
}

/// A daemon that runs.
pub struct DaemonServer {
    options: DaemonOptions,
    config: Config,
    base: Base,
    database: Option<Database>,
    cluster: Option<Cluster>,
    following: Option<Following>,
    daemon: Daemon,
    serving: Serving,
    openwop: Option<OpenWop>,
    report: Report,
}

/// How a member of a cluster follows what is active.
struct Following {
    follower: Follower,
    task: JoinHandle<()>,
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
        let served = read_folder(&options, &config, &report)?;
        let certificates = Certificates::read(&config, &report)?;
        let tls = certificates.server.map(Tls::new);
        if tls.is_none() && !config.keys.is_empty() {
            warn_of_plain_http(config.listen, &report);
        }
        let listener = listen(config.listen)?;
        let lease = config.cluster.as_ref().map(|_| Lease::expired()).unwrap_or_default();
        let (served, mut begun) = match &config.cluster {
            None => (served, None),
            Some(cluster) => {
                let deployments = journal::deployments(config.journal.as_ref()).await?;
                let (url, local) = (&*cluster.advertise, local(&options, &config));
                let read = (&*options.specs, served);
                let clock = SystemClock::new();
                let begun = deployments::begin(deployments, url, &clock, read, &local, &report);
                let (served, begun) = begun.await?;
                (served, Some(begun))
            }
        };
        let base = start_base(&options, &config, tls, &served.modules, lease.clone())?;
        let (specs, modules, handlers) = match &mut begun {
            None => load_alone(served, &config, &base, &report).await?,
            Some(begun) => load_active(served, begun, &config, &base).await,
        };
        // Last, because a process that has the journal in a database stops then.
        let (place, cluster) = (config.journal.as_ref(), config.cluster.as_ref());
        let peers =
            cluster.map(|one| cluster::peers(one, certificates.peers.as_ref())).transpose()?;
        let cluster = cluster.zip(peers.as_ref());
        let Opened { journals, database } =
            journal::open(place, cluster, config.checking, &base, &report).await?;
        if let (Some(database), Some(begun)) = (&database, &begun) {
            database.set_deployed(begun.status());
        }
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
            .specs(specs.into_iter().chain(mounted::specs(&options)));
        let (runtime, cluster) = match (&config.cluster, peers, &database) {
            (Some(cluster), Some(peers), Some(database)) => {
                let runtime = builder.without_partitions().build().await?;
                let database = database.clone();
                let cluster =
                    cluster::join(cluster, peers, database, runtime.clone(), lease, &base);
                report(&format!("a member of the cluster, as {}", cluster.state().me));
                (runtime, Some(cluster))
            }
            _ => (builder.build().await?, None),
        };
        let (follower, commands) =
            begun.as_ref().map(|begun| Follower::new(begun.running.is_some())).unzip();
        let of_daemon =
            |cluster| cluster::of_daemon(cluster, config.cluster.as_ref(), follower.clone());
        let hosts = cluster.clone().map(of_daemon);
        let openwop = mounted.map(|mounted| mounted.start(&runtime, &base, hosts.clone()));
        let parts = Parts {
            runtime,
            handlers,
            journals,
            exporter: base.exporter.clone(),
            clock: Arc::clone(&base.clock),
            modules,
            operated_elsewhere: mounted::types(&options),
            cluster: hosts,
        };
        let daemon = Daemon::new(parts, config.http.clone(), config.keys.clone());
        let beside = openwop.as_ref().map(OpenWop::beside).unwrap_or_default();
        let serving = daemon.serve_with(listener, beside, base.tls.clone())?;
        let following = match (begun, follower.zip(commands), cluster.clone(), database.clone()) {
            (Some(begun), Some((follower, commands)), Some(cluster), Some(database)) => {
                let seen_at = cluster.now();
                let own = begun.own;
                let worker = Worker {
                    deployments: begun.deployments,
                    cluster,
                    database,
                    daemon: daemon.clone(),
                    follower: follower.clone(),
                    url: config.cluster.as_ref().map(|it| it.advertise.clone()).unwrap_or_default(),
                    local: local(&options, &config),
                    running: begun.running,
                    trouble: begun.trouble,
                    report: Arc::clone(&report),
                    seen: 0,
                    seen_at,
                    listed: None,
                    failed: None,
                };
                let task = tokio::spawn(worker.run(commands));
                if options.activate {
                    activate(&follower, own, &report).await;
                }
                Some(Following { follower, task })
            }
            _ => None,
        };
        Ok(Self {
            options,
            config,
            base,
            database,
            cluster,
            following,
            daemon,
            serving,
            openwop,
            report,
        })
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
        let cluster = self.cluster.clone();
        let report = Arc::clone(&self.report);
        let follower = self.following.as_ref().map(|following| following.follower.clone());
        async move {
            let new = Config::read(&options, &report)?;
            config::require_same(&running, &new)?;
            let certificates = Certificates::read(&new, &report)?;
            let served = read_folder(&options, &new, &report)?;
            folder::check_timed_functions(&served.specs, &host)?;
            let ceilings = mounted::ceilings(&options, new.ceilings.clone());
            let done = match (follower, &new.cluster) {
                (Some(follower), Some(cluster)) => {
                    let package = Package::collect(&options.specs, &served.files)?;
                    let (own, active) = follower.propose(package, local(&options, &new)).await?;
                    daemon.runtime().set_ceilings(ceilings);
                    daemon.set_keys(new.keys);
                    let url = &cluster.advertise;
                    format!(
                        "reloaded; {}",
                        deployments::describe_folder(own, active.unwrap_or_default(), url)
                    )
                }
                _ => {
                    let specs = served.specs.into_iter().map(|(_, spec)| spec);
                    let specs = specs.chain(mounted::specs(&options)).collect();
                    daemon.reload(specs, served.modules, new.keys, ceilings).await?;
                    "reloaded".to_owned()
                }
            };
            if let (Some(tls), Some(settings)) = (&tls, certificates.server) {
                tls.replace(settings);
            }
            if let (Some(cluster), Some(peers)) = (&cluster, certificates.peers) {
                cluster.set_tls(peers.client());
            }
            Ok(done)
        }
    }

    fn if_ended_at_once(&self) -> &'static str {
        "the next start finds the handlers in flight as interrupted"
    }

    async fn stop(self) -> Stopped {
        let Self { config, base, database, cluster, following, serving, openwop, report, .. } =
            self;
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
        if let Some(following) = following {
            following.task.abort();
        }
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

/// Activates the generation of this host's folder.
async fn activate(follower: &Follower, own: u64, report: &Report) {
    match follower.activate(own, ExpectedActive::Present).await {
        Ok(_) => report(&format!("generation {own}, the folder of this host, is active")),
        Err(error) => {
            tracing::error!(
                %error,
                "generation {own}, the folder of this host, is not activated"
            );
        }
    }
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
            format_duration(Duration::from_secs(grace.as_secs()))
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
