//! Forks of runs: the events of the source are copied; from `fromSeq` on, a branch continues on its own,
//! and a replay repeats the events.
//!
//! A replay executes pure nodes again, those of packs with the recorded results of their host calls,
//! and records differences. Everything else, such as breaches and effects, is copied: no clock and no
//! counter decides again.

mod again;

use std::sync::Arc;

use sandglass_model::{Cause, EntityRef};
use sandglass_workflow::automaton::{Action, Params};
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::event::{Ending, Entry, Kind, Payload, RunEvent, event_id};
use sandglass_workflow::state::RunState;
use sandglass_workflow::step::{Fork, ForkMode, Next};

pub use self::again::end_of_node;
use self::again::{Difference, again};
use crate::action::end;
use crate::context::Context;
use crate::engine::Engine;
use crate::handlers::{Decided, Ended, Execution, go_on};
use crate::id::entity_of;
use crate::log::{Folded, ReadError};

/// Most events, and most of them in bytes of JSON, that one step takes over.
const STEP_MAX_EVENTS: usize = 256;
const STEP_MAX_BYTES: usize = 512 << 10;
/// Longest text of a difference, in characters.
const SHOWN_CHARS: usize = 1_000;

/// Copies the source's events from number `at` on: up to the next node that is executed again, or
/// as many as fit into one record.
pub(crate) async fn step(
    execution: &Execution,
    context: &mut Context,
    at: u64,
) -> Result<Decided, Ended> {
    // The shutdown of a host stops no run: the next start continues it.
    let requested = execution.run.stop.kill_request();
    if let Some(request) = requested.filter(|request| request.cause != Cause::Shutdown) {
        return Err(execution.cancelled(request));
    }
    let (fork, source) = source(execution, context).await?;
    let mut events = Vec::new();
    let mut bytes = 0;
    let mut before = before(context, &source, at);
    let mut next = at;
    while let Some(entry) = usize::try_from(next).ok().and_then(|next| source.get(next)) {
        if fork.mode == ForkMode::Branch && next >= fork.branches_at() {
            break;
        }
        if let Some(ending) = entry.event.payload.ending() {
            return Ok(Decided::new(end(end_action(&ending), &ending), events));
        }
        context.apply(&entry.event);
        // What comes before the fork is as it was; a replay repeats the rest.
        let is_prefix = fork.mode == ForkMode::Branch || next < fork.from;
        let copied_at = is_prefix.then_some(entry.at);
        events.push(RunEvent { copied_at, ..entry.event.clone() });
        bytes += entry.event.payload.json_size();
        next += 1;
        let kind = entry.event.kind();
        if matches!(kind, Kind::NodeStarted | Kind::NodeResumed) {
            before.clone_from(&context.state);
        }
        let is_repeated = kind.ends_node_handler() && fork.mode == ForkMode::Replay;
        let is_repeated = is_repeated && entry.sequence >= fork.from;
        if is_repeated
            && let Some(difference) = again(&execution.engine, context, &before, entry).await
        {
            // The copy of the entry is the last event so far.
            let copy = event_id(execution.run.entity.id(), context.events.saturating_sub(1));
            let event = diverged(&fork, entry, copy, &difference);
            context.apply(&event);
            events.push(event);
        }
        if is_repeated || events.len() >= STEP_MAX_EVENTS || bytes >= STEP_MAX_BYTES {
            let params = Params::next(Next::Replay { at: next });
            return Ok(Decided::new((Action::Replay, params), events));
        }
    }
    match fork.mode {
        ForkMode::Branch => {
            // From here on it is a run like any other.
            context.source = None;
            Ok(go_on(&execution.engine.library, context, events))
        }
        ForkMode::Replay => {
            let message = "the source's log has no end";
            Err(execution.failed(&RunError::new(ErrorCode::SourceUnreadable, message)))
        }
    }
}

/// How the run was forked, and the events of its source.
async fn source(
    execution: &Execution,
    context: &mut Context,
) -> Result<(Fork, Arc<Vec<Entry>>), Ended> {
    let Some(fork) = context.begin.fork.clone() else {
        let error = RunError::new(ErrorCode::HostError, "the run was forked from nothing");
        return Err(execution.failed(&error));
    };
    let source = match context.source.take() {
        Some(source) => source,
        None => Arc::new(read_source(execution, &fork).await?),
    };
    context.source = Some(Arc::clone(&source));
    Ok((fork, source))
}

/// The action that ends a replay as its source ended.
const fn end_action(ending: &Ending) -> Action {
    match ending {
        Ending::Completed(_) => Action::Complete,
        Ending::Failed(_) => Action::Fail,
        Ending::Cancelled(_) => Action::CancelAsRecorded,
    }
}

/// The state in which the node began that executes at event number `at`; the present state if no node
/// does.
fn before(context: &Context, source: &[Entry], at: u64) -> RunState {
    let definition = &context.definition;
    let copied = usize::try_from(at).unwrap_or(usize::MAX).min(source.len());
    let begins =
        |entry: &Entry| matches!(entry.event.kind(), Kind::NodeStarted | Kind::NodeResumed);
    match source[..copied].iter().rposition(begins) {
        Some(begun) if context.state.current().is_some() => {
            RunState::fold(definition, source[..=begun].iter().map(|entry| &entry.event))
        }
        _ => context.state.clone(),
    }
}

/// The events of the source that `fork` needs, as soon as the journal can be read.
async fn read_source(execution: &Execution, fork: &Fork) -> Result<Vec<Entry>, Ended> {
    let id = &fork.source;
    let failed = |what: String| execution.failed(&RunError::new(ErrorCode::SourceUnreadable, what));
    let entity = entity_of(id).ok_or_else(|| failed(format!("there is no run `{id}`")))?;
    loop {
        match read(&execution.engine, fork, &entity).await {
            Ok(Some(entries)) => return Ok(entries),
            Ok(None) => {
                let what = format!("the events of run `{id}` aren't in the journal any more");
                return Err(failed(what));
            }
            Err(error) if error.is_temporary() => {
                execution.wait_to_retry().await.map_err(|request| execution.cancelled(request))?;
            }
            Err(error) => {
                return Err(failed(format!("the events of run `{id}` can't be read: {error}")));
            }
        }
    }
}

/// The events of `source` that `fork` needs; `None` if the journal has no events of it.
async fn read(
    engine: &Engine,
    fork: &Fork,
    source: &EntityRef,
) -> Result<Option<Vec<Entry>>, ReadError> {
    let max = match fork.mode {
        ForkMode::Branch => usize::try_from(fork.branches_at()).unwrap_or(usize::MAX),
        ForkMode::Replay => usize::MAX,
    };
    let mut entries = Vec::new();
    let take = |entry| {
        if entries.len() < max {
            entries.push(entry);
        }
    };
    let mut folded = Folded::default();
    folded.read_on(&engine.journals, source, take).await?;
    Ok((folded.events > 0).then_some(entries))
}

fn diverged(fork: &Fork, entry: &Entry, copy: String, difference: &Difference) -> RunEvent {
    let shown = |text: &str| text.chars().take(SHOWN_CHARS).collect::<String>();
    let node_id = entry.event.node_id.clone();
    let payload = Payload::ReplayDiverged {
        source_run_id: fork.source.clone(),
        at_sequence: entry.sequence,
        original_event_id: event_id(&fork.source, entry.sequence),
        replay_event_id: Some(copy),
        divergence_kind: difference.kind,
        divergence_point: entry.event.kind(),
        node_id: node_id.clone(),
        what: shown(&difference.what),
        recorded: shown(&difference.recorded),
        came: shown(&difference.came),
    };
    RunEvent { node_id, ..RunEvent::of_run(payload) }
}
