//! The story of a run: its host calls one by one, and what it asked of others.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Most host calls that a story tells one by one: the first half of them and the last. A
/// run begins with what it was given and ends with what it died in; between them are
/// repetitions, which the sums by function tell.
pub const STORY_CALLS_MAX: usize = 64;

/// Most requests that a story tells: two batches at once. Those that are under way come
/// before those that have ended.
pub const STORY_REQUESTS_MAX: usize = 16;

/// What a run did, in its order, within bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// Its host calls: the first, and the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// How many are left out, behind the first half of `calls`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub calls_omitted: u64,
    /// The requests that it sent to others: the last, and all that were under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<OutgoingRequest>,
    /// How many earlier ones are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requests_omitted: u64,
}

/// One host call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The function, as the guest imports it, or what the call turned out to be about.
    pub name: Cow<'static, str>,
    /// From the begin of the budget until it was entered, in microseconds.
    pub started_us: u64,
    /// Time in it, in microseconds.
    pub duration_us: u64,
    /// What came of it.
    pub outcome: CallOutcome,
}

/// What came of a host call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// It answered.
    Ok,
    /// It answered an error.
    Failed,
    /// It was ended by its own time limit, and the guest got an error.
    TimedOut,
    /// It was ended because the soft deadline passed, and the guest got an error.
    CutShort,
    /// The run ended in it.
    Unfinished,
}

impl CallOutcome {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::CutShort => "cut_short",
            Self::Unfinished => "unfinished",
        }
    }
}

/// A request that a run sent to somebody, or that the host sent for it where it was
/// redirected. It has neither query, headers nor body, and
/// secrets that the run was given are not in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutgoingRequest {
    /// The method; `_OTHER` where it isn't a well-known one.
    pub method: String,
    /// The host, with its port where that isn't the scheme's.
    pub host: String,
    /// The path, cut to a length that people read.
    pub path: String,
    /// From the begin of the budget until it was sent, in microseconds.
    pub started_us: u64,
    /// Until its answer came, or its head where the guest reads the body itself, or nobody
    /// waited any more, in microseconds.
    pub duration_us: u64,
    /// What came of it.
    pub outcome: RequestOutcome,
    /// The status of its answer, also where no more than the head of that came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// It was answered, with the status beside it.
    Answered,
    /// It was sent, or it was tried to, and there is no answer, or not all of it: it may have
    /// been carried out.
    Failed,
    /// It was never sent: it can't be, or its host isn't one that the integration may reach.
    Refused,
    /// Nobody waited for its answer any more, and the run went on: it may have been carried
    /// out.
    GivenUp,
    /// It was under way when the run ended: it may have been carried out.
    Unfinished,
}

impl RequestOutcome {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::GivenUp => "given_up",
            Self::Unfinished => "unfinished",
        }
    }
}

impl OutgoingRequest {
    /// Whether its method is one that may be sent again without another effect (RFC 9110,
    /// 9.2.2).
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_idempotent_by_their_method() {
        let request = |method: &str| OutgoingRequest {
            method: method.to_owned(),
            host: "api.example".to_owned(),
            path: "/".to_owned(),
            started_us: 0,
            duration_us: 0,
            outcome: RequestOutcome::Unfinished,
            status: None,
        };
        assert!(request("PUT").is_idempotent());
        assert!(!request("POST").is_idempotent());
        assert!(!request("PATCH").is_idempotent());
    }
}
