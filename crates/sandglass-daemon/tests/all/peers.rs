//! The other hosts as a test sets them, with faults of the connections between them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, Response};
use futures_util::future::{BoxFuture, FutureExt as _, pending};
use futures_util::stream;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sandglass_daemon::{Cluster, ClusterKey, ForwardError, Peers, Route};
use sandglass_journal::{Journal, Journals};
use sandglass_model::{
    Agreement, DeploymentStatus, HostId, Member, Membership, Ownership, Partition,
};
use tokio::sync::Notify;

use crate::world::{Make, World};

pub(crate) const ROUTER: HostId = HostId::from_bytes([1; 16]);
pub(crate) const OWNER: HostId = HostId::from_bytes([2; 16]);
pub(crate) const OTHER: HostId = HostId::from_bytes([3; 16]);

/// What happens to a request on its way to another host.
#[derive(Debug)]
pub(crate) enum Fault {
    Refused,
    TimedOut,
    /// The connection breaks, and the request does not arrive.
    RequestLost,
    /// The request is done, and its response does not arrive.
    ResponseLost,
    /// The request is done, and the connection breaks after the head of the response.
    BodyLost,
    /// There is never a response. The sender is dropped with the request.
    Hangs(std::sync::mpsc::Sender<()>),
    /// There is this response instead.
    Instead(Response<Body>),
}

#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) route: Route,
    pub(crate) is_trusted: bool,
    pub(crate) membership: Membership,
    pub(crate) silent_for: Option<Duration>,
    pub(crate) faults: VecDeque<Fault>,
    /// The route after the next suspicion.
    pub(crate) if_suspected: Option<Route>,
    pub(crate) drains: bool,
    // What the daemon has done:
    pub(crate) waits: usize,
    pub(crate) sent: Vec<Sent>,
    pub(crate) suspected: Vec<HostId>,
    pub(crate) drained: Vec<(HostId, bool)>,
    pub(crate) nudged: Vec<(HostId, Vec<(Partition, u64)>)>,
}

#[derive(Debug)]
pub(crate) struct Fake {
    host: HostId,
    table: Mutex<Table>,
    /// Something in the table has changed.
    noted: Condvar,
    changes: Notify,
    client: Client<HttpConnector, Full<Bytes>>,
}

pub(crate) fn member(host: HostId, name: &str) -> Member {
    Member {
        host,
        name: name.to_owned(),
        url: Some("http://127.0.0.1:1".to_owned()),
        version: "0.1.0".to_owned(),
        reads_format: 1,
        is_draining: false,
        beats: 7,
        ttl: None,
        is_dead: false,
        deployed: DeploymentStatus::default(),
    }
}

impl Fake {
    pub(crate) fn new(host: HostId, route: Route) -> Arc<Self> {
        Self::of(host, route, Client::builder(TokioExecutor::new()).build_http())
    }

    /// With HTTP/2, as hosts have it: the other host notices that a request is ended.
    pub(crate) fn http2(host: HostId, route: Route) -> Arc<Self> {
        let mut builder = Client::builder(TokioExecutor::new());
        Self::of(host, route, builder.http2_only(true).build_http())
    }

    fn of(host: HostId, route: Route, client: Client<HttpConnector, Full<Bytes>>) -> Arc<Self> {
        let owned = |partition| Ownership { partition, epoch: 3, owner: Some(OWNER) };
        let membership = Membership {
            hosts: vec![member(ROUTER, "router"), member(OWNER, "owner"), member(OTHER, "other")],
            partitions: Partition::all().map(owned).collect(),
            agreed: Agreement::default(),
        };
        let table = Table {
            route,
            is_trusted: true,
            membership,
            silent_for: None,
            faults: VecDeque::new(),
            if_suspected: None,
            drains: true,
            waits: 0,
            sent: Vec::new(),
            suspected: Vec::new(),
            drained: Vec::new(),
            nudged: Vec::new(),
        };
        Arc::new(Self {
            host,
            table: Mutex::new(table),
            noted: Condvar::new(),
            changes: Notify::new(),
            client,
        })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no test panics while it holds this")
    }

    /// Changes the table, and reports that to the daemon.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Table)) {
        change(&mut self.table());
        self.changes.notify_waiters();
    }

    pub(crate) fn set_route(&self, route: Route) {
        self.change(|table| table.route = route);
    }

    /// Waits until the daemon has done something.
    #[track_caller]
    pub(crate) fn until(&self, is_done: impl Fn(&Table) -> bool) {
        let time = Duration::from_secs(60);
        let (_table, waited) = self
            .noted
            .wait_timeout_while(self.table(), time, |table| !is_done(table))
            .expect("no test panics while it holds this");
        assert!(!waited.timed_out(), "it was never done");
    }

    fn note(&self, note: impl FnOnce(&mut Table)) {
        note(&mut self.table());
        self.noted.notify_all();
    }

    async fn send(
        &self,
        url: &str,
        request: Request<Bytes>,
    ) -> Result<Response<Body>, ForwardError> {
        let (mut parts, body) = request.into_parts();
        parts.uri = format!("{url}{}", parts.uri).parse().expect("an address");
        let sent = self.client.request(Request::from_parts(parts, Full::new(body))).await;
        let response = sent.map_err(|error| {
            if error.is_connect() { ForwardError::Refused } else { ForwardError::Broken }
        })?;
        Ok(response.map(Body::new))
    }
}

impl Peers for Fake {
    fn host(&self) -> HostId {
        self.host
    }

    fn is_trusted(&self) -> bool {
        self.table().is_trusted
    }

    fn route(&self, _: Partition) -> Route {
        self.table().route.clone()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        let changed = self.changes.notified();
        self.note(|table| table.waits += 1);
        changed.boxed()
    }

    fn suspect(&self, host: HostId) {
        self.note(|table| {
            table.suspected.push(host);
            if let Some(route) = table.if_suspected.take() {
                table.route = route;
            }
        });
        self.changes.notify_waiters();
    }

    fn membership(&self) -> Membership {
        self.table().membership.clone()
    }

    fn is_dead(&self, host: HostId) -> bool {
        self.table().membership.host(host).is_none_or(|member| member.is_dead)
    }

    fn silent_for(&self, host: HostId) -> Option<Duration> {
        self.table().silent_for.filter(|_| host == OTHER)
    }

    fn drain(&self, host: HostId, is_draining: bool) -> BoxFuture<'_, Result<bool, String>> {
        self.note(|table| table.drained.push((host, is_draining)));
        let drains = self.table().drains;
        async move { if drains { Ok(true) } else { Err("the database does not respond".to_owned()) } }
            .boxed()
    }

    fn nudge(&self, from: HostId, owned: Vec<(Partition, u64)>) {
        self.note(|table| table.nudged.push((from, owned)));
    }

    fn forward<'a>(
        &'a self,
        url: &'a str,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Body>, ForwardError>> {
        let sent = Sent {
            method: request.method().clone(),
            target: request.uri().to_string(),
            headers: request.headers().clone(),
        };
        let fault = self.table().faults.pop_front();
        self.note(|table| table.sent.push(sent));
        async move {
            match fault {
                None => self.send(url, request).await,
                Some(Fault::Refused) => Err(ForwardError::Refused),
                Some(Fault::TimedOut) => Err(ForwardError::TimedOut),
                Some(Fault::RequestLost) => Err(ForwardError::Broken),
                Some(Fault::ResponseLost) => {
                    self.send(url, request).await.expect("a response");
                    Err(ForwardError::Broken)
                }
                Some(Fault::BodyLost) => {
                    let (head, _) = self.send(url, request).await.expect("a response").into_parts();
                    let broken = stream::iter([Err::<Bytes, _>("the connection broke")]);
                    Ok(Response::from_parts(head, Body::from_stream(broken)))
                }
                Some(Fault::Hangs(guard)) => {
                    let _guard = guard;
                    pending().await
                }
                Some(Fault::Instead(response)) => Ok(response),
            }
        }
        .boxed()
    }
}

/// Two hosts: one owns all entities, and the other one gets the requests.
pub(crate) struct Pair {
    pub(crate) owner: World,
    pub(crate) router: World,
    pub(crate) owners: Arc<Fake>,
    pub(crate) peers: Arc<Fake>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::of(Make::default, None, None)
    }

    /// Of two hosts as `make` makes them, each with its cluster key.
    pub(crate) fn of(make: impl Fn() -> Make, owners_key: Option<&str>, key: Option<&str>) -> Self {
        let cluster = |peers: &Arc<Fake>, key: Option<&str>| Cluster {
            peers: Arc::clone(peers) as Arc<dyn Peers>,
            key: key.map(|text| ClusterKey::new(text).expect("a key")),
            has_certificates: false,
            deployments: None,
        };
        let owners = Fake::new(OWNER, Route::Here);
        let owner = World::of(Make { cluster: Some(cluster(&owners, owners_key)), ..make() });
        let peers = Fake::new(ROUTER, Route::Moving);
        let made = make();
        let of_owner = || Journals::from(Arc::clone(&owner.journal) as Arc<dyn Journal>);
        let journals = Some(made.journals.unwrap_or_else(of_owner));
        let router = World::of(Make { cluster: Some(cluster(&peers, key)), journals, ..made });
        let pair = Self { owner, router, owners, peers };
        pair.peers.set_route(pair.at_owner());
        pair
    }

    /// The route to the owner.
    pub(crate) fn at_owner(&self) -> Route {
        Route::At { host: OWNER, url: format!("http://{}", self.owner.address) }
    }

    /// Lets each of the two reach the other, and no third host.
    pub(crate) fn connect(&self) {
        for peers in [&self.peers, &self.owners] {
            peers.change(|table| {
                table.membership.hosts.truncate(2);
                for (member, world) in
                    table.membership.hosts.iter_mut().zip([&self.router, &self.owner])
                {
                    member.url = Some(format!("http://{}", world.address));
                }
            });
        }
    }

    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.peers.table().faults.extend(faults);
    }
}
