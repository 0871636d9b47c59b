//! What the shell has to do once a decision is durable.

use std::sync::Arc;

use sandglass_model::{Cause, DispatchId, Dispatched, Event, StopCause};

use crate::entity::Entity;
use crate::session::Standing;

/// What the shell has to do once a decision is durable. Timers are no commands:
/// they are read off the entity.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start this handler.
    Start(Arc<Dispatched>),
    /// Ask this one to end by itself.
    Ask {
        /// Which.
        dispatch: DispatchId,
    },
    /// Stop this one.
    Stop {
        /// Which.
        dispatch: DispatchId,
        /// Why.
        cause: Cause,
        /// The same for people; may be empty.
        reason: String,
    },
}

/// The commands of the decision `events` that made `after` out of `before`: first the stops of
/// handlers whose state was left, then the starts, then the stops of handlers whose run is to stop.
/// Starts come before those, because a decision may start a handler and stop its run: a handler can
/// only be stopped once it has been started.
#[must_use]
pub fn commands(before: Option<&Entity>, after: &Entity, events: &[Event]) -> Vec<Command> {
    let was_left =
        |dispatch| before.and_then(|entity| entity.run(dispatch)).is_some_and(|run| run.left);
    let runs = after.in_flight().into_iter().filter(|run| run.left);
    let left = runs.map(|run| run.dispatched.dispatch).filter(|dispatch| !was_left(*dispatch));
    let left = left.map(|dispatch| {
        let (cause, reason) = (Cause::StateLeft, String::new());
        Command::Stop { dispatch, cause, reason }
    });
    // A handler that was dispatched and has ended by one decision never starts.
    let starts = events.iter().filter_map(|event| {
        let Event::Dispatched(dispatched) = event else { return None };
        let run = after.run(dispatched.dispatch)?;
        let is_in_flight = run.dispatched.attempt == dispatched.attempt;
        is_in_flight.then(|| Command::Start(Arc::clone(&run.dispatched)))
    });
    left.chain(starts).chain(stopped_with_their_run(before, after)).collect()
}

/// What is to be done about handlers whose run is to stop, or has had its time for that.
fn stopped_with_their_run(before: Option<&Entity>, after: &Entity) -> Vec<Command> {
    // Which run is to stop, why, and whether its handlers are to be killed.
    let stopping = |entity: &Entity| {
        let session = entity.session()?;
        let Standing::Stopping { stopping, is_killing, .. } = &session.standing else {
            return None;
        };
        Some((session.run_seq, *is_killing, stopping.cause.clone()))
    };
    let Some((run_seq, is_killing, cause)) = stopping(after) else { return Vec::new() };
    let known = before.and_then(stopping).map(|(run_seq, is_killing, _)| (run_seq, is_killing));
    if known == Some((run_seq, is_killing)) {
        return Vec::new();
    }
    let (cause, reason) = told(&cause);
    let runs = after.in_flight().into_iter().map(|run| run.dispatched.dispatch);
    let command = |dispatch| match is_killing {
        true => Command::Stop { dispatch, cause, reason: reason.clone() },
        false => Command::Ask { dispatch },
    };
    runs.map(command).collect()
}

/// The cause of a stop, as a handler's end names it.
pub fn told(cause: &StopCause) -> (Cause, String) {
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
