//! Texts about failures, for handlers and audits. They are derived from records and never parsed.

use std::fmt::Write as _;

use sandglass_model::signature::TIMED_OUT;
use sandglass_model::{Recovery, Repeated};

/// The kind of error of a deadline, as audits call it.
const TIMEOUT: &str = "timeout";

/// The text about the previous run that the next handler of a session gets; `None` if that had no
/// failure.
#[must_use]
pub fn preamble(recovery: &Recovery) -> Option<String> {
    let failure = recovery.failure.as_ref()?;
    let mut text = format!(
        "Prior failure mode: do NOT retry this shape: tool={} error_type={} repeated={}x",
        failure.signature.integration,
        error_type(failure),
        failure.count
    );
    if let Some(shape) = &failure.signature.shape {
        let _ = write!(text, ", shape={shape}");
    }
    if !failure.sample.is_empty() {
        let _ = write!(text, ", command={}", failure.sample);
    }
    Some(text)
}

/// The kind of error of a failure, as audits call it.
#[must_use]
fn error_type(failure: &Repeated) -> &str {
    error_type_of(&failure.signature.error)
}

/// As [`error_type_of`], by the kind that reports use.
#[must_use]
pub fn error_type_of(error: &str) -> &str {
    if error == TIMED_OUT { TIMEOUT } else { error }
}

/// Describes a handler that was killed at its deadline of this length, or a call that was cut at
/// its limit.
#[must_use]
pub fn timeout_text(budget_ms: u64) -> String {
    format!(
        "TIMEOUT after {}s (wall-clock kill, process killed)\nLook for what hangs in its environment \
         (a lock, a prompt, a network that doesn't answer) before it is tried again; the same again \
         takes as long again.",
        budget_ms.div_ceil(1000)
    )
}

#[cfg(test)]
mod tests {
    use sandglass_model::Signature;

    use super::*;

    #[test]
    fn a_repeated_timeout_is_described_by_what_its_occurrences_have_in_common() {
        let signature = Signature {
            entity_type: "Session".to_owned(),
            integration: "run_tools".to_owned(),
            dying_span: Some("host_http_call".to_owned()),
            error: "handler_deadline_exceeded".to_owned(),
            shape: None,
        };
        let sample = "cmd=make test".to_owned();
        let failure = Some(Repeated { signature, count: 5, sample, cost_ms: 1_500_000 });
        let recovery =
            Recovery { prior_run: 1, cause: "watchdog_wall_clock_exceeded".to_owned(), failure };
        assert_eq!(
            preamble(&recovery).as_deref(),
            Some(
                "Prior failure mode: do NOT retry this shape: tool=run_tools error_type=timeout \
                 repeated=5x, command=cmd=make test"
            )
        );
        assert_eq!(preamble(&Recovery { failure: None, ..recovery }), None);
    }
}
