//! Asks the other hosts for what only they know: which handlers are in flight there, and which sessions
//! are awake. Each host answers for itself; the one that a client has asked merges.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use axum::Json;
use axum::body::{Bytes, to_bytes};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _, stream};
use sandglass_http::timer::within;
use sandglass_model::HostId;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::outgoing::Outgoing;
use super::{Cluster, ForwardError, ForwardedBy, Peers};
use crate::Daemon;
use crate::access::Principal;
use crate::error::{Code, Error};

/// Hosts that are asked: as many as a cluster is designed for. Others are reported as missing.
const HOSTS_MAX: usize = 32;
/// How long a host may take for its whole response, because the client waits for the slowest one.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Largest response: several times the largest page and the largest snapshot.
const ANSWER_MAX_BYTES: usize = 4 << 20;

/// A host that did not respond in time. What it has is not in the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MissingView {
    #[schema(value_type = String)]
    pub(crate) host: HostId,
    /// Its machine and process id, for people. Not unique.
    pub(crate) name: String,
}

/// What a client asks of all hosts, or another host of this one.
#[derive(Debug)]
pub(crate) struct Question {
    target: PathAndQuery,
    authorization: Option<HeaderValue>,
    is_of_host: bool,
}

impl FromRequestParts<Daemon> for Question {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        let target = parts.uri.path_and_query().cloned();
        Ok(Self {
            target: target.ok_or_else(|| Error::new(Code::BadPath, "the request has no path"))?,
            authorization: parts.headers.get(header::AUTHORIZATION).cloned(),
            is_of_host: parts.extensions.get::<ForwardedBy>().is_some(),
        })
    }
}

impl Question {
    /// A question of this host for `target`.
    pub(crate) fn own(target: &'static str) -> Self {
        let target = PathAndQuery::from_static(target);
        Self { target, authorization: None, is_of_host: false }
    }

    /// The cluster whose hosts have to be asked; `None` if the response is about this host only.
    pub(crate) fn cluster<'d>(&self, daemon: &'d Daemon) -> Option<&'d Cluster> {
        daemon.cluster().filter(|_| !self.is_of_host)
    }

    /// The response with `own`, the page of this host, and those of the others if a client asks.
    ///
    /// # Errors
    /// Errors if the page cannot be written, or the principal cannot be sent.
    pub(crate) async fn respond<K: Ord + FromStr>(
        &self,
        daemon: &Daemon,
        principal: &Principal,
        list: List,
        own: impl Serialize,
        limit: usize,
    ) -> Result<Response, Error> {
        let Some(cluster) = self.cluster(daemon) else { return Ok(Json(own).into_response()) };
        let outgoing = self.outgoing(cluster, principal)?;
        let own = serde_json::to_value(own)
            .map_err(|_| Error::new(Code::Internal, "the page cannot be written"))?;
        let page = list.merge::<K>(daemon, cluster, &outgoing, own, limit).await;
        Ok(Json(page).into_response())
    }

    /// Whether it comes from another host.
    pub(crate) const fn is_of_host(&self) -> bool {
        self.is_of_host
    }

    /// As it is sent on behalf of `principal`.
    pub(crate) fn outgoing(
        &self,
        cluster: &Cluster,
        principal: &Principal,
    ) -> Result<Outgoing, Error> {
        Outgoing::question(cluster, self.target.clone(), principal, self.authorization.as_ref())
    }
}

/// Another host.
#[derive(Clone, Debug)]
pub(crate) struct Other {
    pub(crate) host: HostId,
    name: String,
    url: String,
}

impl From<Other> for MissingView {
    fn from(Other { host, name, .. }: Other) -> Self {
        Self { host, name }
    }
}

/// The response of a host.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The same as the one whose tag the request had.
    Same,
    New {
        tag: Option<HeaderValue>,
        json: Value,
    },
}

/// The hosts that own something or may soon, besides this one, in the order of their names.
fn others(peers: &dyn Peers) -> Vec<Other> {
    let me = peers.host();
    let hosts = peers.membership().hosts.into_iter();
    let hosts = hosts.filter(|member| member.host != me && !member.is_dead);
    let mut others: Vec<Other> = hosts
        .filter_map(|member| Some(Other { host: member.host, name: member.name, url: member.url? }))
        .collect();
    others.sort_by(|a, b| (&a.name, a.host).cmp(&(&b.name, b.host)));
    others
}

/// Asks all other hosts at once with the requests that `request` returns for each, and yields their
/// responses as they arrive; `None` for a host without a response.
pub(crate) fn ask_all<'a>(
    cluster: &'a Cluster,
    request: impl Fn(HostId) -> Request<Bytes> + 'a,
) -> impl Stream<Item = (Other, Option<Reply>)> + 'a {
    let peers = &*cluster.peers;
    let asked = others(peers).into_iter().enumerate().map(move |(number, other)| {
        let request = (number < HOSTS_MAX).then(|| request(other.host));
        async move {
            let reply = match request {
                Some(request) => ask(peers, &other, request).await,
                None => None,
            };
            (other, reply)
        }
    });
    stream::iter(asked).buffer_unordered(HOSTS_MAX)
}

async fn ask(peers: &dyn Peers, other: &Other, request: Request<Bytes>) -> Option<Reply> {
    let asked = async {
        let response = peers.forward(&other.url, request).await.map_err(|error| {
            if error == ForwardError::Refused {
                peers.suspect(other.host);
            }
            error.to_string()
        })?;
        match response.status() {
            StatusCode::NOT_MODIFIED => return Ok(Reply::Same),
            StatusCode::OK => {}
            status => return Err(format!("it responds with {status}")),
        }
        let tag = response.headers().get(header::ETAG).cloned();
        let body = to_bytes(response.into_body(), ANSWER_MAX_BYTES).await;
        let json = body.map_err(|error| error.to_string()).and_then(|body| {
            serde_json::from_slice(&body).map_err(|_| "the response is not JSON".to_owned())
        })?;
        Ok(Reply::New { tag, json })
    };
    let replied = within(ANSWER_MAX, asked).await;
    let replied = replied.unwrap_or_else(|late| Err(late.to_string()));
    replied
        .inspect_err(|why| {
            tracing::debug!(host = %other.host, why, "a host did not respond to another one");
        })
        .ok()
}

/// A list that is paged by a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    /// The field of the page with the list.
    pub(crate) field: &'static str,
    /// The field of an entry with its key.
    pub(crate) key: &'static str,
}

impl List {
    /// Merges `own`, the page of this host, with the pages of the others behind the same key: the first
    /// `limit` entries of all hosts in the order of their keys `K`. An entry that two hosts have, because
    /// it moves, is there once.
    async fn merge<K: Ord + FromStr>(
        self,
        daemon: &Daemon,
        cluster: &Cluster,
        outgoing: &Outgoing,
        own: Value,
        limit: usize,
    ) -> Value {
        let _permit = daemon.gathering().await;
        let mut merged = Merged::<K>::default();
        // Its own page is as it has to be.
        let _ = merged.add(self, own);
        let mut missing = Vec::new();
        let mut replies = std::pin::pin!(ask_all(cluster, |_| outgoing.request()));
        while let Some((other, reply)) = replies.next().await {
            let added = match reply {
                Some(Reply::New { json, .. }) => merged.add(self, json),
                Some(Reply::Same) | None => None,
            };
            match added {
                Some(()) => merged.cut(limit),
                None => missing.push(MissingView::from(other)),
            }
        }
        missing.sort_by(|a, b| (&a.name, a.host).cmp(&(&b.name, b.host)));
        merged.page(self, &missing)
    }
}

/// The entries of several hosts.
struct Merged<K> {
    entries: BTreeMap<K, Value>,
    /// Whether there are entries behind these.
    has_more: bool,
}

impl<K> Default for Merged<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), has_more: false }
    }
}

impl<K: Ord + FromStr> Merged<K> {
    /// Adds the page of a host; `None` if it is not such a page.
    fn add(&mut self, list: List, mut page: Value) -> Option<()> {
        let Value::Array(entries) = page.get_mut(list.field)?.take() else { return None };
        let keyed: Option<Vec<(K, Value)>> = entries
            .into_iter()
            .map(|entry| Some((entry.get(list.key)?.as_str()?.parse().ok()?, entry)))
            .collect();
        self.has_more |= page.get("next").is_some_and(|next| !next.is_null());
        for (key, entry) in keyed? {
            self.entries.entry(key).or_insert(entry);
        }
        Some(())
    }

    /// Keeps the first `limit` entries. A page with more behind it has `limit` entries itself, so none of
    /// those that are kept is behind its last one.
    fn cut(&mut self, limit: usize) {
        while self.entries.len() > limit {
            self.entries.pop_last();
            self.has_more = true;
        }
    }

    fn page(self, list: List, missing: &[MissingView]) -> Value {
        let last = self.entries.last_key_value().filter(|_| self.has_more);
        let next = last.and_then(|(_, entry)| entry.get(list.key)).cloned();
        serde_json::json!({
            list.field: self.entries.into_values().collect::<Vec<_>>(),
            "next": next,
            "missing": missing,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIST: List = List { field: "all", key: "id" };

    fn page(ids: &[u32], next: Option<u32>) -> Value {
        let entries: Vec<Value> = ids.iter().map(|id| json!({"id": id.to_string()})).collect();
        json!({"all": entries, "next": next.map(|id| id.to_string())})
    }

    #[test]
    fn pages_of_hosts_are_one_list() {
        let merge = |pages: &[Value], limit| {
            let mut merged = Merged::<u32>::default();
            for page in pages {
                merged.add(LIST, page.clone()).expect("a page");
                merged.cut(limit);
            }
            let mut page = merged.page(LIST, &[]);
            page["all"] = page["all"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|one| one["id"].clone())
                .collect();
            page
        };
        let (odd, even) = (page(&[1, 3, 5], Some(5)), page(&[2, 10], None));
        let expected = json!({"all": ["1", "2", "3"], "next": "3", "missing": []});
        assert_eq!(merge(&[odd.clone(), even.clone()], 3), expected);
        assert_eq!(merge(&[even, odd], 3), expected);
        let all = json!({"all": ["7", "8"], "next": null, "missing": []});
        assert_eq!(merge(&[page(&[8], None), page(&[7, 8], None)], 2), all);
        assert_eq!(merge(&[page(&[], None)], 2), json!({"all": [], "next": null, "missing": []}));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        for bad in [
            json!({}),
            json!({"all": 1}),
            json!({"all": [{"id": 1}]}),
            json!({"all": [{}]}),
            json!([]),
        ] {
            assert_eq!(Merged::<u32>::default().add(LIST, bad.clone()), None, "{bad}");
        }
    }
}
