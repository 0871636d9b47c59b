//! What one handler run did: its host calls and outgoing requests, one by one.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::named::named;

/// Most host calls of a story: the first 32 and the last 32. The first show what the run began with,
/// and the last what it died in. Those between are usually repetitions, which the totals by function
/// show.
pub const STORY_CALLS_MAX: usize = 64;

/// Most requests of a story: two batches at once. Requests in flight take precedence over completed
/// ones.
pub const STORY_REQUESTS_MAX: usize = 16;

/// Longest reason for a failed host call or request, in bytes: a sentence. A story with nothing but
/// failures then takes 20 KiB.
pub const STORY_ERROR_MAX_BYTES: u32 = 256;

/// What a handler run did, in order, within bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// Its host calls: the first, and the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// How many are left out, after the first half of `calls`.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub calls_omitted: u64,
    /// Its outgoing requests: the last ones, and all that were in flight at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<OutgoingRequest>,
    /// How many earlier requests are left out.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub requests_omitted: u64,
}

impl Story {
    /// The host call whose time limit can be why the handler failed: the last that did not succeed, if
    /// its time limit ended it, and no later call of the same function succeeded.
    #[must_use]
    pub fn last_timeout(&self) -> Option<&Call> {
        let place = self.calls.iter().rposition(|call| call.outcome != CallOutcome::Ok)?;
        let (failed, later) = self.calls[place..].split_first()?;
        let is_repaired = later.iter().any(|call| call.name == failed.name);
        (failed.outcome == CallOutcome::TimedOut && !is_repaired).then_some(failed)
    }
}

/// One host call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The function as the guest imports it, or what the call was about, such as an ask.
    pub name: Cow<'static, str>,
    /// From the start of the budget until it was entered, in microseconds.
    pub started_us: u64,
    /// Time in the call, in microseconds.
    pub duration_us: u64,
    /// How it ended.
    pub outcome: CallOutcome,
    /// Why it failed, whether or not the guest asked; `None` if it did not fail, or if its function
    /// states no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

named! {
    /// How a host call ended.
    CallOutcome {
        /// It returned a result.
        Ok = "ok",
        /// It returned an error.
        Failed = "failed",
        /// Its own time limit ended it, and the guest got an error.
        TimedOut = "timed_out",
        /// It was cut short by the soft deadline or a stop request, and the guest got an error.
        CutShort = "cut_short",
        /// The run ended inside it.
        Unfinished = "unfinished",
    }
}

/// An HTTP request of a run, or one that the host sent for it to follow a redirect. It has no query,
/// headers or body, and contains none of the secrets that the run was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutgoingRequest {
    /// The method; `_OTHER` if it is not a well-known one.
    pub method: String,
    /// The host, with its port unless that is the scheme's default.
    pub host: String,
    /// The path, shortened for people.
    pub path: String,
    /// From the start of the budget until it was sent, in microseconds.
    pub started_us: u64,
    /// Until its response was complete, or its head if the guest reads the body itself, or until the
    /// run gave it up, in microseconds.
    pub duration_us: u64,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// The status of its response, even if only the head arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why it failed or was refused, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

named! {
    /// How a request ended.
    RequestOutcome {
        /// The server responded; `status` has the code.
        Answered = "answered",
        /// There is no response, or not all of it, although the request was sent or partly sent: it may
        /// have taken effect.
        Failed = "failed",
        /// It was never sent: it is invalid, or the integration may not reach its host.
        Refused = "refused",
        /// The run stopped waiting for its response and went on: it may have taken effect.
        GivenUp = "given_up",
        /// It was in flight when the run ended: it may have taken effect.
        Unfinished = "unfinished",
    }
}

impl OutgoingRequest {
    /// Whether its method is idempotent (RFC 9110, 9.2.2), so that it is safe to send again.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
    }
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
            error: None,
        };
        assert!(request("PUT").is_idempotent());
        assert!(!request("POST").is_idempotent());
        assert!(!request("PATCH").is_idempotent());
    }
}
