//! Executes nodes again, and compares the results with those that were recorded.

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay};
use sandglass_journal::PAGE_MAX_ENTRIES;
use sandglass_model::{Completion, Ended, Event, Outcome};
use sandglass_workflow::error::ErrorCode;
use sandglass_workflow::event::{DivergenceKind, Entry, Origin, Payload, RunEvent};
use sandglass_workflow::node::orchestrator::{self, Decider};
use sandglass_workflow::node::{DELAY, DISPATCH, End, SUPERVISOR, builtin, inputs};
use sandglass_workflow::state::RunState;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::engine::Engine;
use crate::handlers::refused_response;
use crate::library::PackNode;

/// How a node that was executed again differs from what was recorded.
pub(super) struct Difference {
    pub(super) kind: DivergenceKind,
    pub(super) what: String,
    pub(super) recorded: String,
    pub(super) came: String,
}

/// Executes the node that `entry` ends again, if it has no effects; returns how the result differs.
pub(super) async fn again(
    engine: &Engine,
    context: &Context,
    before: &RunState,
    entry: &Entry,
) -> Option<Difference> {
    // A node that was lost with its host has no result to compare with.
    let origin = entry.event.origin.as_ref()?;
    let definition = &context.definition;
    let index = definition.node(entry.event.node_id.as_deref()?)?;
    let node = &definition.nodes[index];
    if [DISPATCH, DELAY].contains(&node.type_id.as_str()) {
        return None;
    }
    let end = match inputs::resolve(definition, before, index) {
        // It never began.
        Err(error) => Some(End::Failed(error)),
        Ok(inputs) => builtin::pure(node, &inputs),
    };
    if let Some(end) = end {
        return compare(&entry.event, &end);
    }
    let type_id = if node.type_id == SUPERVISOR {
        // The answer to its question decided what it continued with.
        if before.nodes[index].resumed_with.is_some() {
            return None;
        }
        match orchestrator::decider(definition, before, index, node) {
            Ok(Decider::Pack(type_id)) => type_id,
            // The decision was held, and is recorded with what the person was asked.
            Ok(Decider::Decided(_)) if !context.state.is_decided => return None,
            Ok(Decider::Decided(decision)) => {
                let recorded = context.state.decision.as_ref();
                return differs("decision", recorded, Some(&decision));
            }
            Err(error) => return compare(&entry.event, &End::Failed(error)),
        }
    } else {
        &node.type_id
    };
    let unrepeatable = |came: String| Difference {
        kind: DivergenceKind::TypeMismatch,
        what: "the node can't be executed again".to_owned(),
        recorded: entry.event.payload.fields().to_string(),
        came,
    };
    let Some(of) = engine.library.node(type_id) else {
        // Only its pack states whether it is pure.
        let came = format!("nobody provides nodes of the type `{type_id}`; load the pack that did");
        return (!was_not_provided(&entry.event.payload)).then(|| unrepeatable(came));
    };
    if !of.is_pure() {
        return None;
    }
    replay(engine, of, origin).await.unwrap_or_else(|why| Some(unrepeatable(why)))
}

/// Whether the recorded node failed because no pack provided its type.
fn was_not_provided(recorded: &Payload) -> bool {
    matches!(
        recorded,
        Payload::NodeFailed { error, .. } if error.code == ErrorCode::CapabilityNotProvided
    )
}

fn differs<T: PartialEq + Serialize>(
    what: &str,
    recorded: Option<&T>,
    came: Option<&T>,
) -> Option<Difference> {
    let shown = |value: Option<&T>| {
        let value = value.map(|value| serde_json::to_value(value).expect("it is plain data"));
        value.as_ref().map(Value::to_string).unwrap_or_default()
    };
    (recorded != came).then(|| Difference {
        kind: DivergenceKind::Output,
        what: format!("another {what}"),
        recorded: shown(recorded),
        came: shown(came),
    })
}

/// How the end of a node differs from the event that recorded it.
fn compare(recorded: &RunEvent, came: &End) -> Option<Difference> {
    match (&recorded.payload, came) {
        (Payload::NodeCompleted { outputs, .. }, End::Completed(came)) => {
            differs("output", Some(outputs), Some(came))
        }
        (Payload::NodeFailed { error, .. }, End::Failed(came)) => {
            differs("error", Some(error), Some(came))
        }
        (Payload::NodeRetried { .. }, End::Failed(_)) => None,
        (payload, came) => Some(Difference {
            kind: DivergenceKind::Output,
            what: "another end".to_owned(),
            recorded: format!("{}: {}", payload.kind(), payload.fields()),
            came: format!("{came:?}"),
        }),
    }
}

/// Replays the recorded invocation of a pack's node.
async fn replay(
    engine: &Engine,
    of: &PackNode,
    origin: &Origin,
) -> Result<Option<Difference>, String> {
    let journals = &engine.journals;
    let unreadable =
        |error: sandglass_journal::Error| format!("the journal can't be read: {error}");
    let recording =
        journals.recording(origin.dispatch, origin.attempt).await.map_err(unreadable)?;
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
    let ended = find_end(engine, origin).await.map_err(unreadable)?;
    let ended = ended.ok_or("its end isn't in the journal any more")?;
    let end = end_of_node(&ended);
    let integration = engine.host.load_for_replay(&of.pack.module, &recorded);
    let integration = integration.map_err(|rejection| rejection.to_string())?;
    let replayed = engine.host.replay(&integration, Replay::new(&recorded, &end)).await;
    let replayed = replayed.map_err(|error| error.to_string())?;
    Ok(replayed.divergence.map(|divergence| Difference {
        kind: DivergenceKind::Output,
        what: match divergence.call {
            Some(call) => format!("{} (host call {call})", divergence.what),
            None => divergence.what,
        },
        recorded: divergence.recorded,
        came: divergence.came,
    }))
}

/// How a pack's node ended, from the record of the end of its handler: the report of the host before
/// it became an action or a failure of the run. [`Host::replay`] compares with it.
///
/// [`Host::replay`]: sandglass_host::Host::replay
#[must_use]
pub fn end_of_node(ended: &Ended) -> RecordedEnd {
    let response = match &ended.outcome {
        Outcome::Completed(completion) => {
            Some(completion.result.get("response").cloned().unwrap_or_default())
        }
        Outcome::Failed(failure) => refused_response(failure).cloned(),
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
    engine: &Engine,
    origin: &Origin,
) -> Result<Option<Ended>, sandglass_journal::Error> {
    let journals = &engine.journals;
    let Some((entity, at)) = journals.find_dispatch(origin.dispatch).await? else {
        return Ok(None);
    };
    let mut next = Some(at);
    while let Some(from) = next {
        let page = journals.read_entity(entity.clone(), from, PAGE_MAX_ENTRIES).await?;
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
