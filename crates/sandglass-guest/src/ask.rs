//! Asking another entity to take an action. Which may be asked is granted by the
//! integration's manifest; none, by default.
//!
//! An ask that waits when the soft deadline passes is ended with an error; at the deadline
//! the run ends in it. What the asked entity starts has at most the time that this handler
//! has left.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::read_answer;
use crate::{Failure, HostError, backend};

/// An ask. It is sent by [`Request::send`].
#[derive(Clone, Debug)]
#[must_use = "an ask is sent by `send`"]
pub struct Request {
    pub(crate) entity_type: String,
    pub(crate) entity_id: String,
    pub(crate) action: String,
    /// The text of a JSON value, or why there is none.
    pub(crate) params: Result<String, String>,
    pub(crate) until_settled: bool,
}

impl Request {
    /// Asks an entity to take an action, and waits until it is taken.
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

    /// With the action's params: what serializes to an object, of at most 256 KiB.
    pub fn params(mut self, params: impl Serialize) -> Self {
        self.params = serde_json::to_string(&params).map_err(|error| error.to_string());
        self
    }

    /// Waits until no handler of the asked entity is in flight any more.
    pub fn until_settled(mut self) -> Self {
        self.until_settled = true;
        self
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn send(self) -> Result<Answer, Error> {
        match &self.params {
            Ok(params) if params.starts_with('{') => backend::ask(&self),
            Ok(_) => Err(Error::new(ErrorKind::InvalidRequest, "the params must be an object")),
            Err(why) => {
                let why = format!("the params can't be written as JSON: {why}");
                Err(Error::new(ErrorKind::InvalidRequest, why))
            }
        }
    }
}

/// Where the asked entity stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How many records it has.
    pub sequence: u64,
    /// The state that it is in.
    pub state: String,
    /// The text of an object.
    pub(crate) fields: String,
}

impl Answer {
    /// Its variables.
    ///
    /// # Errors
    /// They are not as `T` has them.
    pub fn fields<T: DeserializeOwned>(&self) -> Result<T, HostError> {
        read_answer("the fields of the asked entity", &self.fields)
    }
}

/// Why an ask failed. It concerns that one call, and the handler goes on. By `?` it becomes
/// a typed failure of the category `ask`, with the kind's name as its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    pub(crate) retry_after: Option<Duration>,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is not valid.
    InvalidRequest,
    /// The integration may not ask this.
    NotAllowed,
    /// There is no such entity or action.
    UnknownTarget,
    /// The asked entity waits for this one to settle.
    Cycle,
    /// Too many entities ask one another in a row.
    TooDeep,
    /// The entity doesn't take the action as things stand.
    Refused,
    /// There is no room for the handlers that it would start.
    Busy,
    /// No answer came in time.
    TimedOut,
    /// The soft deadline passed while it waited: time to save the work.
    CutShort,
    /// Asking doesn't work at present, or in this host at all.
    Unavailable,
}

/// Each kind with the code of its typed failure. A core module's host puts that code,
/// after `ask_`, at the head of its sentence.
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

    /// What failed.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// How long to wait before trying again, where that can help and is known. A core
    /// module isn't told.
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
