//! The handlers that were killed most recently, collected from records as they are written.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{
    CancelledBy, DispatchId, EntityRef, Event, HandlerEnd, Outcome, Record, WallTime,
};
use serde::Serialize;
use utoipa::ToSchema;

/// Kills that are kept: a screen or two, and enough to see which host call most of them died in.
pub(crate) const KEPT: usize = 50;

/// Handlers in flight whose action is kept: more than a host has. If there are more, the records of
/// some ends were missed.
const OPEN_MAX: usize = 1 << 16;

/// A handler that was killed: at its deadline, or because it was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct KillView {
    #[schema(value_type = String)]
    dispatch: DispatchId,
    attempt: u32,
    /// TYPE/ID.
    #[schema(value_type = String)]
    entity: EntityRef,
    /// The action that triggered it; absent if its record was missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<String>,
    by: KilledBy,
    /// What was running when it was killed.
    dying_span: String,
    budget_ms: u64,
    elapsed_ms: u64,
    /// Time from its deadline until it was off the CPU.
    overrun_us: u64,
    /// When the kill was recorded, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
}

impl KillView {
    /// The kill that `record` reports, if any. `action` triggered the handler, as far as known.
    fn from_record(record: &Record, action: Option<String>) -> Option<Self> {
        let (Event::Ended(ended), Some(entity)) = (&record.event, &record.entity) else {
            return None;
        };
        let HandlerEnd { dispatch, attempt, deadline, dying_span, .. } = &*ended.end;
        let (by, action) = match &ended.outcome {
            Outcome::TimedOut(exceeded) => (KilledBy::Deadline, Some(exceeded.action.clone())),
            Outcome::Cancelled(cancellation) => (cancellation.by.into(), action),
            _ => return None,
        };
        Some(Self {
            dispatch: *dispatch,
            attempt: *attempt,
            entity: entity.clone(),
            action,
            by,
            dying_span: dying_span.clone()?,
            budget_ms: deadline.budget_ms,
            elapsed_ms: deadline.elapsed_ms,
            overrun_us: deadline.overrun_us,
            at: record.at,
        })
    }
}

/// Why a handler was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KilledBy {
    /// Its deadline passed, or that of the handler that asked for it.
    Deadline,
    /// An operator cancelled it.
    Operator,
    /// The caller that waited for it disconnected.
    Caller,
    /// Its entity left the state that started it.
    StateLeft,
    /// The host is shutting down.
    Shutdown,
    /// The run of its session was stopped.
    RunStopped,
    /// Another host took over its entity.
    OwnershipLost,
}

impl From<CancelledBy> for KilledBy {
    fn from(by: CancelledBy) -> Self {
        match by {
            CancelledBy::Operator => Self::Operator,
            CancelledBy::Caller => Self::Caller,
            CancelledBy::StateLeft => Self::StateLeft,
            CancelledBy::Shutdown => Self::Shutdown,
            CancelledBy::RunStopped => Self::RunStopped,
            CancelledBy::OwnershipLost => Self::OwnershipLost,
        }
    }
}

/// The most recent kills since this process started.
#[derive(Debug, Default)]
pub(crate) struct RecentKills(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    kills: VecDeque<Arc<KillView>>,
    /// The actions of handlers in flight.
    actions: BTreeMap<DispatchId, String>,
}

impl RecentKills {
    /// Keeps the kill that `record` reports, or the action of a handler that it starts.
    pub(crate) fn note(&self, record: &Record) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let action = match &record.event {
            Event::Dispatched(dispatched) => {
                if state.actions.len() >= OPEN_MAX {
                    state.actions.clear();
                }
                state.actions.insert(dispatched.dispatch, dispatched.action.clone());
                return;
            }
            Event::Ended(ended) => state.actions.remove(&ended.dispatch),
            _ => return,
        };
        let Some(kill) = KillView::from_record(record, action) else { return };
        state.kills.truncate(KEPT - 1);
        state.kills.push_front(Arc::new(kill));
    }

    /// The kept kills, the latest first.
    pub(crate) fn all(&self) -> Vec<Arc<KillView>> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.kills.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::{Position, Sequence};
    use serde_json::{Value, json};

    use super::*;

    fn record(event: Value) -> Record {
        Record {
            position: Position(1),
            at: WallTime::default(),
            entity: "Order/7".parse().ok(),
            sequence: Sequence(1),
            event: serde_json::from_value(event).expect("as the journal has it"),
        }
    }

    #[test]
    fn a_cancelled_handler_is_listed_with_its_action() {
        let dispatch = "b7fe14e2fde4b443f0a8e0b918aafe8d";
        let kills = RecentKills::default();
        kills.note(&record(json!({
            "type": "dispatched", "dispatch": dispatch, "integration": "pay", "module": "pay",
            "action": "Pay", "params": {}, "state": "Idle", "variables": {}, "config": {},
            "attempt": 1, "budget_ms": 2000,
            "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        })));
        kills.note(&record(json!({
            "type": "ended", "dispatch": dispatch, "attempt": 1, "cause": "cancel",
            "outcome": { "outcome": "cancelled", "by": "operator", "reason": "no use" },
            "decision": { "decision": "take", "action": "End" }, "dying_span": "guest",
            "deadline": { "budget_ms": 2000, "elapsed_ms": 9, "overrun_us": 0, "owner": "handler" },
        })));
        let [kill] = &kills.all()[..] else { panic!("{kills:?}") };
        assert_eq!((kill.by, kill.action.as_deref()), (KilledBy::Operator, Some("Pay")));
    }
}
