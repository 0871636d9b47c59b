//! The handlers that were killed last: what the records say of them, as they come.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{
    CancelledBy, DispatchId, Ended, EntityRef, Event, Outcome, Record, WallTime,
};
use serde::Serialize;
use utoipa::ToSchema;

/// How many are kept: what fits a screen or two, and enough to see which host call most of
/// them died in.
const KEPT: usize = 50;

/// A handler that was killed: at its deadline, or because somebody asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct KillView {
    #[schema(value_type = String)]
    dispatch: DispatchId,
    attempt: u32,
    /// TYPE/ID.
    #[schema(value_type = String)]
    entity: EntityRef,
    /// The action that triggered it, where its record says so: of a timeout.
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
    /// What a record says of a kill, where it is one.
    fn of(record: &Record) -> Option<Self> {
        let (Event::Ended(ended), Some(entity)) = (&record.event, &record.entity) else {
            return None;
        };
        let (by, action) = killed(&ended.outcome)?;
        let Ended { dispatch, attempt, deadline, dying_span, .. } = &**ended;
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
}

impl From<CancelledBy> for KilledBy {
    fn from(by: CancelledBy) -> Self {
        match by {
            CancelledBy::Operator => Self::Operator,
            CancelledBy::Caller => Self::Caller,
            CancelledBy::StateLeft => Self::StateLeft,
            CancelledBy::Shutdown => Self::Shutdown,
        }
    }
}

/// The last kills of this process.
#[derive(Debug, Default)]
pub(crate) struct Kills(Mutex<VecDeque<Arc<KillView>>>);

impl Kills {
    /// Keeps what `record` says of a kill.
    pub(crate) fn note(&self, record: &Record) {
        let Some(kill) = KillView::of(record) else { return };
        let mut kills = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kills.truncate(KEPT - 1);
        kills.push_front(Arc::new(kill));
    }

    /// The last ones, the latest first.
    pub(super) fn all(&self) -> Vec<Arc<KillView>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
