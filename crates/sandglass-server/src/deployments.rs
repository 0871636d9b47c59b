//! This host and the generations of its cluster: it proposes what its folder contains, and runs what is
//! active.
//!
//! One task, the [`Worker`], follows the database and makes all changes, one after the other. It switches by
//! a reload, so handlers in flight finish with their modules, and entities keep their spec until they rest.
//! If it cannot run the active generation, it reports that with each beat: the cluster then gives this host
//! no partitions, so entities never return to an earlier generation.

mod worker;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use sandglass_daemon::{Deployment, DeploymentError, ExpectedActive, UploadedModule};
use sandglass_liveness::session::Ceilings;
use sandglass_model::{Clock, DeploymentStatus};
use sandglass_postgres::{Activation, Deployments};
use tokio::sync::{mpsc, oneshot};

use crate::Report;
use crate::error::{Error, Result};
use crate::folder::Served;
use crate::limits;
use crate::package::{Manifest, Package};

pub(crate) use worker::Worker;

/// Changes that wait for the task.
const COMMANDS_MAX: usize = 64;

/// A generation that this host runs, or is about to run.
#[derive(Clone, Debug)]
pub(crate) struct RunningGeneration {
    generation: u64,
    manifest: Manifest,
}

/// The parts of a host's own configuration that generations depend on.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    /// The environment variables of secrets.
    pub(crate) secrets: std::collections::BTreeMap<String, String>,
    pub(crate) ceilings: Ceilings,
}

/// What a host serves when it starts.
pub(crate) struct InitialState {
    pub(crate) deployments: Deployments,
    /// The generation of its folder.
    pub(crate) own: u64,
    /// What it runs; `None` if it cannot run the active generation.
    pub(crate) running: Option<RunningGeneration>,
    /// Why it cannot run the active generation.
    pub(crate) trouble: Option<String>,
}

impl InitialState {
    /// Notes that the active generation cannot be run.
    pub(crate) fn fail(&mut self, why: &dyn fmt::Display) {
        if let Some(running) = self.running.take() {
            let why = cannot_run(running.generation, why);
            tracing::error!("{why}; this host owns no entities until it can");
            self.trouble = Some(why);
        }
    }

    pub(crate) fn status(&self) -> DeploymentStatus {
        status(self.running.as_ref(), self.trouble.as_ref())
    }
}

fn status(running: Option<&RunningGeneration>, trouble: Option<&String>) -> DeploymentStatus {
    DeploymentStatus { generation: running.map(|one| one.generation), trouble: trouble.cloned() }
}

fn cannot_run(generation: u64, why: &dyn fmt::Display) -> String {
    format!("this host cannot run generation {generation}: {why}")
}

/// Proposes what was read from `folder`, and reads the active generation, which this host serves when it
/// starts. If no generation is active yet, activates the folder.
pub(crate) async fn begin(
    deployments: Deployments,
    url: &str,
    clock: &dyn Clock,
    (folder, served): (&Path, Served),
    local: &Local,
    report: &Report,
) -> Result<(Served, InitialState)> {
    let package = Package::collect(folder, &served.files)?;
    let own = deployments.propose(&package.proposal(url, clock.wall())).await?;
    let mut active = deployments.agreed().await?.generation;
    if active.is_none() {
        // Of several hosts that start, one does this.
        let activated = deployments.activate(own, None, clock.wall()).await?;
        active = match activated {
            Activation::Done { .. } => Some(own),
            Activation::Unknown | Activation::Conflict { .. } => {
                deployments.agreed().await?.generation
            }
        };
    }
    let mut begun = InitialState { deployments, own, running: None, trouble: None };
    let Some(generation) = active else {
        return Err(Error::Unusable("no generation is active: start this host again".to_owned()));
    };
    report(&describe_folder(own, generation, url));
    if generation == own {
        begun.running = Some(RunningGeneration { generation, manifest: package.manifest });
        return Ok((served, begun));
    }
    let fetched = begun.deployments.fetch(generation).await?;
    begun.running = Some(RunningGeneration { generation, manifest: Manifest::default() });
    let read = match fetched {
        Some(fetched) => Package::fetched(fetched).and_then(|package| {
            Ok((
                read(&package, local)?,
                RunningGeneration { generation, manifest: package.manifest },
            ))
        }),
        None => Err(Error::Unusable("another one was activated meanwhile".to_owned())),
    };
    let served = match read {
        Ok((served, running)) => {
            begun.running = Some(running);
            served
        }
        Err(why) => {
            begun.fail(&why);
            Served::default()
        }
    };
    Ok((served, begun))
}

/// What an operator has to know about the folder of a host.
pub(crate) fn describe_folder(own: u64, active: u64, url: &str) -> String {
    if own == active {
        return format!("the folder is generation {own}, which is active");
    }
    format!(
        "the folder is generation {own}; generation {active} is active, and hosts run that one; to activate \
         the folder: sandglass cluster activate {own} {url}"
    )
}

/// Reads specs and modules of a generation as this host can run them. Blocks.
fn read(package: &Package, local: &Local) -> Result<Served> {
    let served = package.read(&local.secrets)?;
    let types = served.specs.iter().map(|(_, spec)| spec.name.as_str());
    limits::require_known_types(&local.ceilings, types)?;
    Ok(served)
}

/// A request to the task.
pub(crate) enum Command {
    Activate {
        generation: u64,
        replaced: ExpectedActive,
        done: oneshot::Sender<Result<Option<u64>, DeploymentError>>,
    },
    Upload {
        module: UploadedModule,
        done: oneshot::Sender<Result<(), DeploymentError>>,
    },
    UpgradeFormat {
        done: oneshot::Sender<Result<u32, DeploymentError>>,
    },
    /// The folder or the configuration was read again.
    Propose {
        package: Package,
        local: Box<Local>,
        /// The generation of the folder, and the active one.
        done: oneshot::Sender<Result<(u64, Option<u64>)>>,
    },
}

/// A handle to the task. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Follower {
    commands: mpsc::Sender<Command>,
    shown: Arc<SharedView>,
}

/// What the task shares with its handles.
struct SharedView {
    list: Mutex<Arc<[Deployment]>>,
    has_generation: AtomicBool,
}

impl Follower {
    /// A handle, and the queue with which to start its task.
    pub(crate) fn new(has_generation: bool) -> (Self, mpsc::Receiver<Command>) {
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        let shown = SharedView {
            list: Mutex::new(Arc::new([])),
            has_generation: AtomicBool::new(has_generation),
        };
        (Self { commands, shown: Arc::new(shown) }, queue)
    }

    /// Proposes what was read of the folder, and uses `local` from now on. Returns the generation of the
    /// folder, and the active one.
    pub(crate) async fn propose(
        &self,
        package: Package,
        local: Local,
    ) -> Result<(u64, Option<u64>)> {
        let (done, result) = oneshot::channel();
        let local = Box::new(local);
        let _ = self.commands.send(Command::Propose { package, local, done }).await;
        result.await.unwrap_or_else(|_| Err(Error::Unusable(ENDED.to_owned())))
    }

    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, DeploymentError>>) -> Command,
    ) -> Result<T, DeploymentError> {
        let (done, result) = oneshot::channel();
        let _ = self.commands.send(command(done)).await;
        let ended = || Err(DeploymentError::Unavailable(ENDED.to_owned()));
        result.await.unwrap_or_else(|_| ended())
    }
}

const ENDED: &str = "this host is shutting down; send the request to another one";

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").finish_non_exhaustive()
    }
}

impl sandglass_daemon::Deployments for Follower {
    fn list(&self) -> Arc<[Deployment]> {
        Arc::clone(&self.shown.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn has_generation(&self) -> bool {
        self.shown.has_generation.load(Ordering::Acquire)
    }

    fn activate(
        &self,
        generation: u64,
        replaced: ExpectedActive,
    ) -> BoxFuture<'_, Result<Option<u64>, DeploymentError>> {
        Box::pin(self.request(move |done| Command::Activate { generation, replaced, done }))
    }

    fn upload(&self, module: UploadedModule) -> BoxFuture<'_, Result<(), DeploymentError>> {
        Box::pin(self.request(move |done| Command::Upload { module, done }))
    }

    fn upgrade_format(&self) -> BoxFuture<'_, Result<u32, DeploymentError>> {
        Box::pin(self.request(|done| Command::UpgradeFormat { done }))
    }
}
