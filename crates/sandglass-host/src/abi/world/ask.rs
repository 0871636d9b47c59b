//! `sandglass:integration/ask`: asking another entity to take an action.

use sandglass_model::{Answered, AskError, AskUntil, EntityRef};
use serde_json::Value;
use wasmtime::Result;

use super::interface::ask::{self, Answer, Error, ErrorKind, Until};
use super::{object, scratch, telemetry};
use crate::boundary::imports;
use sandglass_supervisor::capability::ask::{self as capability, Request as CapabilityRequest};

imports! { IMPORTS from telemetry::END + scratch::IMPORTS.len();
    "sandglass:integration/ask" in ask {
        Host {
            waiting "ask" fn ask(store, race, request: Request) -> Result<Result<Answer, Error>> {
                let wait = to_request(request).and_then(|request| capability::begin(store, request));
                let wait = match wait {
                    Ok(wait) => wait,
                    Err(error) => return Ok(Some(Err(store.failed(error)))),
                };
                let Some(answered) = race.run(wait).await else { return Ok(None) };
                Ok(Some(answered.map(answer).map_err(|error| store.failed(error))))
            }
        }
    }
}

/// The result of an ask, as components get it.
pub(crate) fn answer(answered: Answered) -> Answer {
    let fields = Value::from_iter(answered.fields).to_string();
    Answer { sequence: answered.sequence.0, state: answered.state, fields }
}

pub(crate) fn to_request(request: ask::Request) -> Result<CapabilityRequest, AskError> {
    let size = request.params.len();
    if size > capability::REQUEST_MAX_BYTES as usize {
        return Err(AskError::Invalid(format!(
            "the parameters have {size} bytes, and {} are allowed",
            capability::REQUEST_MAX_BYTES
        )));
    }
    let entity = format!("{}/{}", request.entity_type, request.entity_id);
    let entity: EntityRef =
        entity.parse().map_err(|error| AskError::Invalid(format!("no entity: {error}")))?;
    let params = object("the parameters' JSON", &request.params).map_err(AskError::Invalid)?;
    let until = match request.until {
        Until::Transition => AskUntil::Transition,
        Until::Settled => AskUntil::Settled,
    };
    let params = params.into_iter().collect();
    Ok(CapabilityRequest { entity, action: request.action, params, until })
}

impl From<AskError> for Error {
    fn from(error: AskError) -> Self {
        let (kind, retry_after_ms) = match &error {
            AskError::NotAllowed(_) => (ErrorKind::NotAllowed, None),
            AskError::UnknownTarget(_) => (ErrorKind::UnknownTarget, None),
            AskError::Cycle => (ErrorKind::Cycle, None),
            AskError::TooDeep(_) => (ErrorKind::TooDeep, None),
            AskError::Refused(_) => (ErrorKind::Refused, None),
            AskError::Busy(busy) => (ErrorKind::Busy, Some(busy.retry_after_ms)),
            AskError::TimedOut(_) => (ErrorKind::TimedOut, None),
            AskError::CutShort(_) => (ErrorKind::CutShort, None),
            AskError::Unavailable(_) => (ErrorKind::Unavailable, None),
            AskError::Invalid(_) => (ErrorKind::InvalidRequest, None),
        };
        Self { kind, message: error.to_string(), retry_after_ms }
    }
}
