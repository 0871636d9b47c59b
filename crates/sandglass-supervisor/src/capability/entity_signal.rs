//! Signals of a handler to another entity. They are recorded there, and change no state; a state
//! whose `reset_on` lists the signal starts its timer again.
//!
//! This module checks which signals the handler may send, and names its host call after the grant.
//! [`Asks`] delivers the signal.

use std::sync::Arc;

use sandglass_model::id::check_signal_name;
use sandglass_model::{EntityRef, EntitySignal, SignalError};
use sandglass_source::json;
use serde::Deserialize;
use serde_json::Value;

use super::ask::Asks;
use crate::panics::catch_panic;
use crate::race::{CallEnded, Race};
use crate::secret::Answer;
use crate::supervision::Supervision;

/// Largest request of a core module, in bytes of JSON: the payload and the names around it.
pub const REQUEST_MAX_BYTES: u32 = EntitySignal::PAYLOAD_MAX_BYTES + 4 * 1024;

/// The bounds on the JSON of a request.
const BOUNDS: json::Bounds =
    json::Bounds { max_values: EntitySignal::PAYLOAD_MAX_VALUES, ..json::Bounds::DEFAULT };

impl From<CallEnded> for SignalError {
    fn from(ended: CallEnded) -> Self {
        match ended {
            CallEnded::TimedOut(_) => Self::TimedOut(ended.to_string()),
            CallEnded::SoftDeadline | CallEnded::StopRequested => Self::CutShort(ended.to_string()),
        }
    }
}

/// Formats the error for a guest, with its kind first.
#[must_use]
pub fn error_for_guest(error: &SignalError) -> String {
    format!("{}: {error}", error.kind())
}

/// A signal as a guest writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with an `entity` and a `name`")]
pub struct Request {
    /// The entity that receives it.
    pub entity: EntityRef,
    /// The name of the signal.
    pub name: String,
    /// Its content.
    #[serde(default)]
    pub payload: Value,
}

impl Request {
    /// Parses a signal from JSON.
    ///
    /// # Errors
    /// It is not valid; the error states why.
    pub fn from_json(text: &str) -> Result<Self, SignalError> {
        json::read_object(text, BOUNDS)
            .map_err(|error| SignalError::Invalid(format!("the signal can't be read: {error}")))
    }
}

/// Parses the JSON of a payload. An empty text stands for `null`.
///
/// # Errors
/// It is not valid JSON, or too large; the error states which.
pub fn payload(text: &str) -> Result<Value, SignalError> {
    check_length(text.len())?;
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    json::read_within(text, BOUNDS)
        .map_err(|error| SignalError::Invalid(format!("the payload is not valid JSON: {error}")))
}

fn check_length(bytes: usize) -> Result<(), SignalError> {
    const MAX: usize = EntitySignal::PAYLOAD_MAX_BYTES as usize;
    if bytes > MAX {
        let why = format!("the payload has {bytes} bytes, and {MAX} are allowed");
        return Err(SignalError::Invalid(why));
    }
    Ok(())
}

fn no_receiver() -> SignalError {
    SignalError::Unavailable("signals of this handler have no receiver".to_owned())
}

/// Begins to send the signal of the present host call: checks whether it is allowed, and names the
/// call after the grant. The caller races the future with the end of the run.
///
/// # Errors
/// The integration may not send the signal, or no runtime of entities receives it.
pub fn begin(
    run: &mut Supervision,
    request: Request,
) -> Result<Answer<'static, Result<(), SignalError>>, SignalError> {
    let Request { entity: target, name, payload } = request;
    check_signal_name(&name).map_err(|error| SignalError::Invalid(error.to_string()))?;
    let origin = run.origin.clone().ok_or_else(no_receiver)?;
    let granted = &origin.manifest.signal_targets;
    // An exact grant comes after `*`, and limits may name it.
    let grant = granted.iter().rev().find(|granted| granted.allows(target.entity_type(), &name));
    let Some(grant) = grant else {
        let error = SignalError::NotAllowed(format!("`{}.{name}`", target.entity_type()));
        run.guest_mut().note_refusal(&error);
        return Err(error);
    };
    let receiver = origin.dispatch.asks.clone().ok_or_else(no_receiver)?;
    // Named after the grant: a guest chooses the names of its signals, and labels are bounded.
    run.name_call(format!("signal:{grant}").into());
    // The signal becomes part of another entity's records.
    let redactor = &run.guest().redactor;
    let (name, payload) = (redactor.text(name), redactor.json(payload));
    // As it is recorded: a core module's payload is a part of a larger text.
    check_length(payload.to_string().len())?;
    run.calls.spans.targets(target.entity_type(), target.id(), &name);
    let race = Race::of(run);
    let signal = EntitySignal { target, name, payload };
    Ok(Box::pin(async move {
        let not_in_time = || SignalError::TimedOut("it was not recorded in time".to_owned());
        race.call(perform(receiver, signal)).await.unwrap_or_else(|| Err(not_in_time()))
    }))
}

/// Delivers the signal. The receiver belongs to the embedder, and may panic.
async fn perform(receiver: Arc<dyn Asks>, signal: EntitySignal) -> Result<(), SignalError> {
    let sending = Box::pin(async move { receiver.signal(signal).await });
    catch_panic(sending).await.unwrap_or_else(|| {
        tracing::error!("what takes the signals of handlers panicked");
        let what = "the signal failed inside the host; whether it is recorded isn't known";
        Err(SignalError::Unavailable(what.to_owned()))
    })
}
