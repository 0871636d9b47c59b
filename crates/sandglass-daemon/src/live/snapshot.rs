//! A scene: the handlers in flight with what each is in, and the last kills, at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::RunNow;
use sandglass_liveness::is_stuck;
use sandglass_model::{DispatchId, EntityRef, Monotonic, WallTime};
use sandglass_runtime::{BlockedSession, RunView, Snapshot};
use serde::Serialize;
use utoipa::ToSchema;

use super::kills::{KillView, Kills};
use super::sessions::{BlockedView, SessionNow, SessionNowView};
use super::{left_ms, millis};
use crate::Daemon;
use crate::daemon::Unhealthy;
use crate::view::{HandlerView, HealthView};

/// Most handlers of a scene: more than anybody reads, and a scene is sent four times a second.
const ROWS_MAX: usize = 200;

/// Most sessions that wait to be resumed of a scene: as many as kills, for the same reason.
const BLOCKED_MAX: usize = 50;

/// What a handler is in that isn't with the host: its module is being compiled, or its end
/// is being recorded.
const PENDING: &str = "pending";

/// One moment. What passes with time alone is in none of it, so that two scenes are the same
/// where nothing has happened.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(super) taken_at: Monotonic,
    at: WallTime,
    seen: Seen,
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    unhealthy: Vec<Unhealthy>,
    rows: Vec<Row>,
    in_flight: usize,
    kills: Vec<Arc<KillView>>,
    blocked: Vec<BlockedSession>,
    /// How many wait to be resumed.
    all_blocked: usize,
}

/// A handler in flight.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    entity: EntityRef,
    run: RunView,
    doing: String,
    since: Option<Monotonic>,
    /// When its budget began, and its deadline.
    budget: Option<(Monotonic, Monotonic)>,
    is_stuck: bool,
    session: Option<Arc<SessionNow>>,
}

/// A handler in flight, as its entity knows it.
struct Known {
    entity: EntityRef,
    run: RunView,
    session: Option<Arc<SessionNow>>,
}

impl Known {
    /// The handlers of `snapshot`, as they are at `now`.
    fn all_of(snapshot: &Snapshot, now: WallTime) -> impl Iterator<Item = Self> {
        let session = SessionNow::of(snapshot, now).map(Arc::new);
        snapshot.in_flight.iter().map(move |run| Self {
            entity: snapshot.entity.clone(),
            run: run.clone(),
            session: session.clone(),
        })
    }
}

impl Scene {
    /// Looks at `daemon` now.
    pub(super) fn look(daemon: &Daemon, kills: &Kills) -> Self {
        let live = daemon.handlers().host().live_runs(ROWS_MAX);
        let busy = daemon.runtime().busy();
        let (blocked, all_blocked) = daemon.runtime().blocked_sessions(BLOCKED_MAX);
        let (taken_at, at) = (daemon.clock().now(), daemon.clock().wall());
        let in_flight: Vec<Known> =
            busy.iter().flat_map(|snapshot| Known::all_of(snapshot, at)).collect();
        let seen = Seen {
            unhealthy: daemon.unhealthy(),
            in_flight: in_flight.len(),
            rows: rows(live.runs, in_flight, taken_at),
            kills: kills.all(),
            blocked,
            all_blocked,
        };
        Self { taken_at, at, seen }
    }

    /// Whether there is nothing that could change unless something is recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.seen.in_flight == 0
    }

    /// Whether nothing has happened between the two.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        self.seen == other.seen
    }
}

/// Those with the host in its order, and then the rest.
fn rows(live: Vec<RunNow>, in_flight: Vec<Known>, now: Monotonic) -> Vec<Row> {
    let of = |known: Known| (known.run.dispatch, known);
    let mut in_flight: BTreeMap<DispatchId, _> = in_flight.into_iter().map(of).collect();
    // One that has just ended is still with the host, and in flight no more.
    let with_host = live.into_iter().filter_map(|live| {
        let known = in_flight.remove(&live.dispatch)?;
        Some(Row::of(known, live, now))
    });
    let mut rows: Vec<Row> = with_host.collect();
    let room = ROWS_MAX.saturating_sub(rows.len());
    rows.extend(in_flight.into_values().take(room).map(Row::pending));
    rows
}

impl Row {
    fn of(known: Known, live: RunNow, now: Monotonic) -> Self {
        let Known { entity, run, session } = known;
        let RunNow { doing, since, budget, .. } = live;
        let is_stuck =
            budget.is_some_and(|(began, end)| is_stuck(now.since(since), end.since(began)));
        let doing = doing.as_str().to_owned();
        Self { entity, run, doing, since: Some(since), budget, is_stuck, session }
    }

    fn pending(known: Known) -> Self {
        let Known { entity, run, session } = known;
        let doing = PENDING.to_owned();
        Self { entity, run, doing, since: None, budget: None, is_stuck: false, session }
    }
}

/// What the handlers are doing at one moment, and which were killed last.
#[derive(Serialize, ToSchema)]
pub(crate) struct LiveView<'a> {
    /// The moment, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
    health: HealthView,
    /// How many handlers are queued or in flight.
    in_flight: usize,
    /// Those whose deadline is nearest first, 200 at most.
    handlers: Vec<HandlerNowView<'a>>,
    /// The last 50 that were killed since the daemon started, the latest first.
    kills: Vec<&'a KillView>,
    /// How many sessions wait to be resumed.
    blocked: usize,
    /// The 50 of them that began to last, the latest first.
    blocked_sessions: Vec<BlockedView<'a>>,
}

/// A handler that is queued or in flight, at that moment.
#[derive(Serialize, ToSchema)]
pub(crate) struct HandlerNowView<'a> {
    /// TYPE/ID.
    #[schema(value_type = String)]
    entity: &'a EntityRef,
    #[serde(flatten)]
    handler: HandlerView,
    /// What it has of its budget, where that has begun: less than `budget_ms` where whoever
    /// asked for it had less left.
    has_ms: u64,
    /// What it has left of that, below zero past its deadline.
    left_ms: i64,
    /// The host call that it is in; or `guest`, `instantiate`, `queued`, or `pending` where
    /// its module is compiled or its end recorded.
    doing: &'a str,
    /// For how long, where that is known.
    #[schema(required)]
    for_ms: Option<u64>,
    /// Whether it looks stuck: it has been in one host call, or in its own code without any,
    /// for longer than half its budget, but at least 1 s and at most 300 s.
    stuck: bool,
    /// How its session stands, where its entity is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionNowView<'a>>,
}

impl<'a> From<&'a Scene> for LiveView<'a> {
    fn from(scene: &'a Scene) -> Self {
        let Seen { unhealthy, rows, in_flight, kills, blocked, all_blocked } = &scene.seen;
        Self {
            at: scene.at,
            health: HealthView::of(unhealthy),
            in_flight: *in_flight,
            handlers: rows.iter().map(|row| row.view(scene.taken_at, scene.at)).collect(),
            kills: kills.iter().map(|kill| &**kill).collect(),
            blocked: *all_blocked,
            blocked_sessions: blocked.iter().map(BlockedView::from).collect(),
        }
    }
}

impl Row {
    fn view(&self, now: Monotonic, at: WallTime) -> HandlerNowView<'_> {
        let declared = Duration::from_millis(self.run.budget_ms);
        let (began, end) = self.budget.unwrap_or((now, now.after(declared)));
        HandlerNowView {
            entity: &self.entity,
            handler: HandlerView::of(&self.run),
            has_ms: millis(end.since(began)),
            left_ms: left_ms(end, now),
            doing: &self.doing,
            for_ms: self.since.map(|since| millis(now.since(since))),
            stuck: self.is_stuck,
            session: self.session.as_ref().map(|session| session.view(at)),
        }
    }
}
