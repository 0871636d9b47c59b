//! The place of a handler run in a distributed trace: W3C Trace Context, as carried in
//! `traceparent` headers and in the journal.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::clock::WallTime;
use crate::entropy::{Entropy, NoEntropy, SystemEntropy};
use crate::id::{DispatchId, Incarnation, Sequence, stored_as_text, unhex};
pub use crate::id::{SpanId, TraceId};

/// A span and the trace that it belongs to, written as a W3C `traceparent`
/// (version 00, <https://www.w3.org/TR/trace-context/#traceparent-header>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: TraceId,
    /// The span within it.
    pub span_id: SpanId,
    /// Whether the caller wants the trace to be kept.
    pub sampled: bool,
}

/// The text is not a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a W3C traceparent: expected 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, ids not zero"
)]
pub struct InvalidTraceparent;

impl TraceContext {
    /// Creates the root of a new, sampled trace from 24 random bytes.
    #[must_use]
    pub fn root(random: [u8; 24]) -> Self {
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&random[..16]);
        span.copy_from_slice(&random[16..]);
        let (trace_id, span_id) = (nonzero(trace), nonzero(span));
        Self {
            trace_id: TraceId::from_bytes(trace_id),
            span_id: SpanId::from_bytes(span_id),
            sampled: true,
        }
    }

    /// Draws the root of a new trace from the randomness of the operating system.
    ///
    /// # Errors
    /// No randomness is available.
    pub fn random() -> Result<Self, NoEntropy> {
        Self::drawn(&SystemEntropy)
    }

    /// Draws the root of a new trace from `entropy`.
    ///
    /// # Errors
    /// No randomness is available.
    pub fn drawn(entropy: &dyn Entropy) -> Result<Self, NoEntropy> {
        let mut bytes = [0; 24];
        entropy.fill(&mut bytes)?;
        Ok(Self::root(bytes))
    }

    /// Derives the span of attempt `attempt` of dispatch `dispatch`, in the same trace. It is not
    /// random, so that the journal and the collector name the same span, even after a restart.
    #[must_use]
    pub fn of_dispatch(self, dispatch: DispatchId, attempt: u32) -> Self {
        let mut span = [0; 8];
        span.copy_from_slice(&dispatch.as_bytes()[..8]);
        for (byte, change) in span[4..].iter_mut().zip(attempt.to_be_bytes()) {
            *byte ^= change;
        }
        Self { span_id: SpanId::from_bytes(nonzero(span)), ..self }
    }

    /// Derives the span of the transition to `sequence` of an entity's `incarnation`, in the same
    /// trace. It differs from the spans of all dispatches.
    #[must_use]
    pub fn of_transition(self, incarnation: Incarnation, sequence: Sequence) -> Self {
        // The span does not contain the time of the id.
        let any_time = WallTime::from_millis(0);
        self.of_dispatch(DispatchId::derive(incarnation, sequence, u32::MAX, any_time), 0)
    }
}

/// The bytes of an id, of which W3C Trace Context allows no zero.
fn nonzero<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    if bytes == [0; N] {
        bytes[N - 1] = 1;
    }
    bytes
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTraceparent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceparent> {
        let parts: Vec<&str> = text.splitn(5, '-').collect();
        let [version, trace, span, flags] = parts[..] else { return Err(InvalidTraceparent) };
        if version != "00" || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(InvalidTraceparent);
        }
        let trace_id: TraceId = trace.parse().map_err(|_| InvalidTraceparent)?;
        let span_id: SpanId = span.parse().map_err(|_| InvalidTraceparent)?;
        let [flags] = unhex(flags).ok_or(InvalidTraceparent)?;
        if trace_id.as_bytes() == &[0; 16] || span_id.as_bytes() == &[0; 8] {
            return Err(InvalidTraceparent);
        }
        Ok(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

stored_as_text!(TraceContext);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_traceparent() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: TraceContext = text.parse().expect("the example of the standard");
        assert!(context.sampled);
        assert_eq!(context.to_string(), text);
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
        ] {
            assert_eq!(bad.parse::<TraceContext>(), Err(InvalidTraceparent), "{bad:?}");
        }
    }

    #[test]
    fn each_attempt_has_a_span_of_its_own() {
        let root = TraceContext::root([3; 24]);
        let dispatch = DispatchId::from_bytes([9; 16]);
        let (first, second) = (root.of_dispatch(dispatch, 1), root.of_dispatch(dispatch, 2));
        assert_eq!(first.trace_id, second.trace_id);
        assert_ne!(first.span_id, second.span_id);
    }
}
