//! Nodes that are executed once more, and compared with what was recorded of them.

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay};
use sandglass_journal::PAGE_MAX_ENTRIES;
use sandglass_model::{Completion, Ended, Event, Outcome};
use serde_json::{Value, json};

use crate::context::Context;
use crate::handlers::{Shared, not_taken};
use crate::library::PackNode;
use sandglass_workflow::event::{Entry, Kind, Origin, RunEvent};
use sandglass_workflow::node::{DELAY, DISPATCH, End, SUPERVISOR, builtin, inputs, orchestrator};
use sandglass_workflow::state::RunState;

/// How a node that was executed again differs from what was recorded.
pub(super) struct Difference {
    pub(super) kind: &'static str,
    pub(super) what: String,
    pub(super) recorded: String,
    pub(super) came: String,
}

/// Executes the node that `entry` ends once more, where that has no effects; answers how it
/// differs.
pub(super) async fn again(
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
        DISPATCH | DELAY => return None,
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
                    let decided = orchestrator::decided(node, before, decision.clone()).0;
                    if matches!(decided, End::Failed(_)) {
                        return compared(&entry.event, &decided);
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
                return compared(&entry.event, &executed);
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
