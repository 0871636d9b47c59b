//! The point at which a fork diverges from its source.

use crate::definition::Definition;
use crate::event::{Kind, Payload, RunEvent};
use crate::node::is_orchestrator;
use crate::state::RunState;
use crate::step::Copied;

/// The first event that a fork does not copy, and what was counted before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first event that the fork does not copy.
    pub from: u64,
    /// What the copied events count toward the limits of the fork.
    pub copied: Copied,
}

impl Cut {
    /// The cut of a replay, which counts nothing.
    pub fn of_replay(from: u64) -> Self {
        Self { from, copied: Copied::default() }
    }

    /// The cut of a branch from number `from` of its source's `events`: there, or earlier.
    pub fn of_branch(definition: &Definition, events: &[&RunEvent], from: u64) -> Self {
        let mut from = usize::try_from(from).unwrap_or(usize::MAX).min(events.len());
        // The branch has its own limits and is not stopped, so it copies no consequences of either.
        let ends =
            |event: &&RunEvent| is_breach_of_run(event) || event.kind() == Kind::NodeCancelled;
        from = from.min(events.iter().position(ends).unwrap_or(from));
        // An answer is not separated from the node that continues with it.
        let last = from.checked_sub(1).map(|last| events[last].kind());
        from -= usize::from(last == Some(Kind::InterruptResolved));
        let fold_to = |from: usize| RunState::fold(definition, events[..from].iter().copied());
        let mut before = fold_to(from);
        if open(&before).is_some() {
            // That node is executed again, so its events so far are not copied.
            let begins = |kind: Kind| {
                matches!(kind, Kind::NodeStarted | Kind::NodeRetried | Kind::NodeResumed)
            };
            let begun = events[..from].iter().rposition(|event| begins(event.kind()));
            from = begun.map_or(from, |begun| begun + 1);
            before = fold_to(from);
        }
        Self { from: from as u64, copied: copied(definition, &before) }
    }
}

/// What a branch that begins with `before` counts from its source.
fn copied(definition: &Definition, before: &RunState) -> Copied {
    let open = open(before);
    // The branch executes this node and counts it; also as a turn, if the turn was decided and continues
    // with an answer.
    let is_answered = open.is_some_and(|open| {
        is_orchestrator(&definition.nodes[open]) && before.nodes[open].resumed_with.is_some()
    });
    Copied {
        executions: before.executions.saturating_sub(u64::from(open.is_some())),
        turns: before.iteration.saturating_sub(u64::from(is_answered)),
    }
}

/// The node that executes, unless it waits for an answer.
fn open(state: &RunState) -> Option<usize> {
    state.current().filter(|_| state.waiting.is_none())
}

/// Whether a limit of the whole run was breached, which ends the run.
const fn is_breach_of_run(event: &RunEvent) -> bool {
    match &event.payload {
        Payload::CapBreached { kind, .. } => kind.is_of_run(),
        Payload::LoopbackLimit { .. } => true,
        _ => false,
    }
}
