//! A client's request as it is sent to the owner.

use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use sandglass_http::remove_hop_by_hop;
use sandglass_model::HostId;

use super::admission::write_principal;
use super::{CLUSTER_KEY, Cluster, FORWARDED_BY, PRINCIPAL};
use crate::access::Principal;
use crate::error::{Code, Error};
use crate::extract::IDEMPOTENCY_KEY;

/// Headers that the receiving host has used up: about the framing of the body, and about the site that
/// sent the request, which is checked once.
const USED_UP: [HeaderName; 6] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::ORIGIN,
    header::REFERER,
    header::COOKIE,
];

/// The headers with which browsers describe the site that sent a request.
const SITE: &str = "sec-fetch-";

/// The headers of a request of this host itself, which acts for its handlers.
pub(super) fn own_headers(cluster: &Cluster) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(FORWARDED_BY, host_header(cluster.peers.host())?);
    if let Some(key) = &cluster.key {
        headers.insert(CLUSTER_KEY, key.header());
    }
    Ok(headers)
}

/// What is sent of a request, however often.
#[derive(Debug)]
pub(crate) struct Outgoing {
    method: Method,
    target: PathAndQuery,
    headers: HeaderMap,
    body: Bytes,
}

impl Outgoing {
    /// The request of `principal` with the head `parts`, from which the headers between hosts were
    /// removed.
    pub(super) fn new(
        cluster: &Cluster,
        parts: &Parts,
        principal: &Principal,
        body: Bytes,
    ) -> Result<Self, Error> {
        let target = parts.uri.path_and_query().cloned();
        let target = target.ok_or_else(|| Error::new(Code::BadPath, "the request has no path"))?;
        let mut headers = parts.headers.clone();
        remove_hop_by_hop(&mut headers);
        let site = headers.keys().filter(|name| name.as_str().starts_with(SITE)).cloned();
        let site: Vec<HeaderName> = site.collect();
        for name in USED_UP.iter().chain(&site).chain(&[CLUSTER_KEY, PRINCIPAL, FORWARDED_BY]) {
            headers.remove(name);
        }
        sign(&mut headers, cluster, principal)?;
        Ok(Self { method: parts.method.clone(), target, headers, body })
    }

    /// What this host asks another one for `principal`, whose `authorization` counts there if hosts cannot
    /// prove what they are.
    pub(super) fn question(
        cluster: &Cluster,
        target: PathAndQuery,
        principal: &Principal,
        authorization: Option<&HeaderValue>,
    ) -> Result<Self, Error> {
        let authorization = authorization.map(|value| (header::AUTHORIZATION, value.clone()));
        let mut headers = HeaderMap::from_iter(authorization);
        sign(&mut headers, cluster, principal)?;
        Ok(Self { method: Method::GET, target, headers, body: Bytes::new() })
    }

    /// Whether repeating it changes nothing.
    pub(super) fn is_safe(&self) -> bool {
        self.method.is_safe()
    }

    /// Whether it can be sent again although it may have been done: it changes nothing, or the entity
    /// remembers its key.
    pub(super) fn can_be_repeated(&self) -> bool {
        self.is_safe() || self.headers.contains_key(IDEMPOTENCY_KEY)
    }

    /// Whether it waits for the entity to settle.
    pub(super) fn waits(&self) -> bool {
        let pairs = self.target.query().unwrap_or_default().split('&');
        pairs.into_iter().any(|pair| pair.split('=').next() == Some("wait"))
    }

    /// The request, to be sent once.
    pub(crate) fn request(&self) -> Request<Bytes> {
        let mut request = Request::new(self.body.clone());
        request.method_mut().clone_from(&self.method);
        *request.uri_mut() = Uri::from(self.target.clone());
        request.headers_mut().clone_from(&self.headers);
        request
    }
}

/// States for whom the request is, and which host sends it.
fn sign(headers: &mut HeaderMap, cluster: &Cluster, principal: &Principal) -> Result<(), Error> {
    if cluster.authenticates_hosts() {
        // The owner does not need the client's key, because it trusts this host.
        headers.remove(header::AUTHORIZATION);
        headers.insert(PRINCIPAL, write_principal(principal)?);
    }
    if let Some(key) = &cluster.key {
        headers.insert(CLUSTER_KEY, key.header());
    }
    headers.insert(FORWARDED_BY, host_header(cluster.peers.host())?);
    Ok(())
}

fn host_header(host: HostId) -> Result<HeaderValue, Error> {
    HeaderValue::from_str(&host.to_string())
        .map_err(|_| Error::new(Code::Internal, "the id of this host is not text"))
}
