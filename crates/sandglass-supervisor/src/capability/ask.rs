//! Asks: what one handler wants another entity to do, and hears of it.
//!
//! Here is what concerns the asker: what it may ask, what its call goes by, and
//! that it holds no place to run while it waits. Who is asked, how deep, and
//! whether in a circle, is for [`Asks`] to see.

use std::fmt;
use std::sync::Arc;

use sandglass_model::{Answered, Ask, AskError, AskUntil, EntityRef, Object};
use serde::Deserialize;

use crate::admission::Place;
use crate::origin::Origin;
use crate::panics::caught;
use crate::race::{CallEnded, Race};
use crate::secret::{Answer, Redactor};
use crate::supervision::Supervision;

/// Largest ask, in bytes of JSON: an action's parameters. Data goes elsewhere.
pub const REQUEST_MAX_BYTES: u32 = 256 * 1024;

/// Takes the asks of one dispatch. Made by whoever runs entities; it knows who
/// asks.
pub trait Asks: Send + Sync + fmt::Debug {
    /// Whether there is such an action. It bounds the names that spans and labels
    /// carry, so it must know finitely many.
    fn knows(&self, entity_type: &str, action: &str) -> bool;

    /// Carries out one ask. The future is dropped where the asker's run ends
    /// first.
    fn ask(&self, ask: Ask) -> Answer<'static, Result<Answered, AskError>>;
}

impl From<CallEnded> for AskError {
    fn from(ended: CallEnded) -> Self {
        match ended {
            CallEnded::TimedOut(_) => Self::TimedOut,
            CallEnded::SoftDeadline | CallEnded::StopRequested => Self::CutShort(ended.to_string()),
        }
    }
}

/// The error as a guest reads it, the kind first.
pub fn error_for_guest(error: &AskError) -> String {
    format!("{}: {error}", error.kind())
}

/// What a guest asks for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with an `entity` and an `action`")]
pub struct Request {
    /// The entity that is asked.
    pub entity: EntityRef,
    /// The action that it is to take.
    pub action: String,
    /// The params of the action.
    #[serde(default)]
    pub params: Object,
    /// What the ask waits for.
    #[serde(default)]
    pub until: AskUntil,
}

impl Request {
    /// Reads an ask from JSON.
    ///
    /// # Errors
    /// It is not valid; the text says why.
    pub fn from_json(text: &str) -> Result<Self, AskError> {
        sandglass_source::json::read(text)
            .map_err(|error| AskError::Invalid(format!("the ask can't be read: {error}")))
    }

    /// Without secrets: what is asked becomes part of another entity's record.
    fn redacted(self, redactor: &Redactor) -> Self {
        let params = self.params.into_iter();
        let params = params.map(|(name, value)| (name, redactor.json(value))).collect();
        Self { params, ..self }
    }
}

/// The result of an ask as a guest reads it.
pub fn to_json(answered: &Answered) -> Vec<u8> {
    serde_json::to_vec(answered).expect("plain data with string keys")
}

/// Who takes an ask of `action`, where the integration may ask for it.
fn allowed(origin: &Origin, entity_type: &str, action: &str) -> Result<Arc<dyn Asks>, AskError> {
    if !origin.manifest.ask_targets.iter().any(|target| target.allows(entity_type, action)) {
        return Err(AskError::NotAllowed(format!("`{entity_type}.{action}`")));
    }
    let asks = origin.dispatch.asks.as_ref().ok_or_else(nobody)?;
    if !asks.knows(entity_type, action) {
        return Err(AskError::UnknownTarget(format!(
            "there is no action `{action}` of entities of type `{entity_type}`"
        )));
    }
    Ok(Arc::clone(asks))
}

fn nobody() -> AskError {
    AskError::Unavailable("nobody takes asks of this handler".to_owned())
}

/// Begins the ask that the present host call is: checks whether it is allowed,
/// and names the call after it. The future, which is to be raced with the end of
/// the run, gives up the place to run while it waits.
///
/// # Errors
/// The guest asks for what it may not, or what there is not.
pub fn begin(
    run: &mut Supervision,
    request: Request,
) -> Result<Answer<'static, Result<Answered, AskError>>, AskError> {
    let (entity_type, action) = (request.entity.entity_type(), &*request.action);
    let origin = run.origin().cloned().ok_or_else(nobody)?;
    let asks = allowed(&origin, entity_type, action)?;
    // Both names are known ones by now, so there are few.
    let name: Arc<str> = format!("ask:{entity_type}.{action}").into();
    run.calls.spans.asks(entity_type, request.entity.id(), action);
    let trace = run.call_spans().context().unwrap_or(origin.trace);
    let place = Arc::clone(&origin.place);
    run.name_call(name);
    let Request { entity: target, action, params, until } = request.redacted(&run.guest().redactor);
    let race = Race::inside(run);
    let not_after = run.run().deadline();
    let ask = Ask { target, action, params, until, not_after, trace };
    Ok(Box::pin(without_place(place, race, asks, ask)))
}

async fn without_place(
    place: Arc<Place>,
    race: Race,
    asks: Arc<dyn Asks>,
    ask: Ask,
) -> Result<Answered, AskError> {
    place.step_aside().map_err(AskError::Busy)?;
    // The place is taken again also where the ask is cut, so this is raced on its own.
    let answer = race.call(asked(asks, ask)).await.unwrap_or(Err(AskError::TimedOut));
    place.come_back().await;
    answer
}

/// What comes of the ask; who takes it is the embedder's, and may panic.
async fn asked(asks: Arc<dyn Asks>, ask: Ask) -> Result<Answered, AskError> {
    caught(Box::pin(async move { asks.ask(ask).await })).await.unwrap_or_else(|| {
        tracing::error!("what takes the asks of handlers panicked");
        let what = "the ask failed inside the host; whether it was taken isn't known";
        Err(AskError::Unavailable(what.to_owned()))
    })
}
