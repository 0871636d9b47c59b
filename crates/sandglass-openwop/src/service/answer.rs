//! Answers to interrupts.

use std::time::Duration;

use sandglass_http::timer::within;
use sandglass_liveness::Refusal;
use sandglass_runtime::{ActorError, Request};
use sandglass_workflow::automaton::{Action, Params, State};
use sandglass_workflow::decision::Decision;
use sandglass_workflow::event::{Payload, RunEvent};
use sandglass_workflow::node::orchestrator;
use sandglass_workflow::state::{RunStatus, Waiting};
use serde_json::Value;

use super::{Error, Service};
use crate::action::resume;
use crate::log::Standing;

/// How often an answer is tried if the run moves on meanwhile and still waits.
const RESOLVE_ATTEMPTS: usize = 4;

/// How long it may take until a run waits that is about to.
const SOON: Duration = Duration::from_secs(1);

impl Service {
    /// Passes a run the answer that `node` waits for; returns its status afterwards.
    pub(crate) async fn resolve(
        &self,
        id: &str,
        node: &str,
        answer: Value,
    ) -> Result<RunStatus, Error> {
        let mut checked = None;
        for _ in 0..RESOLVE_ATTEMPTS {
            // Of two simultaneous answers, one finds that the run has moved on from here.
            let (entity, snapshot) = self.find(id).await?;
            let log = self.whole_log(&entity).await?;
            let standing = self.standing(&log).await?;
            let waiting = waiting_at(&standing, node)?;
            // The log may show that it waits before the entity does: then this tries again.
            match checked.replace(waiting.id.clone()) {
                None => check(&standing, waiting, &answer)?,
                Some(one) if one == waiting.id => {}
                Some(_) => break,
            }
            if snapshot.state != State::Waiting.as_str() {
                // The entity does not show it yet, or continues the wait of a lost host.
                let is_waiting = |state: &str| state == State::Waiting.as_str();
                let waits = self.runs.runtime.wait_until(&entity, |seen| is_waiting(&seen.state));
                drop(within(SOON, waits).await);
                continue;
            }
            let (action, params) = self.resumption(&standing, waiting, &answer);
            let request = Request::new(action.as_str()).params(params.into());
            let request = request.expecting(snapshot.sequence);
            match self.runs.runtime.request(&entity, request).await {
                Ok(_) => return Ok(RunStatus::Running),
                // It is recorded twice: as the answer, and as what the node continues with.
                Err(ActorError::Refused { refusal: Refusal::TooLarge { max, .. }, .. }) => {
                    return Err(Error::TooLarge { what: "twice the answer", max_bytes: max });
                }
                Err(ActorError::Refused { .. } | ActorError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::NotWaiting(node.to_owned()))
    }

    /// The action that passes a run `answer`, and its parameters.
    fn resumption(
        &self,
        standing: &Standing,
        waiting: &Waiting,
        answer: &Value,
    ) -> (Action, Params) {
        let node = waiting.node.as_str();
        let resolved = Payload::InterruptResolved {
            node_id: node.to_owned(),
            interrupt_id: waiting.id.clone(),
            kind: waiting.interrupt.kind,
            resume_value: answer.clone(),
        };
        let resumed = Payload::NodeResumed {
            node_id: node.to_owned(),
            interrupt_id: waiting.id.clone(),
            resume_value: answer.clone(),
        };
        let events = [resolved, resumed].map(|payload| RunEvent::of_node(node, payload)).into();
        let index = standing.definition.node(node).unwrap_or_default();
        let (action, params) = resume(&self.engine().library, &standing.definition, index);
        (action, Params { events, ..params })
    }
}

/// Checks that `waiting` accepts `answer`; if it holds a decision, that must be a decision.
fn check(standing: &Standing, waiting: &Waiting, answer: &Value) -> Result<(), Error> {
    let Standing { definition, state, .. } = standing;
    let node = definition.node(&waiting.node).map(|index| &definition.nodes[index]);
    let is_held =
        node.is_some_and(|node| orchestrator::is_ratification(node, state, &waiting.interrupt));
    if is_held {
        let refused = |why| Error::invalid("/resumeValue", format!("a decision is needed: {why}"));
        return Decision::parse(answer).map(drop).map_err(refused);
    }
    Ok(waiting.interrupt.check_answer(answer)?)
}

/// What `node` waits for.
fn waiting_at<'a>(standing: &'a Standing, node: &str) -> Result<&'a Waiting, Error> {
    let waiting = standing.state.waiting.as_ref().filter(|waiting| waiting.node == node);
    waiting.ok_or_else(|| match standing.definition.node(node) {
        Some(_) => Error::NotWaiting(node.to_owned()),
        None => Error::NoNode(node.chars().take(64).collect()),
    })
}
