//! Asks: requests of a handler that another entity take an action.
//!
//! This module checks what the asking handler may ask for, names its host call, and releases its
//! admission permit while it waits. [`Asks`] finds the asked entity, and checks depth and cycles. It
//! also delivers [signals to other entities](super::entity_signal).

use std::fmt;
use std::sync::Arc;

use sandglass_model::{
    Answered, Ask, AskError, AskUntil, EntityRef, EntitySignal, Object, SignalError,
};
use sandglass_source::json;
use serde::Deserialize;

use crate::admission::AdmittedDispatch;
use crate::origin::Origin;
use crate::panics::catch_panic;
use crate::race::{CallEnded, Race};
use crate::secret::{Answer, Redactor};
use crate::supervision::Supervision;

/// Largest ask, in bytes of JSON: enough for the parameters of an action.
pub const REQUEST_MAX_BYTES: u32 = 256 * 1024;

/// Receives the asks of one dispatch, and its signals to other entities. The runtime of the entities
/// creates it, and knows which dispatch asks.
pub trait Asks: Send + Sync + fmt::Debug {
    /// Whether the action exists. Spans and labels carry the names of existing actions, so there must
    /// be finitely many.
    fn knows(&self, entity_type: &str, action: &str) -> bool;

    /// Performs one ask. The future is dropped if the asking run ends first.
    fn ask(&self, ask: Ask) -> Answer<'static, Result<Answered, AskError>>;

    /// Delivers a signal to another entity, and waits until it is recorded. The future is dropped if
    /// the sending run ends first. The default returns [`SignalError::Unavailable`].
    fn signal(&self, signal: EntitySignal) -> Answer<'static, Result<(), SignalError>> {
        let _ = signal;
        let unavailable = "this host delivers no signals of handlers".to_owned();
        Box::pin(async move { Err(SignalError::Unavailable(unavailable)) })
    }
}

/// The deadline of the asker passed before the answer came.
const NOT_IN_TIME: &str = "the answer did not come in time";

impl From<CallEnded> for AskError {
    fn from(ended: CallEnded) -> Self {
        match ended {
            CallEnded::TimedOut(_) => Self::TimedOut(ended.to_string()),
            CallEnded::SoftDeadline | CallEnded::StopRequested => Self::CutShort(ended.to_string()),
        }
    }
}

/// Formats the error for a guest, with its kind first.
pub fn error_for_guest(error: &AskError) -> String {
    format!("{}: {error}", error.kind())
}

/// An ask as a guest writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with an `entity` and an `action`")]
pub struct Request {
    /// The entity that is asked.
    pub entity: EntityRef,
    /// The action to take.
    pub action: String,
    /// The parameters of the action.
    #[serde(default)]
    pub params: Object,
    /// What the ask waits for.
    #[serde(default)]
    pub until: AskUntil,
}

impl Request {
    /// Parses an ask from JSON.
    ///
    /// # Errors
    /// It is not valid; the error states why.
    pub fn from_json(text: &str) -> Result<Self, AskError> {
        json::read_object(text, json::Bounds::DEFAULT)
            .map_err(|error| AskError::Invalid(format!("the ask can't be read: {error}")))
    }

    /// Removes secrets, because the ask becomes part of another entity's records.
    fn redacted(self, redactor: &Redactor) -> Self {
        let params = self.params.into_iter();
        let params = params.map(|(name, value)| (name, redactor.json(value))).collect();
        Self { params, ..self }
    }
}

/// Formats the result of an ask for a guest.
pub fn to_json(answered: &Answered) -> Vec<u8> {
    serde_json::to_vec(answered).expect("plain data with string keys")
}

/// Returns the receiver of an ask for `action`, if the integration may ask for it.
fn allowed(origin: &Origin, entity_type: &str, action: &str) -> Result<Arc<dyn Asks>, AskError> {
    if !origin.manifest.ask_targets.iter().any(|target| target.allows(entity_type, action)) {
        return Err(AskError::NotAllowed(format!("`{entity_type}.{action}`")));
    }
    let asks = origin.dispatch.asks.as_ref().ok_or_else(no_receiver)?;
    if !asks.knows(entity_type, action) {
        return Err(AskError::UnknownTarget(format!(
            "there is no action `{action}` of entities of type `{entity_type}`"
        )));
    }
    Ok(Arc::clone(asks))
}

fn no_receiver() -> AskError {
    AskError::Unavailable("asks of this handler have no receiver".to_owned())
}

/// Begins the ask of the present host call: checks whether it is allowed, and names the call after
/// it. The caller races the future with the end of the run. While the future waits, the run has no
/// admission permit.
///
/// # Errors
/// The integration may not ask for the action, or the action does not exist.
pub fn begin(
    run: &mut Supervision,
    request: Request,
) -> Result<Answer<'static, Result<Answered, AskError>>, AskError> {
    let (entity_type, action) = (request.entity.entity_type(), &*request.action);
    let origin = run.origin.clone().ok_or_else(no_receiver)?;
    let asks = allowed(&origin, entity_type, action).inspect_err(|error| {
        if matches!(error, AskError::NotAllowed(_)) {
            run.guest_mut().note_refusal(error);
        }
    })?;
    // Only names that exist get here, so the names of calls stay bounded.
    let name: Arc<str> = format!("ask:{entity_type}.{action}").into();
    run.calls.spans.targets(entity_type, request.entity.id(), action);
    let trace = run.calls.spans.context().unwrap_or(origin.trace);
    let admitted = Arc::clone(&origin.admitted);
    run.name_call(name);
    let Request { entity: target, action, params, until } = request.redacted(&run.guest().redactor);
    let race = Race::inside(run);
    let not_after = run.run().deadline();
    let ask = Ask { target, action, params, until, not_after, trace };
    Ok(Box::pin(ask_without_permit(admitted, race, asks, ask)))
}

async fn ask_without_permit(
    admitted: Arc<AdmittedDispatch>,
    race: Race,
    asks: Arc<dyn Asks>,
    ask: Ask,
) -> Result<Answered, AskError> {
    // The ask is raced by itself, so that the permit is taken back even if the ask is cut short.
    let in_time = race.call(perform(asks, ask));
    let in_time = admitted.without_permit(in_time).await.map_err(AskError::Busy)?;
    in_time.unwrap_or_else(|| Err(AskError::TimedOut(NOT_IN_TIME.to_owned())))
}

/// Performs the ask. The receiver belongs to the embedder, and may panic.
async fn perform(asks: Arc<dyn Asks>, ask: Ask) -> Result<Answered, AskError> {
    catch_panic(Box::pin(async move { asks.ask(ask).await })).await.unwrap_or_else(|| {
        tracing::error!("what takes the asks of handlers panicked");
        let what = "the ask failed inside the host; whether it was taken isn't known";
        Err(AskError::Unavailable(what.to_owned()))
    })
}
