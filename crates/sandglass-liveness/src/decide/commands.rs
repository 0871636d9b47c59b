//! What the shell has to do once a decision is durable.

use sandglass_model::{Cause, DispatchId, Dispatched, Event};

use crate::entity::Entity;

/// What the shell has to do once a decision is durable. Timers are no commands:
/// they are read off the entity.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start this handler.
    Start(Box<Dispatched>),
    /// Stop this one.
    Stop {
        /// Which.
        dispatch: DispatchId,
        /// Why.
        cause: Cause,
    },
}

/// The commands of the decision `events` that made `after` out of `before`: first
/// what is stopped, then what is started.
#[must_use]
pub fn commands(before: Option<&Entity>, after: &Entity, events: &[Event]) -> Vec<Command> {
    let was_left =
        |dispatch| before.and_then(|entity| entity.run(dispatch)).is_some_and(|run| run.left);
    let runs = after.in_flight().into_iter().filter(|run| run.left);
    let stopped = runs.map(|run| run.dispatched.dispatch).filter(|dispatch| !was_left(*dispatch));
    let stops = stopped.map(|dispatch| Command::Stop { dispatch, cause: Cause::StateLeft });
    let starts = events.iter().filter_map(|event| match event {
        Event::Dispatched(dispatched) => Some(Command::Start(dispatched.clone())),
        _ => None,
    });
    stops.chain(starts).collect()
}
