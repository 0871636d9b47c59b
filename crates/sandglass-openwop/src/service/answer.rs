//! Answers to what runs wait for.

use std::time::Duration;

use sandglass_http::timer::within;
use sandglass_liveness::Refusal;
use sandglass_model::Object;
use sandglass_runtime::{ActorError, Request};
use serde_json::{Value, json};

use super::Service;
use crate::action::resume;
use crate::http::error::{Code, Error};
use crate::log::Standing;
use sandglass_workflow::event::{Kind, RunEvent};
use sandglass_workflow::projection::{EVENTS, WAITING};
use sandglass_workflow::state::Waiting;

/// How often an answer is given where the run moves on meanwhile, and waits for it all the same.
const RESOLVE_ATTEMPTS: usize = 4;

/// How long it may take until a run waits that is about to.
const SOON: Duration = Duration::from_secs(1);

impl Service {
    /// Gives a run the answer that it waits for.
    pub(crate) async fn resolve(
        &self,
        id: &str,
        node: &str,
        answer: Value,
    ) -> Result<&'static str, Error> {
        let mut asked = None;
        for _ in 0..RESOLVE_ATTEMPTS {
            // Of two answers at once one finds that the run has moved on from here.
            let (entity, snapshot) = self.find(id).await?;
            let log = self.whole_log(&entity).await?;
            let standing = self.standing(&log).await?;
            let waiting = waiting_at(&standing, node)?;
            // One that somebody sees in the log before its actor shows it is asked for again.
            match asked.replace(waiting.interrupt.clone()) {
                None => crate::interrupt::check(&waiting.payload, &answer)?,
                Some(one) if one == waiting.interrupt => {}
                Some(_) => break,
            }
            if snapshot.state != WAITING {
                // It isn't shown yet, or a lost host's wait is taken up again.
                let waits = self.runtime.wait_until(&entity, |seen| seen.state == WAITING);
                drop(within(SOON, waits).await);
                continue;
            }
            let (action, params) = self.resumption(&standing, waiting, &answer);
            let request = Request::new(action).params(params).expecting(snapshot.sequence);
            match self.runtime.request(&entity, request).await {
                Ok(_) => return Ok("running"),
                // It is recorded twice: as the answer, and as what the node goes on with.
                Err(ActorError::Refused { refusal: Refusal::TooLarge { max, .. }, .. }) => {
                    return Err(Error::too_large("twice the answer", max));
                }
                Err(ActorError::Refused { .. } | ActorError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(answered(node))
    }

    /// The action that gives a run `answer`, and its params.
    fn resumption(
        &self,
        standing: &Standing,
        waiting: &Waiting,
        answer: &Value,
    ) -> (&'static str, Object) {
        let node = waiting.node.as_str();
        let resolved = json!({
            "nodeId": node, "interruptId": waiting.interrupt, "kind": waiting.payload["kind"],
            "resumeValue": answer,
        });
        let resumed =
            json!({ "nodeId": node, "interruptId": waiting.interrupt, "resumeValue": answer });
        let events = [
            RunEvent::of_node(Kind::InterruptResolved, node, resolved),
            RunEvent::of_node(Kind::NodeResumed, node, resumed),
        ];
        let index = standing.definition.node(node).unwrap_or_default();
        let (action, mut params) = resume(self.library(), &standing.definition, index);
        params.insert(EVENTS.to_owned(), json!(events));
        (action, params)
    }
}

/// What `node` waits for.
fn waiting_at<'a>(standing: &'a Standing, node: &str) -> Result<&'a Waiting, Error> {
    if let Some(waiting) = standing.state.waiting.as_ref().filter(|one| one.node == node) {
        return Ok(waiting);
    }
    Err(if standing.definition.node(node).is_some() {
        answered(node)
    } else {
        let shown: String = node.chars().take(64).collect();
        Error::new(Code::NotFound, "the run has no such node").detail("nodeId", shown)
    })
}

fn answered(node: &str) -> Error {
    let message = "the node waits for no answer, or has it";
    Error::new(Code::InterruptResolved, message).detail("nodeId", node)
}
