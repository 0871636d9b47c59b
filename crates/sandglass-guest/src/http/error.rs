//! Why a request failed.

use std::fmt;

use serde::Serialize;

use crate::Failure;

/// Why a request failed. The handler continues. `?` converts it to a typed failure with the category
/// `http` and the name of the kind as its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`]. The ABI of core modules reports errors of the host as text only, so there they
/// are all [`ErrorKind::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is not valid.
    InvalidRequest,
    /// The integration was not granted this host.
    NotAllowed,
    /// The request took longer than a call may.
    TimedOut,
    /// The soft deadline passed while the request waited. The handler should save its work.
    CutShort,
    /// The response is larger than allowed.
    TooLarge,
    /// There were too many redirects.
    TooManyRedirects,
    /// The connection failed.
    Transport,
    /// The request failed in a way that the ABI does not classify.
    Failed,
    /// The status of the response is not a success; from [`Response::error_for_status`].
    ///
    /// [`Response::error_for_status`]: super::Response::error_for_status
    Status(u16),
    /// The body of the response does not have the expected form; from [`Response::json`] and
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

    /// The error of a request that took longer than `limit_ms` milliseconds. Components receive only
    /// this number; the text is the host's own, which core modules receive.
    #[cfg(any(
        test,
        all(
            target_family = "wasm",
            any(target_env = "p2", feature = "component", feature = "async")
        )
    ))]
    pub(crate) fn timed_out(limit_ms: u64) -> Self {
        let seconds = limit_ms.div_ceil(1_000);
        let text = format!(
            "TIMEOUT after {seconds}s (wall-clock kill, process killed)\nThe limit was {limit_ms} ms. \
             Diagnose the environment instead of retrying the same thing: look for what hangs (a lock, \
             a prompt, a network that does not answer). The same call would take as long again."
        );
        Self::new(ErrorKind::TimedOut, text)
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn to_failure(&self) -> Failure {
        let failure = Failure::typed("http", self.kind.name()).because(self.message.clone());
        match self.kind {
            ErrorKind::Status(status) => {
                let failure = failure.details(Details { status });
                // Temporary by RFC 9110, RFC 8470 (425) and RFC 6585 (429).
                let is_temporary = matches!(status, 408 | 425 | 429 | 500 | 502..=504);
                if is_temporary { failure.retryable() } else { failure }
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
    /// The code of the typed failure.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `timeout_text` of `sandglass-model` has the same text. The fixture
    /// `sdk_reports_a_timeout` compares core modules and components.
    #[test]
    fn a_timeout_states_the_limit_and_what_to_do() {
        let error = Error::timed_out(1_001);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(
            error.to_string(),
            "TIMEOUT after 2s (wall-clock kill, process killed)\n\
             The limit was 1001 ms. Diagnose the environment instead of retrying the same thing: look \
             for what hangs (a lock, a prompt, a network that does not answer). The same call would \
             take as long again."
        );
    }
}
