//! Why a request failed.

use std::fmt;

use serde::Serialize;

use crate::Failure;

/// Why a request failed. It concerns that one call, and the handler goes on. By `?` it
/// becomes a typed failure of the category `http`, with the kind's name as its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// What failed. A core module is told of every error of the host in a sentence alone, so
/// there each of those is [`ErrorKind::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can't be sent as it is.
    InvalidRequest,
    /// The integration may not reach this host.
    NotAllowed,
    /// It took longer than a call may.
    TimedOut,
    /// The soft deadline passed while it waited: time to save the work.
    CutShort,
    /// The response is larger than it may be.
    TooLarge,
    /// It was redirected too often.
    TooManyRedirects,
    /// It failed on the way.
    Transport,
    /// It failed in a way that the guest isn't told.
    Failed,
    /// The response's status is no success; from [`Response::error_for_status`].
    ///
    /// [`Response::error_for_status`]: super::Response::error_for_status
    Status(u16),
    /// The response's body is not what was wanted; from [`Response::json`] and
    /// [`Response::text`].
    ///
    /// [`Response::json`]: super::Response::json
    /// [`Response::text`]: super::Response::text
    UnexpectedBody,
}

#[derive(Serialize)]
struct Details {
    status: u16,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What failed.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn to_failure(&self) -> Failure {
        let failure = Failure::typed("http", self.kind.name()).because(self.message.clone());
        match self.kind {
            ErrorKind::Status(status) => {
                let failure = failure.details(Details { status });
                // What RFC 9110 says of them: too early, too many, or the server's own fault.
                let passes = matches!(status, 408 | 425 | 429 | 500 | 502..=504);
                if passes { failure.retryable() } else { failure }
            }
            ErrorKind::TimedOut | ErrorKind::CutShort | ErrorKind::Transport => failure.retryable(),
            ErrorKind::InvalidRequest | ErrorKind::NotAllowed => failure.permanent(),
            ErrorKind::TooLarge
            | ErrorKind::TooManyRedirects
            | ErrorKind::Failed
            | ErrorKind::UnexpectedBody => failure,
        }
    }
}

impl ErrorKind {
    /// The code of its typed failure.
    fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::NotAllowed => "not_allowed",
            Self::TimedOut => "timed_out",
            Self::CutShort => "cut_short",
            Self::TooLarge => "too_large",
            Self::TooManyRedirects => "too_many_redirects",
            Self::Transport => "transport",
            Self::Failed => "failed",
            Self::Status(_) => "status",
            Self::UnexpectedBody => "unexpected_body",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
