//! A snapshot of the live view: the handlers in flight with what each is doing, the most recent kills,
//! and the blocked sessions, at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{Host, RunNow};
use sandglass_liveness::is_stuck;
use sandglass_model::{Clock, DispatchId, EntityRef, HostId, Monotonic, WallTime};
use sandglass_runtime::{BlockedSession, RunView, Runtime, Snapshot};
use serde::Serialize;
use utoipa::ToSchema;

use super::sessions::{BlockedView, SessionNow, SessionNowView};
use super::{millis, remaining_ms};
use crate::cluster::MissingView;
use crate::recent_kills::KillView;
use crate::route::HostLine;
use crate::view::{HandlerView, HealthView, ReasonCode};

/// Handlers of a snapshot: more than anyone reads, and a snapshot is sent four times a second.
pub(super) const ROWS_MAX: usize = 200;

/// Blocked sessions of a snapshot: as many as kills, for the same reason.
pub(super) const BLOCKED_MAX: usize = 50;

/// The activity of a handler that is not in the host: its module is being compiled, or its end is
/// being recorded.
const PENDING: &str = "pending";

/// The state at one moment.
#[derive(Debug)]
pub(crate) struct LiveSnapshot {
    pub(super) taken_at: Monotonic,
    at: WallTime,
    content: Content,
    /// How often the content has changed since the daemon started.
    change: u64,
}

/// Everything but the moment itself. Nothing in it changes by the mere passing of time, so that two
/// snapshots are equal if nothing happened between them.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    unhealthy: Vec<ReasonCode>,
    rows: Vec<Row>,
    in_flight: usize,
    kills: Vec<Arc<KillView>>,
    blocked: Vec<BlockedSession>,
    /// The number of all blocked sessions.
    all_blocked: usize,
}

/// A handler in flight.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    handler: InFlight,
    activity: String,
    since: Option<Monotonic>,
    /// The calls in flight while its guest goes on, and since when.
    calls: Vec<(String, Monotonic)>,
    /// When its budget began, and its deadline.
    budget: Option<(Monotonic, Monotonic)>,
    is_stuck: bool,
}

/// A handler in flight, as its entity knows it.
#[derive(Debug, PartialEq, Eq)]
struct InFlight {
    entity: EntityRef,
    run: RunView,
    session: Option<Arc<SessionNow>>,
}

impl InFlight {
    /// The handlers of `snapshot`, with the state of their session at `now`.
    fn all_of<'a>(runtime: &Runtime, snapshot: &'a Snapshot) -> impl Iterator<Item = Self> + 'a {
        let is_session = snapshot.session.is_some();
        let status = is_session.then(|| runtime.status_now(snapshot)).flatten();
        let session = status.and_then(|status| SessionNow::new(snapshot, status)).map(Arc::new);
        snapshot.in_flight.iter().map(move |run| Self {
            entity: snapshot.entity.clone(),
            run: run.clone(),
            session: session.clone(),
        })
    }
}

impl LiveSnapshot {
    pub(super) fn take(
        runtime: &Runtime,
        host: &Host,
        clock: &dyn Clock,
        unhealthy: Vec<ReasonCode>,
        kills: Vec<Arc<KillView>>,
    ) -> Self {
        // The host is read before the entities: a handler that ends in between is then left out
        // instead of being shown twice.
        let live = host.live_runs(ROWS_MAX);
        let busy = runtime.busy();
        let (blocked, all_blocked) = runtime.blocked_sessions(BLOCKED_MAX);
        let (taken_at, at) = (clock.now(), clock.wall());
        let in_flight: Vec<InFlight> =
            busy.iter().flat_map(|snapshot| InFlight::all_of(runtime, snapshot)).collect();
        let content = Content {
            unhealthy,
            in_flight: in_flight.len(),
            rows: rows(live.runs, in_flight, taken_at),
            kills,
            blocked,
            all_blocked,
        };
        Self { taken_at, at, content, change: 0 }
    }

    /// Counts whether this is a change, if `last` is the snapshot before it.
    pub(super) fn follow(&mut self, last: Option<&Self>) {
        let change = |last: &Self| last.change + u64::from(!self.is_same(last));
        self.change = last.map_or(0, change);
    }

    /// How often the content has changed since the daemon started.
    pub(crate) const fn change(&self) -> u64 {
        self.change
    }

    /// The moment at which it was taken, by the clock of the runtime.
    pub(crate) const fn taken_at(&self) -> Monotonic {
        self.taken_at
    }

    /// Whether nothing can change until something is recorded.
    pub(crate) fn is_idle(&self) -> bool {
        self.content.in_flight == 0
    }

    /// Whether nothing has happened between the two.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.content == other.content
    }
}

/// The handlers in the host, in its order, and then the others.
fn rows(live: Vec<RunNow>, in_flight: Vec<InFlight>, now: Monotonic) -> Vec<Row> {
    let by_dispatch = in_flight.into_iter().map(|handler| (handler.run.dispatch, handler));
    let mut in_flight: BTreeMap<DispatchId, _> = by_dispatch.collect();
    // A handler that has just ended may still be in the host, but is no longer in flight.
    let in_host = live.into_iter().filter_map(|live| {
        let handler = in_flight.remove(&live.dispatch)?;
        Some(Row::in_host(handler, live, now))
    });
    let mut rows: Vec<Row> = in_host.collect();
    let free = ROWS_MAX.saturating_sub(rows.len());
    rows.extend(in_flight.into_values().take(free).map(Row::pending));
    rows
}

impl Row {
    fn in_host(handler: InFlight, live: RunNow, now: Monotonic) -> Self {
        let RunNow { doing, since, budget, in_flight: calls, .. } = live;
        let is_stuck =
            budget.is_some_and(|(began, end)| is_stuck(now.since(since), end.since(began)));
        let activity = doing.as_str().to_owned();
        Self { handler, activity, since: Some(since), calls, budget, is_stuck }
    }

    fn pending(handler: InFlight) -> Self {
        let activity = PENDING.to_owned();
        let calls = Vec::new();
        Self { handler, activity, since: None, calls, budget: None, is_stuck: false }
    }

    fn view(&self, now: Monotonic, at: WallTime, host: Option<HostId>) -> HandlerNowView<'_> {
        let InFlight { entity, run, session } = &self.handler;
        let declared = Duration::from_millis(run.budget_ms);
        let (began, end) = self.budget.unwrap_or((now, now.after(declared)));
        HandlerNowView {
            entity,
            handler: HandlerView::new(run),
            has_ms: millis(end.since(began)),
            left_ms: remaining_ms(end, now),
            doing: &self.activity,
            for_ms: self.since.map(|since| millis(now.since(since))),
            calls: self
                .calls
                .iter()
                .map(|(name, since)| CallNowView { name, for_ms: millis(now.since(*since)) })
                .collect(),
            stuck: self.is_stuck,
            session: session.as_ref().map(|session| session.view(at)),
            host,
        }
    }
}

/// What the handlers are doing at one moment, and the most recent kills.
#[derive(Serialize, ToSchema)]
pub(crate) struct LiveView<'a> {
    /// The moment, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
    health: HealthView,
    /// How many handlers are queued or in flight.
    in_flight: usize,
    /// The handlers, at most 200, ordered by deadline.
    handlers: Vec<HandlerNowView<'a>>,
    /// The last 50 kills since the daemon started, the latest first.
    kills: Vec<KillOnHostView<'a>>,
    /// How many sessions are blocked until they are resumed.
    blocked: usize,
    /// The 50 sessions that were blocked last, the latest first.
    blocked_sessions: Vec<BlockedView<'a>>,
    /// The hosts of the cluster, except dead ones; absent without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<HostLine>>,
    /// The hosts that did not respond in time: what they have is not in the snapshot. Absent without a
    /// cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<MissingView>>,
}

/// A kill, and the host that recorded it.
#[derive(Serialize, ToSchema)]
pub(crate) struct KillOnHostView<'a> {
    #[serde(flatten)]
    kill: &'a KillView,
    /// The host that recorded it; absent without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    host: Option<HostId>,
}

/// A handler that is queued or in flight at that moment.
#[derive(Serialize, ToSchema)]
pub(crate) struct HandlerNowView<'a> {
    /// TYPE/ID.
    #[schema(value_type = String)]
    entity: &'a EntityRef,
    #[serde(flatten)]
    handler: HandlerView,
    /// Its budget: `budget_ms`, or less if the handler that asked for it had less left.
    has_ms: u64,
    /// What is left of its budget; negative after its deadline.
    left_ms: i64,
    /// The host call that it is in; or `guest`, `instantiate`, `queued`, or `pending` while its
    /// module is compiled or its end is recorded.
    doing: &'a str,
    /// For how long, if known.
    #[schema(required)]
    for_ms: Option<u64>,
    /// The calls that are in flight while its guest goes on or waits for them, the oldest first, at
    /// most 16; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    calls: Vec<CallNowView<'a>>,
    /// Whether it looks stuck: it has been in one host call, or in its own code without any, for
    /// longer than half its budget, but at least 1 s and at most 300 s.
    stuck: bool,
    /// The state of its session, if its entity is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionNowView<'a>>,
    /// The host that it is on; absent without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    host: Option<HostId>,
}

/// A host call in flight.
#[derive(Serialize, ToSchema)]
pub(crate) struct CallNowView<'a> {
    /// Its name in reports.
    name: &'a str,
    /// For how long it has been in flight.
    for_ms: u64,
}

impl<'a> LiveView<'a> {
    /// What `snapshot` shows of this host, which is `host` in its cluster.
    pub(crate) fn new(snapshot: &'a LiveSnapshot, host: Option<HostId>) -> Self {
        let Content { unhealthy, rows, in_flight, kills, blocked, all_blocked } = &snapshot.content;
        Self {
            at: snapshot.at,
            health: HealthView::new(unhealthy),
            in_flight: *in_flight,
            handlers: rows
                .iter()
                .map(|row| row.view(snapshot.taken_at, snapshot.at, host))
                .collect(),
            kills: kills.iter().map(|kill| KillOnHostView { kill, host }).collect(),
            blocked: *all_blocked,
            blocked_sessions: blocked.iter().map(|one| BlockedView::new(one, host)).collect(),
            hosts: None,
            missing: None,
        }
    }
}
