//! The HTTP/2 client of a host for the other hosts: it forwards requests of clients, asks which process is
//! at an address, and reports what this host owns. It knows whether a request that failed was sent.

mod connection;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use hyper::client::conn::http2::SendRequest;
use rustls::ClientConfig;
use sandglass_model::{HostId, Partition, Refusal};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use self::connection::{Place, connect};
use crate::timer::{after, until, within};

/// Requests that one connection carries at once: fewer than a host admits on one (128), so that no
/// request waits for another one to end.
const REQUESTS_MAX: u32 = 100;
/// Most connections to one host. Further requests are refused.
const CONNECTIONS_MAX: usize = 8;
/// The time limit for getting a connection, and for the response to a question.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Where a host responds with its id.
const WHOAMI: &str = "/v1/cluster/whoami";
/// Largest response to a question, in bytes.
const ANSWER_MAX_BYTES: usize = 4 << 10;

/// The body of a response of another host, as it arrives.
pub type PeerBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Why a request to another host has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It was not sent: no process listens at the address.
    #[error("the host refuses connections")]
    Refused,
    /// It was not sent: no connection was made in time, or too many requests are in flight.
    #[error("the host cannot be reached")]
    Unreachable,
    /// It was not sent: one of the hosts does not trust the certificate of the other one.
    #[error("there is no TLS connection to the host that both trust")]
    Untrusted,
    /// The connection was lost after the request may have been sent: it may have been carried out.
    #[error("the connection to the host was lost before its response")]
    Broken,
}

/// What is at the address of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The process with this id.
    Process(HostId),
    /// A process that refuses this one, or that this one refuses.
    Refusal(Refusal),
    /// No process: the system of that machine refuses connections.
    Nobody,
    /// That is unknown.
    NoAnswer,
}

/// The response of a host that is asked which process it is.
#[derive(Deserialize)]
struct Whoami {
    host: HostId,
    /// Proves which cluster key it sends.
    #[serde(default)]
    key_proof: Option<String>,
}

/// Whether a proof of a host shows that this process accepts the key that it sends.
pub type AcceptsProof = dyn Fn(HostId, &str) -> bool + Send + Sync;

/// The key that hosts show to each other.
#[derive(Clone)]
pub struct PeerKey {
    /// The header with the key. The value is marked as sensitive.
    pub header: (HeaderName, HeaderValue),
    /// Checks the keys of other hosts.
    pub accepts: Arc<AcceptsProof>,
}

/// A report of what a host owns.
#[derive(Serialize)]
struct Nudge {
    host: HostId,
    owned: Vec<Owned>,
}

#[derive(Serialize)]
struct Owned {
    partition: Partition,
    epoch: u64,
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("the host refuses the cluster key of this one")]
    KeyRefused,
}

/// The other hosts. Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    peers: Arc<Mutex<BTreeMap<String, Arc<Peer>>>>,
    tls: Arc<RwLock<TlsConnector>>,
    key: Option<PeerKey>,
    /// Whether this process proves by a certificate that it is a host, so that no key is needed where
    /// there is TLS.
    has_certificate: bool,
}

/// The connections to one host.
#[derive(Default)]
struct Peer {
    lanes: Mutex<Vec<Lane>>,
    /// Held while a connection is made, so that many requests do not make one each.
    connecting: tokio::sync::Mutex<()>,
}

/// One connection, and how many requests it carries.
#[derive(Clone)]
struct Lane {
    sender: SendRequest<Full<Bytes>>,
    in_flight: Arc<AtomicU32>,
}

/// A request in flight.
struct InFlight(Arc<AtomicU32>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peers {
    /// Uses `tls`, which must negotiate HTTP/2, for addresses with `https`, and sends `key` with questions
    /// and reports, if there is one.
    #[must_use]
    pub fn new(tls: Arc<ClientConfig>, key: Option<PeerKey>) -> Self {
        let has_certificate = tls.client_auth_cert_resolver.has_certs();
        let tls = Arc::new(RwLock::new(TlsConnector::from(tls)));
        Self { peers: Arc::default(), tls, key, has_certificate }
    }

    /// Uses `tls` for connections that are made from now on.
    pub fn set_tls(&self, tls: Arc<ClientConfig>) {
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = TlsConnector::from(tls);
    }

    /// Sends a request to the host at `url`, with the path and query exactly as they are. The response is
    /// returned when its head has arrived. If this or the body is dropped, the request is ended.
    ///
    /// # Errors
    /// There is no response. If there is no connection within 1 s, it is [`PeerError::Unreachable`].
    pub async fn send(
        &self,
        url: &str,
        request: Request<Bytes>,
    ) -> Result<Response<PeerBody>, PeerError> {
        let place = Place::parse(url).ok_or(PeerError::Unreachable)?;
        let mut request = place.addressed(request);
        let peer = self.peer(url);
        let by = after(CONNECT_LIMIT);
        // A connection may have been lost since its last request.
        for _ in 0..2 {
            let lane = until(by, peer.lane(self, &place)).await;
            let (mut sender, in_flight) = lane.ok_or(PeerError::Unreachable)??;
            let mut failed = match sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok(response.map(|body| {
                        // The closure only owns `in_flight`, which is dropped together with the body.
                        UnsyncBoxBody::new(body.map_err(move |error| {
                            let _owned = &in_flight;
                            error
                        }))
                    }));
                }
                Err(failed) => failed,
            };
            peer.drop_closed();
            request = failed.take_message().ok_or(PeerError::Broken)?;
        }
        Err(PeerError::Unreachable)
    }

    /// Asks which process is at `url`.
    pub(crate) async fn find(&self, url: &str) -> Found {
        // The second time if a connection was lost, perhaps with the process.
        for _ in 0..2 {
            match self.ask(url, Method::GET, WHOAMI, Bytes::new()).await {
                Ok(body) => {
                    let answer: Result<Whoami, _> = serde_json::from_slice(&body);
                    return answer.map_or(Found::NoAnswer, |answer| self.judge(url, &answer));
                }
                Err(AskError::KeyRefused) => return Found::Refusal(Refusal::KeyRefused),
                Err(AskError::Peer(PeerError::Refused)) => return Found::Nobody,
                Err(AskError::Peer(PeerError::Untrusted)) => {
                    return Found::Refusal(Refusal::Certificate);
                }
                Err(AskError::Peer(PeerError::Unreachable)) => return Found::NoAnswer,
                Err(AskError::Peer(PeerError::Broken)) => {}
            }
        }
        Found::NoAnswer
    }

    /// Asks the hosts at `urls` at the same time. If all that answer and this process refuse each other,
    /// returns the address of one, and why.
    pub async fn refusal_by_all(&self, urls: BTreeSet<&str>) -> Option<(String, Refusal)> {
        let mut asking = JoinSet::new();
        for url in urls.into_iter().map(str::to_owned) {
            let peers = self.clone();
            asking.spawn(async move {
                let found = peers.find(&url).await;
                (url, found)
            });
        }
        let mut refused = None;
        while let Some(found) = asking.join_next().await {
            match found {
                Ok((url, Found::Refusal(why))) => refused = Some((url, why)),
                Ok((_, Found::Process(_))) => return None,
                Ok((_, Found::Nobody | Found::NoAnswer)) | Err(_) => {}
            }
        }
        refused
    }

    /// What is at `url`, judged by its answer.
    fn judge(&self, url: &str, answer: &Whoami) -> Found {
        let Some(PeerKey { accepts, .. }) = &self.key else { return Found::Process(answer.host) };
        let is_trusted_by_certificate = self.has_certificate && url.starts_with("https://");
        match &answer.key_proof {
            Some(proof) if !is_trusted_by_certificate && !accepts(answer.host, proof) => {
                Found::Refusal(Refusal::OtherKey)
            }
            _ => Found::Process(answer.host),
        }
    }

    /// Reports to the host at `url` what `host` owns, so that it need not wait for its next beat.
    pub(crate) async fn nudge(&self, url: &str, host: HostId, owned: &[(Partition, u64)]) {
        let owned = owned.iter().map(|&(partition, epoch)| Owned { partition, epoch }).collect();
        let Ok(body) = serde_json::to_vec(&Nudge { host, owned }) else { return };
        // If it fails, that host reads the same from the database within a second.
        let _ = self.ask(url, Method::POST, "/v1/cluster/nudge", body.into()).await;
    }

    async fn ask(
        &self,
        url: &str,
        method: Method,
        path: &'static str,
        body: Bytes,
    ) -> Result<Bytes, AskError> {
        let request = self.question(method, path, body);
        let answer = async {
            let response = self.send(url, request).await?;
            if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Err(AskError::KeyRefused);
            }
            let body = Limited::new(response.into_body(), ANSWER_MAX_BYTES);
            Ok(body.collect().await.map_err(|_| PeerError::Broken)?.to_bytes())
        };
        // Not `Broken`, because a second attempt would take as long.
        within(ANSWER_LIMIT, answer).await.unwrap_or(Err(PeerError::Unreachable.into()))
    }

    fn question(&self, method: Method, path: &'static str, body: Bytes) -> Request<Bytes> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(PeerKey { header: (name, key), .. }) = &self.key {
            headers.insert(name, key.clone());
        }
        request
    }

    fn peer(&self, url: &str) -> Arc<Peer> {
        let mut peers = lock(&self.peers);
        match peers.get(url) {
            Some(peer) => Arc::clone(peer),
            None => Arc::clone(peers.entry(url.to_owned()).or_default()),
        }
    }

    /// Forgets hosts at other places than `urls`. Their connections end with their requests.
    pub(crate) fn keep_only<'a>(&self, urls: impl Iterator<Item = &'a str>) {
        let urls: BTreeSet<&str> = urls.collect();
        lock(&self.peers).retain(|url, _| urls.contains(url.as_str()));
    }
}

impl Peer {
    /// A connection that can carry one more request; a new one if there is none. The caller limits the
    /// time, which includes that for the connections of other requests.
    async fn lane(
        &self,
        peers: &Peers,
        place: &Place,
    ) -> Result<(SendRequest<Full<Bytes>>, InFlight), PeerError> {
        if let Some(lane) = self.free_lane() {
            return Ok(lane);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(lane) = self.free_lane() {
            return Ok(lane);
        }
        if lock(&self.lanes).len() >= CONNECTIONS_MAX {
            return Err(PeerError::Unreachable);
        }
        let tls = peers.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Boxed, because few requests make a connection, and its handshake is large.
        let mut sender = Box::pin(connect(place, &tls)).await?;
        // A proxy may accept connections to a process that has ended: a request would be lost there,
        // and its outcome unknown. So the first request is one that may be lost.
        let greeting = place.addressed(peers.question(Method::GET, WHOAMI, Bytes::new()));
        sender.send_request(greeting).await.map_err(|_| PeerError::Unreachable)?;
        lock(&self.lanes).push(Lane { sender, in_flight: Arc::default() });
        self.free_lane().ok_or(PeerError::Unreachable)
    }

    fn free_lane(&self) -> Option<(SendRequest<Full<Bytes>>, InFlight)> {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|lane| !lane.sender.is_closed());
        let has_slot = |lane: &&Lane| lane.in_flight.load(Ordering::Relaxed) < REQUESTS_MAX;
        let Lane { sender, in_flight } = lanes.iter().find(has_slot)?.clone();
        in_flight.fetch_add(1, Ordering::Relaxed);
        Some((sender, InFlight(in_flight)))
    }

    fn drop_closed(&self) {
        lock(&self.lanes).retain(|lane| !lane.sender.is_closed());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code between two changes of one critical section can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerKey").finish_non_exhaustive()
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In virtual time.
    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_for_the_same_connection_wait_for_it_only_once() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let peers = Peers::new(Arc::new(tls), None);
        // Its system accepts connections, and no process completes the handshake.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address");
        let url = format!("https://{}", silent.local_addr().expect("an address"));
        let begun = after(Duration::ZERO);
        let send = async || peers.send(&url, Request::new(Bytes::new())).await.map(|_| ());
        let sent = tokio::join!(send(), send(), send());
        let unreachable = Err(PeerError::Unreachable);
        assert_eq!(sent, (unreachable, unreachable, unreachable));
        assert!(after(Duration::ZERO) - begun < 2 * CONNECT_LIMIT, "one waited for another");
    }
}
