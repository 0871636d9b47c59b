//! Texts about failures, for handlers and audits. They are derived from records and never parsed.

use std::borrow::Cow;
use std::fmt::Write as _;

use sandglass_model::signature::{CALL_TIMED_OUT, TIMED_OUT};
use sandglass_model::{Recovery, Repeated};

/// The kind of error of a deadline, as audits call it.
const TIMEOUT: &str = "timeout";

/// What precedes the sample in a preamble.
const COMMAND: &str = "command=";

/// The text about the previous run that the next handler of a session gets; `None` if that had no
/// failure.
#[must_use]
pub fn preamble(recovery: &Recovery) -> Option<String> {
    let failure = recovery.failure.as_ref()?;
    let mut text = format!(
        "Prior failure mode \u{2014} do NOT retry this shape: tool={} error_type={} repeated={}\u{d7}",
        failure.signature.integration,
        error_type(failure),
        failure.count
    );
    if !failure.sample.is_empty() {
        let sample = with_command_first(&failure.sample);
        let _ = write!(text, ", {COMMAND}{}", sample.strip_prefix(COMMAND).unwrap_or(&sample));
    }
    Some(text)
}

/// `sample`, a list of `NAME=VALUE`, with the parameter `command` first, if there is one. The order of
/// the sample itself is part of records.
fn with_command_first(sample: &str) -> Cow<'_, str> {
    let Some((before, command)) = sample.split_once(&format!(", {COMMAND}")) else {
        return sample.into();
    };
    let is_name = |text: &str| {
        let name = text.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.chars().all(|one| one.is_alphanumeric() || "_-.".contains(one))
    };
    let next =
        command.match_indices(", ").find(|(at, comma)| is_name(&command[at + comma.len()..]));
    let (command, after) = command.split_at(next.map_or(command.len(), |(at, _)| at));
    format!("{COMMAND}{command}, {before}{after}").into()
}

/// The kind of error of a failure, as audits call it.
#[must_use]
fn error_type(failure: &Repeated) -> &str {
    error_type_of(&failure.signature.error)
}

/// As [`error_type_of`], by the kind that reports use.
#[must_use]
pub fn error_type_of(error: &str) -> &str {
    if error == TIMED_OUT || error == CALL_TIMED_OUT { TIMEOUT } else { error }
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
                "Prior failure mode \u{2014} do NOT retry this shape: tool=run_tools error_type=timeout \
                 repeated=5\u{d7}, command=cmd=make test"
            )
        );
        let with_sample = |sample: &str| {
            let failure = recovery
                .failure
                .clone()
                .map(|failure| Repeated { sample: sample.to_owned(), ..failure });
            let text = preamble(&Recovery { failure, ..recovery.clone() }).expect("a failure");
            text.split_once('\u{d7}').expect("a count").1.to_owned()
        };
        assert_eq!(with_sample("command=make test, n=2"), ", command=make test, n=2");
        assert_eq!(with_sample("n=2"), ", command=n=2");
        assert_eq!(with_sample("n=2, command=make test"), ", command=make test, n=2");
        assert_eq!(with_sample("a=1, command=x, y = z, b=2"), ", command=x, y = z, a=1, b=2");
        assert_eq!(with_sample(""), "");
        assert_eq!(preamble(&Recovery { failure: None, ..recovery }), None);
    }
}
