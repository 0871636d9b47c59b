//! Forks of runs: events of the source are taken over, and from `fromSeq` on a branch goes its
//! own way, and a replay comes to the same events again.
//!
//! A replay executes pure nodes once more, those of packs with the recorded results of what
//! they asked for, and records where they differ. Everything else, each breach and each
//! effect, is as it was recorded: no clock and no counter decides again.

mod again;

use std::sync::Arc;

use sandglass_model::{Cause, Object, RunReport};
use sandglass_runtime::HandlerRun;
use serde_json::json;

pub use self::again::end_of_node;
use self::again::{Difference, again};
use crate::context::Context;
use crate::handlers::{AGAIN_AFTER_MS, Answer, Shared, cancelled, failed, go_on, wait};
use crate::log::Folded;
use crate::service::id::entity_of;
use sandglass_workflow::event::{Entry, Kind, RunError, RunEvent, event_id};
use sandglass_workflow::json_size;
use sandglass_workflow::projection::{CANCEL_AS_RECORDED, ENDING, FAIL, NEXT, StepResult};
use sandglass_workflow::state::RunState;
use sandglass_workflow::step::{Fork, ForkMode, Next};

/// Most events, and most of them in bytes of JSON, that one step takes over.
const STEP_MAX_EVENTS: usize = 256;
const STEP_MAX_BYTES: usize = 512 << 10;
/// Longest text of a difference, in characters.
const SHOWN_CHARS: usize = 1_000;

/// Takes over the source's events from number `at` on: up to the next node that is executed
/// once more, or as many as go into one record.
pub(crate) async fn step(
    shared: &Arc<Shared>,
    run: &HandlerRun,
    context: &mut Context,
    at: u64,
) -> Result<Answer, RunReport> {
    // A host that shuts down stops none: the next one goes on with it.
    if let Some(request) =
        run.stop.kill_request().filter(|request| request.cause != Cause::Shutdown)
    {
        return Err(cancelled(run, request));
    }
    let Some(fork) = context.begin.fork.clone() else {
        return Err(failed(run, &RunError::new("host_error", "the run was forked from nothing")));
    };
    let source = match &context.source {
        Some(source) => Arc::clone(source),
        None => loop {
            let why = match read(shared, &fork).await {
                Ok(source) => break Arc::new(source),
                Err(why) => why,
            };
            if !why.is_passing {
                return Err(failed(run, &RunError::new("source_unreadable", why.what)));
            }
            if let Some(request) = wait(shared, run, AGAIN_AFTER_MS, None).await {
                return Err(cancelled(run, request));
            }
        },
    };
    context.source = Some(Arc::clone(&source));
    let mut events = Vec::new();
    let mut bytes = 0;
    let mut before = before(context, &source, at);
    let mut next = at;
    while let Some(entry) = usize::try_from(next).ok().and_then(|next| source.get(next)) {
        if fork.mode == ForkMode::Branch && next >= fork.from {
            break;
        }
        if entry.event.kind.is_terminal() {
            return Ok(end(&entry.event, events));
        }
        context.apply(&entry.event);
        events.push(entry.event.clone());
        bytes += json_size(&entry.event.payload);
        next += 1;
        if entry.event.kind == Kind::NodeStarted || entry.event.kind == Kind::NodeResumed {
            before.clone_from(&context.state);
        }
        let ends_a_node = entry.event.kind.ends_a_run_of_a_node();
        if ends_a_node && fork.mode == ForkMode::Replay && entry.sequence >= fork.from {
            if let Some(difference) = again(shared, context, &before, entry).await {
                let event = diverged(&fork, entry, &difference);
                context.apply(&event);
                events.push(event);
            }
            return Ok(go_on_at(next, events));
        }
        if events.len() >= STEP_MAX_EVENTS || bytes >= STEP_MAX_BYTES {
            return Ok(go_on_at(next, events));
        }
    }
    match fork.mode {
        ForkMode::Branch => {
            // From here on it is a run as any other.
            context.source = None;
            Ok(go_on(context, events))
        }
        ForkMode::Replay => {
            let message = "the source's log has no end";
            Err(failed(run, &RunError::new("source_unreadable", message)))
        }
    }
}

/// How the run stood when the node began that it is in the middle of before event number `at`;
/// as it stands, where it is in none.
fn before(context: &Context, source: &[Entry], at: u64) -> RunState {
    let definition = &context.definition;
    let copied = usize::try_from(at).unwrap_or(usize::MAX).min(source.len());
    let begins = |entry: &Entry| matches!(entry.event.kind, Kind::NodeStarted | Kind::NodeResumed);
    match source[..copied].iter().rposition(begins) {
        Some(begun) if context.state.current(definition).is_some() => {
            RunState::fold(definition, source[..=begun].iter().map(|entry| &entry.event))
        }
        _ => context.state.clone(),
    }
}

/// Why the events of a run can't be read.
struct Unreadable {
    what: String,
    /// Whether they may be later.
    is_passing: bool,
}

/// The events of a run that a fork of it needs.
async fn read(shared: &Shared, fork: &Fork) -> Result<Vec<Entry>, Unreadable> {
    let gone = |what: String| Unreadable { what, is_passing: false };
    let id = &fork.source;
    let most = match fork.mode {
        ForkMode::Branch => usize::try_from(fork.from).unwrap_or(usize::MAX),
        ForkMode::Replay => usize::MAX,
    };
    let entity = entity_of(id).ok_or_else(|| gone(format!("there is no run `{id}`")))?;
    let mut entries = Vec::new();
    let mut folded = Folded::default();
    let take = |entry| {
        if entries.len() < most {
            entries.push(entry);
        }
    };
    let read = folded.read_on(&*shared.journal, &entity, take).await;
    read.map_err(|error| Unreadable {
        what: format!("the events of run `{id}` can't be read: {error}"),
        is_passing: matches!(error, sandglass_journal::Error::Unavailable { .. }),
    })?;
    if folded.events == 0 {
        return Err(gone(format!("the events of run `{id}` aren't in the journal any more")));
    }
    Ok(entries)
}

fn go_on_at(at: u64, events: Vec<RunEvent>) -> Answer {
    let params = Object::from([(NEXT.to_owned(), json!(Next::Replay { at }))]);
    let result = StepResult { events, response: None };
    Answer { action: "Replay", params, result, report: None }
}

/// The end that the source had.
fn end(event: &RunEvent, events: Vec<RunEvent>) -> Answer {
    let action = match event.kind {
        Kind::RunFailed => FAIL,
        Kind::RunCancelled => CANCEL_AS_RECORDED,
        _ => "Complete",
    };
    let params = Object::from([(ENDING.to_owned(), event.payload.clone())]);
    Answer { action, params, result: StepResult { events, response: None }, report: None }
}

fn diverged(fork: &Fork, entry: &Entry, difference: &Difference) -> RunEvent {
    let shown = |text: &str| text.chars().take(SHOWN_CHARS).collect::<String>();
    let payload = json!({
        "sourceRunId": fork.source,
        "atSequence": entry.sequence,
        "originalEventId": event_id(&fork.source, entry.sequence),
        "divergenceKind": difference.kind,
        "divergencePoint": entry.event.kind,
        "nodeId": entry.event.node_id,
        "what": shown(&difference.what),
        "recorded": shown(&difference.recorded),
        "came": shown(&difference.came),
    });
    RunEvent {
        node_id: entry.event.node_id.clone(),
        ..RunEvent::of_run(Kind::ReplayDiverged, payload)
    }
}
