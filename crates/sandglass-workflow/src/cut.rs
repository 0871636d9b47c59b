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
    /// Where a branch begins instead if what follows `from` is the consequence of a breach before it: the
    /// first event that does not follow from the breach.
    pub to: Option<u64>,
    /// What the copied events count toward the limits of the fork.
    pub copied: Copied,
}

impl Cut {
    /// The cut of a replay, which counts nothing.
    pub fn of_replay(from: u64) -> Self {
        Self { from, to: None, copied: Copied::default() }
    }

    /// The cut of a branch from number `from` that has the end of its source, whose last event is before
    /// number `end`: a limit of the run was breached, and nothing else can follow.
    pub fn at_end(from: u64, end: u64) -> Self {
        Self { from, to: Some(end), copied: Copied::default() }
    }

    /// Whether a limit of the run was breached before number `from` of its `events`.
    pub fn is_after_breach(events: &[&RunEvent], from: u64) -> bool {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        events.iter().take(from).any(|event| is_breach_of_run(event))
    }

    /// The cut of a branch from number `from` of its source's `events`, before which no limit of the run
    /// was breached: there, or earlier.
    pub fn of_branch(definition: &Definition, events: &[&RunEvent], from: u64) -> Self {
        let mut from = usize::try_from(from).unwrap_or(usize::MAX).min(events.len());
        // The branch is not stopped, so it copies no consequences of that.
        let is_cut = |event: &&RunEvent| event.kind() == Kind::NodeCancelled;
        from = from.min(events.iter().position(is_cut).unwrap_or(from));
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
            let since = &events[begun.unwrap_or(0)..from];
            let is_breached = since.iter().any(|event| event.kind() == Kind::CapBreached);
            let end = events[from..].iter().position(|event| event.kind().ends_node_handler());
            if let (true, Some(end)) = (is_breached, end) {
                // Its failure is the consequence of the breach.
                let to = from + end + 1;
                let copied = copied(definition, &fold_to(to));
                return Self { from: from as u64, to: Some(to as u64), copied };
            }
            from = begun.map_or(from, |begun| begun + 1);
            before = fold_to(from);
        }
        Self { from: from as u64, to: None, copied: copied(definition, &before) }
    }
}

/// What a branch that begins with `before` counts from its source.
fn copied(definition: &Definition, before: &RunState) -> Copied {
    let open = open(before);
    // The branch executes this node and counts it; also as a turn, if the turn was decided and continues
    // with an answer.
    let is_answered = open.is_some_and(|open| {
        let is_resumed = before.nodes[open].resumed_with.is_some();
        is_orchestrator(&definition.nodes[open]) && before.is_decided && is_resumed
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
