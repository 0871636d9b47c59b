//! How this process takes part in a cluster: what it knows about the other hosts, and how it reaches
//! them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use rustls::ClientConfig;
use sandglass_journal::Error;
use sandglass_model::{HostId, Membership, Monotonic, Partition, Refusal};
use sandglass_postgres::Database;
use sandglass_runtime::Runtime;
use sandglass_supervisor::lease::Lease;
use sandglass_telemetry::Metrics;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::member::{Command, Worker};
use crate::peers::{PeerBody, PeerError, Peers};
use crate::routes::{Route, Routes};
use crate::tenure::Settings;
use crate::timer::within;

/// How long a change in the database may take. If it takes longer, the next beat shows whether it was
/// made.
pub(crate) const CHANGE_LIMIT: Duration = Duration::from_secs(1);
/// Commands that wait for the member's task. Each is one of a few kinds, and repeats what the next
/// beat finds out in any case.
const COMMANDS_MAX: usize = 256;

/// What this process knows about the cluster at one moment.
#[derive(Clone, Debug)]
pub struct ClusterState {
    /// This process.
    pub me: HostId,
    /// What the database contained at the last beat.
    pub membership: Membership,
    /// When each host's beats were last seen to have changed, by [`Cluster::now`].
    pub last_seen: BTreeMap<HostId, Monotonic>,
    /// The other hosts with which this process was last in contact, each with why they refuse each other,
    /// if they do.
    pub contacts: BTreeMap<HostId, Option<Refusal>>,
    /// Who owns each partition.
    pub routes: Routes,
    /// How many partitions this process holds.
    pub held: usize,
}

impl ClusterState {
    /// Whether this process is the one to correct: all hosts with which it was in contact refuse it, or it
    /// refuses them, and one of them has beaten for longer than this process.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let own = self.membership.host(self.me).map_or(0, |me| me.beats);
        let is_older = |host: &HostId| self.membership.host(*host).is_some_and(|it| it.beats > own);
        self.contacts.values().all(Option::is_some) && self.contacts.keys().any(is_older)
    }
}

/// The part of one process in a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) runtime: Runtime,
    pub(crate) lease: Lease,
    pub(crate) peers: Peers,
    pub(crate) metrics: Metrics,
    pub(crate) state: watch::Sender<Arc<ClusterState>>,
    commands: mpsc::Sender<Command>,
    ended: watch::Sender<bool>,
    task: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Cluster {
    /// Takes part in the cluster of `database`, with `runtime`, which begins without partitions. The
    /// host calls of its handlers depend on `lease`. Reports to `metrics`. Needs a tokio runtime, and uses it until
    /// [`Cluster::stop`].
    ///
    /// The process must be reachable at the URL with which it has joined the database: others declare it
    /// dead if they find no process there.
    #[must_use]
    pub fn start(
        database: Database,
        runtime: Runtime,
        lease: Lease,
        peers: Peers,
        settings: Settings,
        metrics: Metrics,
    ) -> Self {
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        let me = database.host();
        let state = ClusterState {
            me,
            membership: Membership::default(),
            last_seen: BTreeMap::new(),
            contacts: BTreeMap::new(),
            routes: Routes::new(me),
            held: 0,
        };
        let state = watch::Sender::new(Arc::new(state));
        let (ended, task) = (watch::Sender::new(false), std::sync::Mutex::default());
        let shared =
            Shared { database, runtime, lease, peers, metrics, state, commands, ended, task };
        let cluster = Self(Arc::new(shared));
        let worker = Worker::new(Arc::clone(&cluster.0), settings, queue);
        let ended = Ended(cluster.0.ended.clone());
        let task = tokio::spawn(async move {
            let _ended = ended;
            worker.run().await;
        });
        *cluster.task() = Some(task);
        cluster
    }

    /// Where requests for entities of `partition` go now.
    #[must_use]
    pub fn route(&self, partition: Partition) -> Route {
        // While its lease is not valid, another host may be the owner.
        let is_served = self.0.runtime.serves(partition) && self.is_trusted();
        self.0.state.borrow().routes.route(partition, is_served)
    }

    /// Whether this process may trust that it owns what it holds.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.0.lease.is_valid()
    }

    /// The present moment on the clock of [`ClusterState::last_seen`].
    #[must_use]
    pub fn now(&self) -> Monotonic {
        self.0.lease.now()
    }

    /// What this process knows now.
    #[must_use]
    pub fn state(&self) -> Arc<ClusterState> {
        Arc::clone(&self.0.state.borrow())
    }

    /// Waits until the state has changed since this was called.
    pub fn wait_for_change(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut state = self.0.state.subscribe();
        async move {
            // The sender lives as long as any caller can.
            let _ = state.changed().await;
        }
    }

    /// Waits until the task that keeps this process in the cluster has ended: the database was closed, or
    /// the task has panicked.
    pub async fn wait_until_ended(&self) {
        let mut ended = self.0.ended.subscribe();
        // The sender lives as long as any caller can.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Reports that the address of `host` refused a connection: it is checked whether it is alive.
    pub fn suspect(&self, host: HostId) {
        self.command(Command::Suspect(host));
    }

    /// Takes in what another host reports that it owns, with the epochs.
    pub fn note_owned(&self, host: HostId, owned: Vec<(Partition, u64)>) {
        self.command(Command::Owned { host, owned });
    }

    /// Sets whether `host` gives its partitions away. Returns whether there is such a host.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn set_draining(&self, host: HostId, is_draining: bool) -> Result<bool, Error> {
        let setting = self.0.database.set_draining(&host, is_draining);
        let late = || Err(Error::Unavailable { what: format!("no response in {CHANGE_LIMIT:?}") });
        let is_known = within(CHANGE_LIMIT, setting).await.unwrap_or_else(late)?;
        self.command(Command::Beat);
        let state = self.state();
        let url = state.membership.host(host).and_then(|member| member.url.clone());
        if let Some(url) = url.filter(|_| is_known && host != state.me) {
            self.0.peers.nudge(&url, state.me, &[]).await;
        }
        Ok(is_known)
    }

    /// Has this process beat at once, because what it runs has changed.
    pub fn beat_soon(&self) {
        self.command(Command::Beat);
    }

    /// Has all processes beat at once, because something has changed that they follow.
    pub fn announce_change(&self) {
        self.command(Command::Announce);
    }

    /// Sends a request of a client to the host at `url`.
    ///
    /// # Errors
    /// There is no response.
    pub async fn forward(
        &self,
        url: &str,
        request: Request<Bytes>,
    ) -> Result<Response<PeerBody>, PeerError> {
        self.0.peers.send(url, request).await
    }

    /// Connects to other hosts with `tls` from now on.
    pub fn set_tls(&self, tls: Arc<ClientConfig>) {
        self.0.peers.set_tls(tls);
    }

    /// Gives all partitions to other hosts, each when no handler is in flight there, for at most
    /// `limit`. Returns how many are left. Requests are still served and forwarded meanwhile.
    pub async fn give_away(&self, limit: Duration) -> usize {
        let mut state = self.0.state.subscribe();
        let giving = async {
            if let Err(error) = self.set_draining(self.state().me, true).await {
                tracing::warn!(
                    %error,
                    "the database did not note that this host gives its partitions away"
                );
            }
            let is_done = |state: &Arc<ClusterState>| state.held == 0 || !has_others(state);
            // The sender lives as long as this.
            let _ = state.wait_for(is_done).await;
        };
        let _ = within(limit, Box::pin(giving)).await;
        self.state().held
    }

    /// Stops beating, taking and giving partitions. To be called before the database is closed.
    pub async fn stop(&self) {
        let task = self.task().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    fn command(&self, command: Command) {
        // If so many wait, the next beat comes before this one.
        let _ = self.0.commands.try_send(command);
    }

    fn task(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.0.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Reports the end of the member's task, also if it panics.
struct Ended(watch::Sender<bool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Whether other hosts can take partitions.
fn has_others(state: &ClusterState) -> bool {
    let can_take = |member: &sandglass_model::Member| {
        member.host != state.me && member.is_in_cluster() && !member.is_draining
    };
    state.membership.hosts.iter().any(can_take)
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("database", &self.0.database).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::{DeploymentStatus, Member};

    use super::*;

    /// A process with 10 beats, and other hosts, each with its beats and whether it refuses the process.
    fn state(others: &[(u64, Option<bool>)]) -> ClusterState {
        let member = |index: usize, beats| Member {
            host: HostId::from_bytes([u8::try_from(index).expect("few"); 16]),
            name: String::new(),
            url: Some(format!("http://{index}")),
            version: String::new(),
            reads_format: 1,
            is_draining: false,
            beats,
            ttl: None,
            is_dead: false,
            deployed: DeploymentStatus::default(),
        };
        let me = member(0, 10);
        let (mut hosts, mut contacts) = (vec![me.clone()], BTreeMap::new());
        for (index, &(beats, refuses)) in others.iter().enumerate() {
            let other = member(index + 1, beats);
            if let Some(refuses) = refuses {
                contacts.insert(other.host, refuses.then_some(Refusal::KeyRefused));
            }
            hosts.push(other);
        }
        ClusterState {
            me: me.host,
            membership: Membership { hosts, ..Membership::default() },
            last_seen: BTreeMap::new(),
            contacts,
            routes: Routes::new(me.host),
            held: 0,
        }
    }

    #[test]
    fn of_hosts_that_refuse_each_other_the_younger_one_is_refused() {
        for (others, is_refused) in [
            (&[] as &[_], false),
            (&[(90, None)], false),
            (&[(90, Some(true))], true),
            (&[(9, Some(true))], false),
            (&[(9, Some(true)), (90, Some(true)), (90, None)], true),
            (&[(90, Some(true)), (90, Some(false))], false),
            (&[(9, Some(false))], false),
        ] {
            assert_eq!(state(others).is_refused(), is_refused, "{others:?}");
        }
    }
}
