//! `sandglass:integration/signal`: sending signals to other entities.

use sandglass_model::{EntityRef, SignalError};
use wasmtime::Result;

use super::interface::signal::{self, Error, ErrorKind};
use super::{ask, scratch, telemetry};
use crate::boundary::imports;
use sandglass_supervisor::capability::entity_signal::{self as capability, Request};

imports! { IMPORTS from telemetry::END + scratch::IMPORTS.len() + ask::IMPORTS.len();
    "sandglass:integration/signal" in signal {
        Host {
            waiting "send" fn send(store, race, notice: Notice) -> Result<Result<(), Error>> {
                let wait = to_request(notice).and_then(|request| capability::begin(store, request));
                let wait = match wait {
                    Ok(wait) => wait,
                    Err(error) => return Ok(Some(Err(store.failed(error)))),
                };
                let Some(sent) = race.run(wait).await else { return Ok(None) };
                Ok(Some(sent.map_err(|error| store.failed(error))))
            }
        }
    }
}

pub(crate) fn to_request(notice: signal::Notice) -> Result<Request, SignalError> {
    let entity = format!("{}/{}", notice.entity_type, notice.entity_id);
    let entity: EntityRef =
        entity.parse().map_err(|error| SignalError::Invalid(format!("no entity: {error}")))?;
    let payload = capability::payload(&notice.payload)?;
    Ok(Request { entity, name: notice.name, payload })
}

impl From<SignalError> for Error {
    fn from(error: SignalError) -> Self {
        let kind = match &error {
            SignalError::NotAllowed(_) => ErrorKind::NotAllowed,
            SignalError::UnknownTarget(_) => ErrorKind::UnknownTarget,
            SignalError::Refused(_) => ErrorKind::Refused,
            SignalError::TimedOut(_) => ErrorKind::TimedOut,
            SignalError::CutShort(_) => ErrorKind::CutShort,
            SignalError::Unavailable(_) => ErrorKind::Unavailable,
            SignalError::Invalid(_) => ErrorKind::InvalidRequest,
        };
        Self { kind, message: error.to_string() }
    }
}
