//! Routes of the cluster: its hosts and who owns what, draining a host, and what hosts report to each
//! other.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use sandglass_http::timer::within;
use sandglass_model::{
    Agreement, DeploymentStatus, HostId, Member, Membership, Ownership, Partition, Refusal,
};
use sandglass_runtime::{RemoteRequest, RemoteResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Daemon;
use crate::access::Permission;
use crate::cluster::{Cluster, Deployment, Peers, TrustedPeer};
use crate::error::{Code, Error};
use crate::extract::{Body, Caller, NoQuery};
use crate::route::deployment::GenerationView;

/// How long after the last new beat of a host its state is `silent`: a host beats every second.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Hosts that the live view lists: more than a cluster is designed for.
const HOSTS_SHOWN: usize = 64;

impl Daemon {
    pub(super) fn require_cluster(&self) -> Result<&Cluster, Error> {
        self.cluster().ok_or_else(|| {
            let message =
                "this daemon is not a member of a cluster; start it with --advertise to make it one";
            Error::new(Code::NoCluster, message)
        })
    }
}

/// A host of the cluster. If hosts cannot prove that they are hosts, a client that may operate.
pub(crate) struct FromPeer;

impl FromRequestParts<Daemon> for FromPeer {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let cluster = daemon.require_cluster()?;
        if parts.extensions.get::<TrustedPeer>().is_some() {
            return Ok(Self);
        }
        if cluster.authenticates_hosts() {
            let message = "only hosts of the cluster may use this path, with the cluster key or a \
                           certificate of its CA";
            return Err(Error::new(Code::Forbidden, message));
        }
        let Caller(principal) = Caller::from_request_parts(parts, daemon).await?;
        principal.require(Permission::Operate)?;
        principal.require_all_tenants()?;
        Ok(Self)
    }
}

/// The hosts of a cluster, and the owners of its partitions.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterView {
    /// The host that responds.
    #[schema(value_type = String)]
    host: HostId,
    /// Whether it has a lease. Otherwise it does not reach the database, or has not yet, and what it shows
    /// may be old.
    has_lease: bool,
    /// In the order of their names.
    hosts: Vec<HostView>,
    /// In the order of their numbers.
    partitions: Vec<PartitionView>,
    /// The generation that is active, which all hosts follow; null if none was activated.
    #[schema(required)]
    generation: Option<u64>,
    /// Those that can be activated, by number.
    generations: Vec<GenerationView>,
    /// The format of records that is written.
    writes_format: u32,
}

/// A host: one process of the cluster, or another one that has used the database.
#[derive(Serialize, ToSchema)]
struct HostView {
    #[schema(value_type = String)]
    host: HostId,
    /// Its machine and process id, for people. Not unique.
    name: String,
    /// Where other hosts reach it; null if it is not a member.
    #[schema(required)]
    url: Option<String>,
    /// The version of its program.
    version: String,
    state: HostState,
    /// How many partitions it owns.
    partitions: usize,
    /// How many beats it has counted.
    beats: u64,
    /// How long ago the responding host saw its last new beat, in milliseconds; null for itself, and if
    /// it has seen none.
    #[schema(required)]
    last_seen_ms: Option<u64>,
    /// How long it keeps its partitions without a new beat, in milliseconds; null if it is not a member.
    #[schema(required)]
    ttl_ms: Option<u64>,
    /// Why the responding host and this one refuse each other; null if they do not, and for itself.
    #[schema(value_type = Option<String>, required)]
    refusal: Option<Refusal>,
    /// The generation that it runs; null if it runs none.
    #[schema(required)]
    generation: Option<u64>,
    /// Why it cannot run the active generation; null if it does, or is loading it.
    #[schema(required)]
    error: Option<String>,
    /// The newest format of records that it reads.
    reads_format: u32,
}

/// The state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HostState {
    Live,
    /// It gives its partitions away, and gets no others.
    Draining,
    /// The responding host has seen no new beat for 2 seconds.
    Silent,
    /// Declared dead, or left. It never returns; a new process has a new id.
    Dead,
}

/// The owner of a partition.
#[derive(Serialize, ToSchema)]
struct PartitionView {
    #[schema(value_type = u8)]
    partition: Partition,
    /// The host that owns it; null while it moves.
    #[schema(value_type = Option<String>, required)]
    owner: Option<HostId>,
    /// Grows with each takeover.
    epoch: u64,
}

impl ClusterView {
    fn new(peers: &dyn Peers, generations: &[Deployment]) -> Self {
        let Membership { hosts, partitions, agreed } = peers.membership();
        let mut owned: BTreeMap<HostId, usize> = BTreeMap::new();
        for owner in partitions.iter().filter_map(|one| one.owner) {
            *owned.entry(owner).or_default() += 1;
        }
        let view = |member: Member| {
            let silent = peers.silent_for(member.host);
            let owned = owned.get(&member.host).copied().unwrap_or_default();
            let refusal = peers.refusal(member.host);
            HostView::new(member, silent, owned, refusal)
        };
        let mut hosts: Vec<HostView> = hosts.into_iter().map(view).collect();
        hosts.sort_by(|a, b| (&a.name, a.host).cmp(&(&b.name, b.host)));
        let view =
            |Ownership { partition, epoch, owner }| PartitionView { partition, owner, epoch };
        let mut partitions: Vec<PartitionView> = partitions.into_iter().map(view).collect();
        partitions.sort_by_key(|one| one.partition);
        let Agreement { generation, writes_format, .. } = agreed;
        let view = |one: &Deployment| GenerationView::new(one, generation);
        let generations = generations.iter().map(view).collect();
        let (host, has_lease) = (peers.host(), peers.is_trusted());
        Self { host, has_lease, hosts, partitions, generation, generations, writes_format }
    }
}

/// A host, as the live view shows it.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct HostLine {
    #[schema(value_type = String)]
    host: HostId,
    /// Its machine and process id, for people. Not unique.
    name: String,
    state: HostState,
    /// How many partitions it owns.
    partitions: usize,
}

/// The first [`HOSTS_SHOWN`] members that are not dead, in the order of their names.
pub(crate) fn host_lines(peers: &dyn Peers) -> Vec<HostLine> {
    let shown = ClusterView::new(peers, &[]).hosts.into_iter();
    let shown = shown.filter(|host| host.state != HostState::Dead && host.url.is_some());
    let line =
        |HostView { host, name, state, partitions, .. }| HostLine { host, name, state, partitions };
    shown.take(HOSTS_SHOWN).map(line).collect()
}

impl HostView {
    fn new(
        member: Member,
        silent: Option<Duration>,
        partitions: usize,
        refusal: Option<Refusal>,
    ) -> Self {
        let state = match member {
            Member { is_dead: true, .. } => HostState::Dead,
            _ if silent.is_some_and(|silent| silent >= SILENT_AFTER) => HostState::Silent,
            Member { is_draining: true, .. } => HostState::Draining,
            _ => HostState::Live,
        };
        let Member { host, name, url, version, beats, ttl, reads_format, deployed, .. } = member;
        let DeploymentStatus { generation, trouble: error } = deployed;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            host,
            name,
            url,
            version,
            state,
            partitions,
            beats,
            last_seen_ms: silent.map(millis),
            ttl_ms: ttl.map(millis),
            refusal,
            generation,
            error,
            reads_format,
        }
    }
}

/// The hosts of the cluster, and who owns what
///
/// As the responding host last read it, about every second. 404 `no_cluster` if the daemon is not a
/// member of a cluster.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", operation_id = "cluster",
    responses((status = 200, body = ClusterView, description = "The cluster")))]
pub(crate) async fn show(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
) -> Result<Json<ClusterView>, Error> {
    principal.require(Permission::Read)?;
    principal.require_all_tenants()?;
    let cluster = daemon.require_cluster()?;
    let generations = cluster.deployments.as_ref().map(|all| all.list()).unwrap_or_default();
    Ok(Json(ClusterView::new(&*cluster.peers, &generations)))
}

/// Which host is drained.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Drain {
    /// The id of the host, or its name if no other live host has that; by default the host that
    /// responds.
    host: Option<String>,
    /// `false` ends the drain; by default true.
    draining: Option<bool>,
}

/// A host whose drain was begun or ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct DrainView {
    #[schema(value_type = String)]
    host: HostId,
    draining: bool,
}

/// Drains a host, or ends that
///
/// The host gives its partitions to others, each when it is quiet, and gets no new ones. It continues
/// to accept requests, and forwards them. 404 `unknown_host` if there is no such live host.
#[utoipa::path(post, path = "/v1/cluster/drain", tag = "cluster", request_body = Drain,
    responses((status = 200, body = DrainView, description = "It is recorded, and the host follows")))]
pub(crate) async fn drain(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Body(Drain { host, draining }): Body<Drain>,
) -> Result<Json<DrainView>, Error> {
    principal.require(Permission::Operate)?;
    principal.require_all_tenants()?;
    let peers = &daemon.require_cluster()?.peers;
    let draining = draining.unwrap_or(true);
    let host = match host {
        None => peers.host(),
        Some(wanted) => find_host(&peers.membership(), &wanted)?,
    };
    let drained = peers.drain(host, draining).await;
    if drained.map_err(|why| Error::new(Code::JournalUnavailable, why))? {
        tracing::info!(%host, draining, by = principal.owner, "the drain of a host was changed");
        Ok(Json(DrainView { host, draining }))
    } else {
        Err(unknown_host())
    }
}

/// Fewest characters of an id that name a host, as `sandglass cluster status` shows them.
const PREFIX_MIN: usize = 8;

/// The live host with this id, beginning of an id, URL or name.
fn find_host(membership: &Membership, wanted: &str) -> Result<HostId, Error> {
    let live = || membership.hosts.iter().filter(|member| !member.is_dead);
    if let Some(found) = live().find(|member| member.host.to_string() == wanted) {
        return Ok(found.host);
    }
    let is_named = |member: &&Member| {
        let is_begun = wanted.len() >= PREFIX_MIN && member.host.to_string().starts_with(wanted);
        is_begun || member.name == wanted || member.url.as_deref() == Some(wanted)
    };
    let mut named = live().filter(is_named);
    match (named.next(), named.next()) {
        (Some(found), None) => Ok(found.host),
        (Some(_), Some(_)) => {
            let message = "several live hosts have this name; use the whole id of one";
            Err(Error::new(Code::BadParams, message))
        }
        (None, _) => Err(unknown_host()),
    }
}

fn unknown_host() -> Error {
    let message = "there is no such live host; `sandglass cluster status` lists the hosts";
    Error::new(Code::UnknownHost, message)
}

/// What a host owns.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Nudge {
    /// The id of the host.
    #[schema(value_type = String)]
    host: Option<HostId>,
    #[schema(max_items = 64)]
    owned: Vec<Owned>,
}

/// A partition that a host owns.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Owned {
    #[schema(maximum = 63)]
    partition: u8,
    epoch: u64,
}

/// Reports what another host owns now; for hosts of the cluster
#[utoipa::path(post, path = "/v1/cluster/nudge", tag = "cluster", request_body = Nudge,
    responses((status = 204, description = "It is noted")))]
pub(crate) async fn nudge(
    State(daemon): State<Daemon>,
    _: FromPeer,
    _: NoQuery,
    Body(Nudge { host, owned }): Body<Nudge>,
) -> Result<StatusCode, Error> {
    let bad = |message: &str| Error::new(Code::BadBody, message);
    let host = host.ok_or_else(|| bad("`host` is missing: the id of the host that owns them"))?;
    if owned.len() > usize::from(Partition::COUNT) {
        return Err(bad("`owned` has more entries than there are partitions"));
    }
    let partition = |one: Owned| Partition::new(one.partition).map(|found| (found, one.epoch));
    let owned: Option<Vec<_>> = owned.into_iter().map(partition).collect();
    let owned = owned.ok_or_else(|| bad("there is no such `partition`"))?;
    daemon.require_cluster()?.peers.nudge(host, owned);
    Ok(StatusCode::NO_CONTENT)
}

/// A host.
#[derive(Serialize, ToSchema)]
pub(crate) struct IdentityView {
    #[schema(value_type = String)]
    host: HostId,
    /// Proves to hosts that accept the cluster key of this process that it sends that one; null without a
    /// key.
    #[schema(required)]
    key_proof: Option<String>,
}

/// Which host responds at this address; for hosts of the cluster
#[utoipa::path(get, path = "/v1/cluster/whoami", tag = "cluster",
    responses((status = 200, body = IdentityView, description = "The id of this process")))]
pub(crate) async fn whoami(
    State(daemon): State<Daemon>,
    _: FromPeer,
    _: NoQuery,
) -> Result<Json<IdentityView>, Error> {
    let Cluster { peers, key, .. } = daemon.require_cluster()?;
    let host = peers.host();
    let key_proof = key.as_ref().map(|key| key.proof(host));
    Ok(Json(IdentityView { host, key_proof }))
}

/// Does what a handler of another host requests of an entity of this one; for hosts of the cluster
///
/// The body and the response are `RemoteRequest` and `RemoteResponse` of `sandglass-runtime`: an ask, a
/// signal, a spawn, the end of a session whose handler asks, or a question about waits. An ask that waits
/// until the entity has settled is open until then; if it is ended before, the handlers that work for it are
/// stopped. 421 `not_owner` if this host does not own the entity.
#[utoipa::path(post, path = "/v1/cluster/deliver", tag = "cluster", request_body = Object,
    responses((status = 200, body = Object, description = "The result of the request")))]
pub(crate) async fn deliver(
    State(daemon): State<Daemon>,
    _: FromPeer,
    _: NoQuery,
    Body(request): Body<Option<RemoteRequest>>,
) -> Result<Json<RemoteResponse>, Error> {
    let request = request.ok_or_else(|| {
        Error::new(Code::BadBody, "the body is missing: a request of a handler of another host")
    })?;
    // Otherwise another host may be the owner.
    if !daemon.require_cluster()?.peers.is_trusted() {
        return Err(Error::not_owner(request.target()));
    }
    let time = daemon.settings().request_timeout;
    let time = request.budget().map_or(time, |budget| budget.saturating_add(time));
    let delivered = within(time, daemon.runtime().deliver(request)).await;
    Ok(Json(delivered.map_err(|_| super::too_long())??))
}
