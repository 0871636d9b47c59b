//! Forks of runs: events of the source are taken over, and from `fromSeq` on a branch goes its
//! own way, and a replay comes to the same events again.
//!
//! A replay executes pure nodes once more, those of packs with the recorded results of what
//! they asked for, and records where they differ. Everything else, each breach and each
//! effect, is as it was recorded: no clock and no counter decides again.

use std::sync::Arc;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay};
use sandglass_journal::PAGE_MAX_ENTRIES;
use sandglass_model::{Cause, Completion, Ended, Event, Object, Outcome, RunReport};
use sandglass_runtime::HandlerRun;
use serde_json::{Value, json};

use crate::context::{Context, size};
use crate::event::{Entry, Kind, Origin, RunError, RunEvent, event_id};
use crate::handlers::{Answer, Shared, cancelled, failed, go_on, not_taken};
use crate::library::PackNode;
use crate::log::{Folded, fold};
use crate::node::{DISPATCH, End, SUPERVISOR, builtin, inputs, orchestrator};
use crate::projection::{CANCEL_AS_RECORDED, ENDING, FAIL, NEXT, StepResult};
use crate::service::id::entity_of;
use crate::state::RunState;
use crate::step::{Fork, ForkMode, Next};

/// Most events, and most of them in bytes of JSON, that one step takes over.
const STEP_MAX_EVENTS: usize = 256;
const STEP_MAX_BYTES: usize = 512 << 10;

/// Takes over the source's events from number `at` on: up to the next node that is executed
/// once more, or as many as go into one record.
pub(crate) async fn step(
    shared: &Arc<Shared>,
    run: &HandlerRun,
    context: &mut Context,
    at: u64,
) -> Result<Answer, RunReport> {
    // A host that shuts down stops none: the next one goes on with it.
    if let Some(request) = run.stop.requested().filter(|request| request.cause != Cause::Shutdown) {
        return Err(cancelled(run, request));
    }
    let Some(fork) = context.begin.fork.clone() else {
        return Err(failed(run, &RunError::new("host_error", "the run was forked from nothing")));
    };
    let source = match &context.source {
        Some(source) => Arc::clone(source),
        None => match read(shared, &fork).await {
            Ok(source) => Arc::new(source),
            Err(why) => return Err(failed(run, &RunError::new("source_unreadable", why))),
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
        bytes += size(&entry.event.payload);
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
            fold(definition, source[..=begun].iter().map(|entry| &entry.event))
        }
        _ => context.state.clone(),
    }
}

/// The events of a run that a fork of it needs.
async fn read(shared: &Shared, fork: &Fork) -> Result<Vec<Entry>, String> {
    let id = &fork.source;
    let most = match fork.mode {
        ForkMode::Branch => usize::try_from(fork.from).unwrap_or(usize::MAX),
        ForkMode::Replay => usize::MAX,
    };
    let entity = entity_of(id).ok_or_else(|| format!("there is no run `{id}`"))?;
    let mut entries = Vec::new();
    let mut folded = Folded::default();
    let take = |entry| {
        if entries.len() < most {
            entries.push(entry);
        }
    };
    let read = folded.read_on(&*shared.journal, &entity, take).await;
    read.map_err(|error| format!("the events of run `{id}` can't be read: {error}"))?;
    if folded.events == 0 {
        return Err(format!("the events of run `{id}` aren't in the journal any more"));
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

/// How a node that was executed again differs from what was recorded.
struct Difference {
    kind: &'static str,
    what: String,
    recorded: String,
    came: String,
}

/// Longest text of a difference, in characters.
const SHOWN_CHARS: usize = 1_000;

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

/// Executes the node that `entry` ends once more, where that has no effects; answers how it
/// differs.
async fn again(
    shared: &Shared,
    context: &Context,
    before: &RunState,
    entry: &Entry,
) -> Option<Difference> {
    // One that was lost with its host has come to nothing that could be compared.
    let origin = entry.event.origin.as_ref()?;
    let definition = &context.definition;
    let index = definition.node(entry.event.node_id.as_deref()?)?;
    let node = &definition.nodes[index];
    let type_id = match node.type_id.as_str() {
        DISPATCH => return None,
        SUPERVISOR => {
            if let Err(error) = inputs::resolve(definition, before, index) {
                return compared(&entry.event, &End::Failed(error));
            }
            // What it goes on with was decided by whoever answered it.
            if before.nodes[index].resumed_with.is_some() {
                return None;
            }
            match orchestrator::decider(definition, before, index, node) {
                Ok(orchestrator::Decider::Pack(type_id)) => type_id,
                Ok(orchestrator::Decider::Decided(decision)) => {
                    let decided = orchestrator::decided(node, before, decision.clone());
                    if matches!(decided.end, End::Failed(_)) {
                        return compared(&entry.event, &decided.end);
                    }
                    let recorded = context.state.decision.as_ref();
                    return differs("output", "decision", recorded, Some(&decision));
                }
                Err(_) => return None,
            }
        }
        type_id => type_id,
    };
    match inputs::resolve(definition, before, index) {
        // It was never begun.
        Err(error) => return compared(&entry.event, &End::Failed(error)),
        Ok(inputs) => {
            if let Some(executed) = builtin::pure(node, &inputs) {
                return compared(&entry.event, &executed.end);
            }
        }
    }
    let Some(of) = shared.library.node(type_id) else {
        return unprovided(&entry.event, type_id);
    };
    if !of.is_pure() {
        return None;
    }
    match replay(shared, of, origin).await {
        Ok(difference) => difference,
        Err(why) => Some(Difference {
            kind: "type-mismatch",
            what: "the node can't be executed again".to_owned(),
            recorded: entry.event.payload.to_string(),
            came: why,
        }),
    }
}

/// A node of a type that nobody provides any more, if ever: whether it is pure is known to its
/// pack alone.
fn unprovided(recorded: &RunEvent, type_id: &str) -> Option<Difference> {
    let is_the_same = recorded.payload["error"]["code"] == "capability_not_provided";
    (!is_the_same).then(|| Difference {
        kind: "type-mismatch",
        what: "the node can't be executed again".to_owned(),
        recorded: recorded.payload.to_string(),
        came: format!("nobody provides nodes of the type `{type_id}`; load the pack that did"),
    })
}

fn differs(
    kind: &'static str,
    what: &str,
    recorded: Option<&Value>,
    came: Option<&Value>,
) -> Option<Difference> {
    let shown = |value: Option<&Value>| value.map(Value::to_string).unwrap_or_default();
    (recorded != came).then(|| Difference {
        kind,
        what: format!("another {what}"),
        recorded: shown(recorded),
        came: shown(came),
    })
}

/// How the end of a node differs from the event that recorded it.
fn compared(recorded: &RunEvent, came: &End) -> Option<Difference> {
    let payload = &recorded.payload;
    match (recorded.kind, came) {
        (Kind::NodeCompleted, End::Completed(outputs)) => {
            differs("output", "output", payload.get("outputs"), Some(outputs))
        }
        (Kind::NodeFailed, End::Failed(error)) => {
            differs("output", "error", payload.get("error"), Some(&json!(error)))
        }
        (Kind::NodeRetried, End::Failed(_)) => None,
        (_, came) => Some(Difference {
            kind: "output",
            what: "another end".to_owned(),
            recorded: format!("{}: {payload}", recorded.kind),
            came: format!("{came:?}"),
        }),
    }
}

/// Has the recorded invocation of a pack's node again.
async fn replay(
    shared: &Shared,
    of: &PackNode,
    origin: &Origin,
) -> Result<Option<Difference>, String> {
    let journal = &shared.journal;
    let unreadable =
        |error: sandglass_journal::Error| format!("the journal can't be read: {error}");
    let recording = journal.recording(origin.dispatch, origin.attempt).await.map_err(unreadable)?;
    let Some(recording) = recording else {
        return Err("nothing was recorded of it".to_owned());
    };
    let recorded = RecordedRun::read(recording.into()).map_err(|error| error.to_string())?;
    if recorded.module() != of.pack.hash {
        return Err(format!(
            "pack `{}` has another module ({}) than ran then ({})",
            of.pack.name,
            of.pack.hash,
            recorded.module()
        ));
    }
    let ended = find_end(shared, origin).await.map_err(unreadable)?;
    let ended = ended.ok_or("its end isn't in the journal any more")?;
    let end = end_of_node(&ended);
    let integration = shared.host.load_for_replay(&of.pack.module, &recorded);
    let integration = integration.map_err(|rejection| rejection.to_string())?;
    let replayed = shared.host.replay(&integration, Replay::new(&recorded, &end)).await;
    let replayed = replayed.map_err(|error| error.to_string())?;
    Ok(replayed.divergence.map(|divergence| Difference {
        kind: "output",
        what: match divergence.call {
            Some(call) => format!("{} (host call {call})", divergence.what),
            None => divergence.what,
        },
        recorded: divergence.recorded,
        came: divergence.came,
    }))
}

/// How the pack's node ended whose handler of a run ended so: as its host has told it, before
/// that was made an action of the run, or a failure of it. What [`Host::replay`] compares with.
///
/// [`Host::replay`]: sandglass_host::Host::replay
#[must_use]
pub fn end_of_node(ended: &Ended) -> RecordedEnd {
    let response = match &ended.outcome {
        Outcome::Completed(completion) => {
            Some(completion.result.get("response").cloned().unwrap_or_default())
        }
        Outcome::Failed(failure) => not_taken(failure).cloned(),
        _ => None,
    };
    let end = RecordedEnd::from(ended);
    match response {
        Some(result) => {
            let outcome = Outcome::Completed(Completion { result, ..Completion::default() });
            RecordedEnd { outcome, ..end }
        }
        None => end,
    }
}

/// How the attempt of a dispatch ended.
async fn find_end(
    shared: &Shared,
    origin: &Origin,
) -> Result<Option<Ended>, sandglass_journal::Error> {
    let journal = &shared.journal;
    let Some((entity, at)) = journal.find_dispatch(origin.dispatch).await? else {
        return Ok(None);
    };
    let mut next = Some(at);
    while let Some(from) = next {
        let page = journal.read_entity(entity.clone(), from, PAGE_MAX_ENTRIES).await?;
        next = page.next;
        for record in page.into_records()? {
            match record.event {
                Event::Ended(ended)
                    if ended.dispatch == origin.dispatch && ended.attempt == origin.attempt =>
                {
                    return Ok(Some(*ended));
                }
                _ => {}
            }
        }
    }
    Ok(None)
}
