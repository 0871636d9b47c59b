//! Asks another entity to take an action. The integration's manifest grants which entities it may
//! ask; by default none.
//!
//! If the soft deadline passes while an ask waits, the ask returns an error; at the deadline the
//! handler is killed. Handlers that the asked entity starts have at most the time that this handler
//! has left.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::read_returned;
use crate::glue::block_on;
use crate::{Failure, HostError, backend};

/// An ask. [`Request::send`] sends it, and so does `.await`.
#[derive(Clone, Debug)]
#[must_use = "an ask does nothing until it is sent or awaited"]
pub struct Request {
    pub(crate) entity_type: String,
    pub(crate) entity_id: String,
    pub(crate) action: String,
    /// The text of a JSON value, or why the value could not be written.
    pub(crate) params: Result<String, String>,
    pub(crate) until_settled: bool,
}

impl Request {
    /// An ask for an action. It waits until the entity has taken the action.
    pub fn new(
        entity_type: impl Into<String>,
        entity_id: impl Into<String>,
        action: impl Into<String>,
    ) -> Self {
        Self {
            entity_type: entity_type.into(),
            entity_id: entity_id.into(),
            action: action.into(),
            params: Ok("{}".to_owned()),
            until_settled: false,
        }
    }

    /// Sets the params of the action. They serialize to an object of at most 256 KiB.
    pub fn params(mut self, params: impl Serialize) -> Self {
        self.params = serde_json::to_string(&params).map_err(|error| error.to_string());
        self
    }

    /// Waits until no handler of the asked entity is in flight.
    pub fn until_settled(mut self) -> Self {
        self.until_settled = true;
        self
    }

    /// Sends the ask, and waits for the answer.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn send(self) -> Result<Answer, Error> {
        block_on(self.transmit())
    }

    async fn transmit(self) -> Result<Answer, Error> {
        match &self.params {
            Ok(params) if params.starts_with('{') => backend::ask(&self).await,
            Ok(_) => Err(Error::new(ErrorKind::InvalidRequest, "the params must be an object")),
            Err(why) => {
                let why = format!("the params cannot be written as JSON: {why}");
                Err(Error::new(ErrorKind::InvalidRequest, why))
            }
        }
    }
}

/// Sends the ask as [`Request::send`] does. With the feature `async`, other tasks of the handler go on
/// meanwhile.
impl IntoFuture for Request {
    type Output = Result<Answer, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.transmit())
    }
}

/// The asked entity after the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of its records.
    pub sequence: u64,
    /// Its state.
    pub state: String,
    /// The text of an object.
    pub(crate) fields: String,
}

impl Answer {
    /// Reads its variables as a `T`.
    ///
    /// # Errors
    /// Errors if they are not a valid `T`.
    pub fn fields<T: DeserializeOwned>(&self) -> Result<T, HostError> {
        read_returned("the fields of the asked entity", &self.fields)
    }
}

/// Why an ask failed. The handler continues. `?` converts it to a typed failure with the category
/// `ask` and the name of the kind as its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    pub(crate) retry_after: Option<Duration>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is not valid.
    InvalidRequest,
    /// The integration was not granted this ask.
    NotAllowed,
    /// There is no such entity or action.
    UnknownTarget,
    /// The asked entity waits for this one to settle.
    Cycle,
    /// The chain of entities that ask each other is too long.
    TooDeep,
    /// The entity does not take the action in its current state.
    Refused,
    /// There is no capacity for the handlers that the action would start.
    Busy,
    /// There was no answer in time.
    TimedOut,
    /// The soft deadline passed while the ask waited. The handler should save its work.
    CutShort,
    /// Asks are temporarily unavailable, or this host does not support them.
    Unavailable,
}

/// Each kind with the code of its typed failure. For core modules, the host's message starts with
/// `ask_` and that code.
pub(crate) const KINDS: [(&str, ErrorKind); 10] = [
    ("invalid", ErrorKind::InvalidRequest),
    ("not_allowed", ErrorKind::NotAllowed),
    ("unknown_target", ErrorKind::UnknownTarget),
    ("cycle", ErrorKind::Cycle),
    ("too_deep", ErrorKind::TooDeep),
    ("refused", ErrorKind::Refused),
    ("busy", ErrorKind::Busy),
    ("timed_out", ErrorKind::TimedOut),
    ("cut_short", ErrorKind::CutShort),
    ("unavailable", ErrorKind::Unavailable),
];

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// How long to wait before a retry; `None` if a retry cannot help, if the time is unknown, and
    /// always in core modules.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    pub(crate) fn to_failure(&self) -> Failure {
        let code = KINDS.iter().find(|(_, kind)| *kind == self.kind);
        let code = code.map_or("failed", |(name, _)| *name);
        let failure = Failure::typed("ask", code).because(self.message.clone());
        match self.kind {
            ErrorKind::Busy
            | ErrorKind::TimedOut
            | ErrorKind::CutShort
            | ErrorKind::Unavailable => failure.retryable(),
            ErrorKind::InvalidRequest
            | ErrorKind::NotAllowed
            | ErrorKind::UnknownTarget
            | ErrorKind::Cycle
            | ErrorKind::TooDeep => failure.permanent(),
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
