//! The task that follows what is active, and makes the changes that operators and clients request.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_cluster::Cluster;
use sandglass_daemon::{
    Daemon, Deployment, DeploymentError, ExpectedActive, ReloadError, UploadedModule,
};
use sandglass_journal::Error as JournalError;
use sandglass_model::{ModuleHash, Monotonic, WallTime};
use sandglass_postgres::{Activation, Database, Deployments, FormatUpgrade};
use tokio::sync::mpsc;

use super::{Command, Follower, Local, RunningGeneration, cannot_run, read, status};
use crate::Report;
use crate::error::Result;
use crate::folder::{self, Served};
use crate::package::Package;

/// How long to wait before a generation that could not be loaded is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// The number of failed attempts after which this host counts as one that cannot run a generation, if the
/// reason may pass, such as a database that does not respond.
const ATTEMPTS_MAX: u32 = 5;
/// How long after a change of this host its beats may still have read what was before it. If they have read
/// it for longer, the database has lost the change.
const UNSEEN_MAX: Duration = Duration::from_secs(10);
/// How often an upload is made again if another generation was activated meanwhile.
const UPLOADS_MAX: u32 = 5;

/// The task.
pub(crate) struct Worker {
    pub(crate) deployments: Deployments,
    pub(crate) cluster: Cluster,
    pub(crate) database: Database,
    pub(crate) daemon: Daemon,
    pub(crate) follower: Follower,
    /// Where others reach this host.
    pub(crate) url: String,
    pub(crate) local: Local,
    pub(crate) running: Option<RunningGeneration>,
    pub(crate) trouble: Option<String>,
    pub(crate) report: Report,
    /// The number of the last change that this host knows. What was read before it is out of date.
    pub(crate) seen: u64,
    /// When this host made it.
    pub(crate) seen_at: Monotonic,
    /// The number of the change after which the list was read.
    pub(crate) listed: Option<u64>,
    pub(crate) failed: Option<FailedLoad>,
}

/// A generation that could not be loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedLoad {
    generation: u64,
    attempts: u32,
    at: Monotonic,
}

/// Why a generation cannot be run.
enum LoadError {
    /// There is no such generation.
    Unknown,
    /// The reason may pass.
    Transient(String),
    /// Not on this host.
    Refused(String),
}

impl From<JournalError> for LoadError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Unavailable { .. } | JournalError::Closed => {
                Self::Transient(error.to_string())
            }
            error => Self::Refused(error.to_string()),
        }
    }
}

impl From<ReloadError> for LoadError {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::Specs(sandglass_runtime::ReloadError::NotRecorded(_)) => {
                Self::Transient(error.to_string())
            }
            error => Self::Refused(error.to_string()),
        }
    }
}

impl Worker {
    /// Follows the active generation and executes commands, until no command can come any more.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            // Before anything is read, so that no change is missed.
            let changed = self.cluster.wait_for_change();
            self.read_list().await;
            self.follow().await;
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.execute(command).await,
                    None => return,
                },
                () = changed => {}
            }
        }
    }

    /// Reads which generations there are, if that has changed.
    async fn read_list(&mut self) {
        let changes = self.cluster.state().membership.agreed.changes;
        if self.listed == Some(changes) {
            return;
        }
        match self.deployments.list().await {
            Ok(list) => {
                let view = |one: sandglass_postgres::Deployment| Deployment {
                    generation: one.generation,
                    proposed_by: one.proposed_by,
                    version: one.version,
                    at: one.at,
                    activated: one.activated,
                };
                let list = list.into_iter().map(view).collect();
                *self.follower.shown.list.lock().unwrap_or_else(PoisonError::into_inner) = list;
                self.listed = Some(changes);
            }
            // It is read again after the next beat.
            Err(error) => tracing::debug!(%error, "the list of generations could not be read"),
        }
    }

    /// Runs what is active, as the last beat has read it.
    async fn follow(&mut self) {
        let agreed = self.cluster.state().membership.agreed;
        self.check_seen(agreed.changes);
        let Some(generation) = agreed.generation.filter(|_| agreed.changes >= self.seen) else {
            return;
        };
        let failed = self.failed.filter(|failed| failed.generation == generation);
        let is_early = failed.is_some_and(|failed| self.now().since(failed.at) < AGAIN_AFTER);
        if is_early {
            return;
        }
        if self.runs(generation) {
            if self.trouble.is_some() {
                self.note(self.running.clone(), None);
            }
            return;
        }
        match self.switch_to(generation).await {
            Ok(()) => (self.report)(&format!("runs generation {generation}")),
            Err(error) => self.note_failed(generation, error),
        }
    }

    /// Forgets the last change of this host if the database has lost it, as in a failover to a standby that
    /// did not have it.
    fn check_seen(&mut self, changes: u64) {
        let is_lost = changes < self.seen && self.now().since(self.seen_at) > UNSEEN_MAX;
        // With a lease, the last beat is not old.
        if is_lost && self.cluster.is_trusted() {
            tracing::error!(
                "the database has lost the last activation or proposal of this host; activate it again"
            );
            self.seen = changes;
        }
    }

    fn runs(&self, generation: u64) -> bool {
        self.running.as_ref().is_some_and(|running| running.generation == generation)
    }

    fn note_failed(&mut self, generation: u64, error: LoadError) {
        let before = self.failed.filter(|failed| failed.generation == generation);
        let attempts = before.map_or(1, |failed| failed.attempts.saturating_add(1));
        self.failed = Some(FailedLoad { generation, attempts, at: self.now() });
        let why = match error {
            LoadError::Transient(why) if attempts < ATTEMPTS_MAX => {
                tracing::warn!("{}; it is tried again", cannot_run(generation, &why));
                return;
            }
            LoadError::Unknown => "there is no such generation".to_owned(),
            LoadError::Transient(why) | LoadError::Refused(why) => why,
        };
        let trouble = Some(cannot_run(generation, &why));
        if self.trouble != trouble {
            tracing::error!(
                "{}; its entities move to hosts that can, and it gets no others",
                cannot_run(generation, &why)
            );
            self.note(self.running.clone(), trouble);
        }
    }

    /// Notes what this host runs, for others, too.
    fn note(&mut self, running: Option<RunningGeneration>, trouble: Option<String>) {
        self.follower.shown.has_generation.store(running.is_some(), Ordering::Release);
        (self.running, self.trouble) = (running, trouble);
        self.database.set_deployed(status(self.running.as_ref(), self.trouble.as_ref()));
        self.cluster.beat_soon();
    }

    /// Loads a generation, and runs it from now on.
    async fn switch_to(&mut self, generation: u64) -> Result<(), LoadError> {
        let (served, running) = self.load(generation).await?;
        let daemon = self.daemon.clone();
        prepare(&daemon, served).await?.apply().await?;
        self.failed = None;
        self.note(Some(running), None);
        Ok(())
    }

    /// Fetches and reads a generation.
    async fn load(&self, generation: u64) -> Result<(Served, RunningGeneration), LoadError> {
        let fetched = self.deployments.fetch(generation).await?.ok_or(LoadError::Unknown)?;
        let local = self.local.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let package = Package::fetched(fetched)?;
            Ok((
                read(&package, &local)?,
                RunningGeneration { generation, manifest: package.manifest },
            ))
        });
        let read: Result<_> =
            reading.await.unwrap_or_else(|error| Err(std::io::Error::from(error).into()));
        let (served, running) = read.map_err(|why| LoadError::Refused(why.in_full()))?;
        let host = self.daemon.host();
        folder::check_timed_functions(&served.specs, host)
            .map_err(|why| LoadError::Refused(why.to_string()))?;
        Ok((served, running))
    }

    async fn execute(&mut self, command: Command) {
        // If a receiver is gone, the change is made nevertheless.
        match command {
            Command::Activate { generation, replaced, done } => {
                let _ = done.send(self.activate(generation, replaced).await);
            }
            Command::Upload { module, done } => {
                let _ = done.send(self.upload(&module).await);
            }
            Command::UpgradeFormat { done } => {
                let _ = done.send(self.upgrade_format().await);
            }
            Command::Propose { package, local, done } => {
                let _ = done.send(self.propose(&package, *local).await);
            }
        }
    }

    async fn activate(
        &mut self,
        generation: u64,
        replaced: ExpectedActive,
    ) -> Result<Option<u64>, DeploymentError> {
        let active = self.deployments.agreed().await.map_err(unavailable)?.generation;
        if active == Some(generation) {
            if !self.runs(generation) {
                self.switch_to(generation).await.map_err(|error| refused(generation, error))?;
            }
            return Ok(active);
        }
        if let ExpectedActive::Only(expected) = replaced
            && active != Some(expected)
        {
            return Err(DeploymentError::Conflict { active });
        }
        let refused = |error| refused(generation, error);
        let (served, running) = self.load(generation).await.map_err(refused)?;
        let daemon = self.daemon.clone();
        let prepared = prepare(&daemon, served).await.map_err(refused)?;
        let activated = self.deployments.activate(generation, active, self.wall()).await;
        match activated.map_err(unavailable)? {
            Activation::Done { changes } => (self.seen, self.seen_at) = (changes, self.now()),
            Activation::Unknown => return Err(DeploymentError::Unknown),
            Activation::Conflict { active } => return Err(DeploymentError::Conflict { active }),
        }
        match prepared.apply().await {
            Ok(()) => {
                self.failed = None;
                self.note(Some(running), None);
                (self.report)(&format!("activated generation {generation}, and runs it"));
            }
            // It is active: this host follows as the others do.
            Err(error) => self.note_failed(generation, error.into()),
        }
        self.cluster.announce_change();
        Ok(active)
    }

    async fn upload(&mut self, module: &UploadedModule) -> Result<(), DeploymentError> {
        let mut active = None;
        for _ in 0..UPLOADS_MAX {
            active = self.deployments.agreed().await.map_err(unavailable)?.generation;
            let Some(before) = active else {
                return Err(DeploymentError::Unavailable("no generation is active".to_owned()));
            };
            if !self.runs(before) {
                self.switch_to(before).await.map_err(|error| refused(before, error))?;
            }
            let Some(running) = &self.running else { continue };
            let manifest = running.manifest.clone().with_upload(module);
            let hash = *ModuleHash::of(&module.bytes).as_bytes();
            let contents = BTreeMap::from([(hash, module.bytes.clone())]);
            let proposal = manifest.proposal(contents, &self.url, self.wall());
            let generation = self.deployments.propose(&proposal).await.map_err(unavailable)?;
            match self.activate(generation, ExpectedActive::Only(before)).await {
                Err(DeploymentError::Conflict { .. }) => {}
                done => return done.map(drop),
            }
        }
        Err(DeploymentError::Conflict { active })
    }

    async fn upgrade_format(&self) -> Result<u32, DeploymentError> {
        match self.deployments.upgrade_format().await.map_err(unavailable)? {
            FormatUpgrade::Done(format) => {
                self.cluster.announce_change();
                Ok(format)
            }
            FormatUpgrade::Already(format) => Ok(format),
            FormatUpgrade::Refused { format, hosts } => {
                let host = |(name, reads): &(String, u32)| format!("{name} (reads up to {reads})");
                let hosts: Vec<String> = hosts.iter().map(host).collect();
                Err(DeploymentError::Unreadable(format!(
                    "records of format {format} cannot be read by {}: start these hosts with a newer \
                     version first",
                    hosts.join(", ")
                )))
            }
        }
    }

    async fn propose(&mut self, package: &Package, local: Local) -> Result<(u64, Option<u64>)> {
        let own = self.deployments.propose(&package.proposal(&self.url, self.wall())).await?;
        self.local = local;
        // What failed may be possible now.
        self.failed = None;
        self.cluster.announce_change();
        Ok((own, self.deployments.agreed().await?.generation))
    }

    fn now(&self) -> Monotonic {
        self.cluster.now()
    }

    fn wall(&self) -> WallTime {
        self.daemon.clock().wall()
    }
}

/// Compiles and checks what is to be run.
async fn prepare(
    daemon: &Daemon,
    served: Served,
) -> Result<sandglass_daemon::PreparedDeployment<'_>, LoadError> {
    let specs = served.specs.into_iter().map(|(_, spec)| spec).collect();
    Ok(daemon.prepare(specs, served.modules).await?)
}

fn refused(generation: u64, error: LoadError) -> DeploymentError {
    match error {
        LoadError::Unknown => DeploymentError::Unknown,
        LoadError::Transient(why) => DeploymentError::Unavailable(why),
        LoadError::Refused(why) => DeploymentError::Refused(format!(
            "{}; nothing was changed",
            cannot_run(generation, &why)
        )),
    }
}

fn unavailable(error: JournalError) -> DeploymentError {
    DeploymentError::Unavailable(error.to_string())
}
