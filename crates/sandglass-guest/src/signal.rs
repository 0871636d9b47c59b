//! Sends a signal to another entity: a notice that the entity records, and that changes no state. The
//! integration's manifest grants which signals it may send; by default none.
//!
//! If the soft deadline passes while a signal waits to be recorded, sending it returns an error; at the
//! deadline the handler is killed.

use std::fmt;
use std::pin::Pin;

use serde::Serialize;

use crate::glue::block_on;
use crate::{Failure, backend};

/// A signal. [`Notice::send`] sends it, and so does `.await`.
#[derive(Clone, Debug)]
#[must_use = "a signal does nothing until it is sent or awaited"]
pub struct Notice {
    pub(crate) entity_type: String,
    pub(crate) entity_id: String,
    pub(crate) name: String,
    /// The text of a JSON value, or why the value could not be written.
    pub(crate) payload: Result<String, String>,
}

impl Notice {
    /// A signal of this name, with the content `null`.
    pub fn new(
        entity_type: impl Into<String>,
        entity_id: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Self {
            entity_type: entity_type.into(),
            entity_id: entity_id.into(),
            name: name.into(),
            payload: Ok("null".to_owned()),
        }
    }

    /// Sets its content, which serializes to JSON of at most 64 KiB.
    pub fn payload(mut self, payload: impl Serialize) -> Self {
        self.payload = serde_json::to_string(&payload).map_err(|error| error.to_string());
        self
    }

    /// Sends the signal, and waits until the entity has recorded it. A signal that timed out or was cut
    /// short may have been recorded.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn send(self) -> Result<(), Error> {
        block_on(self.transmit())
    }

    async fn transmit(self) -> Result<(), Error> {
        match &self.payload {
            Ok(_) => backend::signal(&self).await,
            Err(why) => {
                let why = format!("the payload cannot be written as JSON: {why}");
                Err(Error::new(ErrorKind::InvalidRequest, why))
            }
        }
    }
}

/// Sends the signal as [`Notice::send`] does. With the feature `async`, other tasks of the handler go on
/// meanwhile.
impl IntoFuture for Notice {
    type Output = Result<(), Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.transmit())
    }
}

/// Why a signal failed. The handler continues. `?` converts it to a typed failure with the category
/// `signal` and the name of the kind as its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The signal is not valid.
    InvalidRequest,
    /// The integration was not granted this signal.
    NotAllowed,
    /// There is no such entity.
    UnknownTarget,
    /// The entity refused the signal.
    Refused,
    /// The signal was not recorded in time.
    TimedOut,
    /// The soft deadline passed while the signal waited. The handler should save its work.
    CutShort,
    /// Signals are temporarily unavailable, or this host does not support them.
    Unavailable,
}

/// Each kind with the code of its typed failure. For core modules, the host's message starts with
/// `signal_` and that code.
pub(crate) const KINDS: [(&str, ErrorKind); 7] = [
    ("invalid", ErrorKind::InvalidRequest),
    ("not_allowed", ErrorKind::NotAllowed),
    ("unknown_target", ErrorKind::UnknownTarget),
    ("refused", ErrorKind::Refused),
    ("timed_out", ErrorKind::TimedOut),
    ("cut_short", ErrorKind::CutShort),
    ("unavailable", ErrorKind::Unavailable),
];

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn to_failure(&self) -> Failure {
        let code = KINDS.iter().find(|(_, kind)| *kind == self.kind);
        let code = code.map_or("failed", |(name, _)| *name);
        let failure = Failure::typed("signal", code).because(self.message.clone());
        match self.kind {
            ErrorKind::TimedOut | ErrorKind::CutShort | ErrorKind::Unavailable => {
                failure.retryable()
            }
            ErrorKind::InvalidRequest | ErrorKind::NotAllowed | ErrorKind::UnknownTarget => {
                failure.permanent()
            }
            ErrorKind::Refused => failure,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
