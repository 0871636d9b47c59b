//! The handlers that were killed last: what the records say of them, as they come.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{
    CancelledBy, DispatchId, EntityRef, Event, HandlerEnd, Outcome, Record, WallTime,
};
use serde::Serialize;
use utoipa::ToSchema;

/// How many are kept: what fits a screen or two, and enough to see which host call most of
/// them died in.
const KEPT: usize = 50;

/// Most handlers in flight whose action is kept: more than a host has. Those that are there
/// beyond are of ends that were missed.
const OPEN_MAX: usize = 1 << 16;

/// A handler that was killed: at its deadline, or because somebody asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct KillView {
    #[schema(value_type = String)]
    dispatch: DispatchId,
    attempt: u32,
    /// TYPE/ID.
    #[schema(value_type = String)]
    entity: EntityRef,
    /// The action that triggered it; not there where the record that says it was missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<String>,
    by: KilledBy,
    /// What was running when it was killed.
    dying_span: String,
    budget_ms: u64,
    elapsed_ms: u64,
    /// From its deadline until it was off the CPU.
    overrun_us: u64,
    /// When that was recorded, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
}

impl KillView {
    /// What a record says of a kill of a handler of `action`, where it is one.
    fn of(record: &Record, action: Option<String>) -> Option<Self> {
        let (Event::Ended(ended), Some(entity)) = (&record.event, &record.entity) else {
            return None;
        };
        let (by, told) = killed(&ended.outcome)?;
        let HandlerEnd { dispatch, attempt, deadline, dying_span, .. } = &*ended.end;
        Some(Self {
            dispatch: *dispatch,
            attempt: *attempt,
            entity: entity.clone(),
            action: told.or(action),
            by,
            dying_span: dying_span.clone()?,
            budget_ms: deadline.budget_ms,
            elapsed_ms: deadline.elapsed_ms,
            overrun_us: deadline.overrun_us,
            at: record.at,
        })
    }
}

/// What killed a handler, and on which action it ran where that is told; none where nobody
/// killed it.
fn killed(outcome: &Outcome) -> Option<(KilledBy, Option<String>)> {
    match outcome {
        Outcome::TimedOut(exceeded) => Some((KilledBy::Deadline, Some(exceeded.action.clone()))),
        Outcome::Cancelled(cancellation) => Some((cancellation.by.into(), None)),
        _ => None,
    }
}

/// Who killed a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KilledBy {
    /// Its deadline passed, or its asker's.
    Deadline,
    /// Somebody cancelled it.
    Operator,
    /// Whoever waited for it went away.
    Caller,
    /// Its entity left the state that started it.
    StateLeft,
    /// The host is shutting down.
    Shutdown,
    /// The run of its session was stopped.
    RunStopped,
}

impl From<CancelledBy> for KilledBy {
    fn from(by: CancelledBy) -> Self {
        match by {
            CancelledBy::Operator => Self::Operator,
            CancelledBy::Caller => Self::Caller,
            CancelledBy::StateLeft => Self::StateLeft,
            CancelledBy::Shutdown => Self::Shutdown,
            CancelledBy::RunStopped => Self::RunStopped,
        }
    }
}

/// The last kills of this process.
#[derive(Debug, Default)]
pub(crate) struct Kills(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    kills: VecDeque<Arc<KillView>>,
    /// The actions of the handlers that have not ended.
    actions: BTreeMap<DispatchId, String>,
}

impl Kills {
    /// Keeps what `record` says of a kill, and whose that would be.
    pub(crate) fn note(&self, record: &Record) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let action = match &record.event {
            Event::Dispatched(dispatched) => {
                if noted.actions.len() >= OPEN_MAX {
                    noted.actions.clear();
                }
                noted.actions.insert(dispatched.dispatch, dispatched.action.clone());
                return;
            }
            Event::Ended(ended) => noted.actions.remove(&ended.dispatch),
            _ => return,
        };
        let Some(kill) = KillView::of(record, action) else { return };
        noted.kills.truncate(KEPT - 1);
        noted.kills.push_front(Arc::new(kill));
    }

    /// The last ones, the latest first.
    pub(super) fn all(&self) -> Vec<Arc<KillView>> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.kills.iter().cloned().collect()
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
    fn a_kill_that_somebody_asked_for_has_its_action_too() {
        let dispatch = "b7fe14e2fde4b443f0a8e0b918aafe8d";
        let kills = Kills::default();
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
