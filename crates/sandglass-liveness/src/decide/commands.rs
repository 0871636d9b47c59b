//! The commands that the shell carries out once a decision is durable.

use std::sync::Arc;

use sandglass_model::{Cause, DispatchId, Dispatched, Event, StopCause};

use crate::entity::Entity;
use crate::session::RunPhase;

/// What the shell carries out once a decision is durable. Timers are not commands: the entity has
/// them.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Starts a handler.
    Start(Arc<Dispatched>),
    /// Requests that a handler stop gracefully.
    RequestStop {
        /// Which.
        dispatch: DispatchId,
    },
    /// Kills a handler.
    Kill {
        /// Which.
        dispatch: DispatchId,
        /// Why.
        cause: Cause,
        /// The cause for people; may be empty.
        reason: String,
    },
}

/// The commands of the decision `events`, which led from `before` to `after`: first the kills of
/// handlers whose state was left, then the starts, then the stops of handlers whose run has to
/// stop. The starts come before the latter, because one decision may start a handler and stop its
/// run, and a handler can be stopped only after it was started.
#[must_use]
pub fn commands(before: Option<&Entity>, after: &Entity, events: &[Event]) -> Vec<Command> {
    let was_left = |dispatch| {
        before.and_then(|entity| entity.in_flight_handler(dispatch)).is_some_and(|run| run.left)
    };
    let runs = after.in_flight().into_iter().filter(|run| run.left);
    let left = runs.map(|run| run.dispatched.dispatch).filter(|dispatch| !was_left(*dispatch));
    let left = left.map(|dispatch| {
        let (cause, reason) = (Cause::StateLeft, String::new());
        Command::Kill { dispatch, cause, reason }
    });
    // A handler that was dispatched and has ended by one decision never starts.
    let starts = events.iter().filter_map(|event| {
        let Event::Dispatched(dispatched) = event else { return None };
        let run = after.in_flight_handler(dispatched.dispatch)?;
        let is_in_flight = run.dispatched.attempt == dispatched.attempt;
        is_in_flight.then(|| Command::Start(Arc::clone(&run.dispatched)))
    });
    left.chain(starts).chain(stopped_with_their_run(before, after)).collect()
}

/// The commands for handlers whose run has to stop, or whose grace has ended.
fn stopped_with_their_run(before: Option<&Entity>, after: &Entity) -> Vec<Command> {
    // Which run has to stop, whether its handlers are killed, and why.
    let stopping = |entity: &Entity| {
        let session = entity.session()?;
        let RunPhase::Stopping { stopping, is_killing, .. } = &session.phase else {
            return None;
        };
        Some((session.run_seq, *is_killing, stopping.cause.clone()))
    };
    let Some((run_seq, is_killing, cause)) = stopping(after) else { return Vec::new() };
    let known = before.and_then(stopping).map(|(run_seq, is_killing, _)| (run_seq, is_killing));
    if known == Some((run_seq, is_killing)) {
        return Vec::new();
    }
    let (cause, reason) = handler_cause(&cause);
    let runs = after.in_flight().into_iter().map(|run| run.dispatched.dispatch);
    let command = |dispatch| match is_killing {
        true => Command::Kill { dispatch, cause, reason: reason.clone() },
        false => Command::RequestStop { dispatch },
    };
    runs.map(command).collect()
}

/// The cause of a stop, as the end of a handler names it, with the reason for people.
pub fn handler_cause(cause: &StopCause) -> (Cause, String) {
    match cause {
        StopCause::Operator { by, reason } if reason.is_empty() => {
            (Cause::Cancel, format!("by {by}"))
        }
        StopCause::Operator { by, reason } => (Cause::Cancel, format!("by {by}: {reason}")),
        StopCause::Shutdown => (Cause::Shutdown, String::new()),
        StopCause::Parent { reason, .. } => (Cause::RunStopped, reason.clone()),
        StopCause::Limit { .. } | StopCause::Trap | StopCause::Completion => {
            (Cause::RunStopped, cause.code().to_owned())
        }
    }
}
