//! The failures of a session by signature: which are repeated.

use std::sync::Arc;

use sandglass_model::signature::{CALL_FAILED, CALL_TIMED_OUT};
use sandglass_model::{
    Calls, Decision, Dispatched, Ended, EntityRef, OutcomeKind, Repeated, Signature,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::spec::refusable::{are_of_ending, is_of_ending};

/// Signatures that a session remembers: a loop has few. Beyond them, the rarest is forgotten.
pub const SHAPES_MAX: usize = 16;
/// Longest sample of a handler's input, in characters, by which people recognize it.
pub const SAMPLE_MAX_CHARS: usize = 200;

/// Replaces a value that may be secret.
const HIDDEN: &str = "[REDACTED]";
/// Parts of the names of parameters whose values may be secret.
const SECRET_NAMES: [&str; 9] = [
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "credential",
    "cookie",
    "api_key",
    "private",
];
/// How words begin that are secrets by their form: keys of well-known services.
const SECRET_STARTS: [&str; 7] = ["sk-", "ghp_", "github_pat_", "xox", "AKIA", "eyJ", "-----BEGIN"];
/// The words before a secret in an HTTP header.
const SCHEMES: [&str; 2] = ["bearer", "basic"];

/// The failures of a session, the most frequent first; shared, because entities are copied
/// with each decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Failures(Arc<Vec<Repeated>>);

impl Failures {
    /// Counts the failure with which a handler ended. Ends that are no failure of the handler
    /// itself do not count: a stop of the handler or its run, and the loss of its host.
    pub fn count(&mut self, entity: &EntityRef, dispatched: &Dispatched, ended: &Ended) {
        let kind = ended.outcome.kind();
        let was_stopped = matches!(ended.decision, Decision::Held | Decision::Dropped);
        if was_stopped || matches!(kind, OutcomeKind::Cancelled | OutcomeKind::Interrupted) {
            return;
        }
        let Some(signature) = Signature::of(entity, dispatched, ended) else { return };
        let (sample, cost_ms) = (sample(dispatched), ended.deadline.elapsed_ms);
        self.add(Repeated { signature, count: 1, sample, cost_ms });
    }

    /// Counts the host calls of a handler that failed or timed out, however the handler ended.
    pub fn count_calls(&mut self, entity: &EntityRef, dispatched: &Dispatched, ended: &Ended) {
        for (signature, calls) in failed_calls(entity, dispatched, ended) {
            let sample = sample(dispatched);
            let cost_ms = calls.total_us.div_ceil(1_000);
            self.add(Repeated { signature, count: calls.count, sample, cost_ms });
        }
    }

    fn add(&mut self, failed: Repeated) {
        let all = Arc::make_mut(&mut self.0);
        match all.iter_mut().find(|known| known.signature == failed.signature) {
            Some(known) => {
                known.count = known.count.saturating_add(failed.count);
                known.cost_ms = known.cost_ms.saturating_add(failed.cost_ms);
                if !failed.sample.is_empty() {
                    known.sample = failed.sample;
                }
            }
            None => {
                if all.len() >= SHAPES_MAX {
                    all.pop();
                }
                all.push(failed);
            }
        }
        // Stable, so that of two with equal counts the older one is first.
        all.sort_by_key(|known| std::cmp::Reverse(known.count));
    }

    /// The most frequent failure; `None` if there is none.
    #[must_use]
    pub fn top(&self) -> Option<&Repeated> {
        self.0.first()
    }

    /// All failures, the most frequent first.
    #[must_use]
    pub fn all(&self) -> &[Repeated] {
        &self.0
    }
}

/// The host calls of a handler that failed or timed out, by signature: of at most [`SHAPES_MAX`]
/// functions, because a session remembers no more.
pub fn failed_calls<'a>(
    entity: &'a EntityRef,
    dispatched: &'a Dispatched,
    ended: &'a Ended,
) -> impl Iterator<Item = (Signature, Calls)> + 'a {
    let functions = ended.host_calls.by_function.iter();
    let failed = functions.flat_map(move |function| {
        let kinds = [(CALL_TIMED_OUT, function.timed_out), (CALL_FAILED, function.failed)];
        kinds.into_iter().filter(|(_, calls)| calls.count > 0).map(move |(error, calls)| {
            (Signature::of_calls(entity, dispatched, &function.name, error), calls)
        })
    });
    failed.take(SHAPES_MAX)
}

/// A handler's input as a sample: without values that are secret by name or form, and cut.
/// Parameters of a previous handler's ending are left out, because they say nothing about this
/// one's task.
pub(super) fn sample(dispatched: &Dispatched) -> String {
    let mut text = String::new();
    let follows_a_failure = are_of_ending(&dispatched.params);
    let own =
        dispatched.params.iter().filter(|(name, _)| !(follows_a_failure && is_of_ending(name)));
    for (name, value) in own {
        if text.len() > SAMPLE_MAX_CHARS * 4 {
            break;
        }
        let shown = if is_secret_name(name) { HIDDEN.to_owned() } else { shown(value) };
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&format!("{name}={shown}"));
    }
    text.chars().take(SAMPLE_MAX_CHARS).collect()
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => without_secrets(text),
        Value::Array(_) => "[...]".to_owned(),
        Value::Object(_) => "{...}".to_owned(),
        other => other.to_string(),
    }
}

/// The start of a text, without words that look like keys.
fn without_secrets(text: &str) -> String {
    let head: String = text.chars().take(SAMPLE_MAX_CHARS).collect();
    let mut before = "";
    let words = head.split(' ').map(|word| {
        let is_hidden = follows_a_scheme(std::mem::replace(&mut before, word)) || is_secret(word);
        if is_hidden { HIDDEN } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn follows_a_scheme(before: &str) -> bool {
    SCHEMES.iter().any(|scheme| before.to_ascii_lowercase().ends_with(scheme))
}

/// Whether a word is a secret by its form, or by the name before it.
fn is_secret(word: &str) -> bool {
    let (name, value) = word.split_once(['=', ':']).unwrap_or(("", word));
    let value = value.trim_start_matches(['"', '\'']);
    is_secret_name(name) || SECRET_STARTS.iter().any(|start| value.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_by_name_and_by_form() {
        for (text, expected) in [
            ("make test", "make test"),
            ("curl -H Authorization: Bearer abc.def", "curl -H [REDACTED] Bearer [REDACTED]"),
            ("API_KEY=abc make", "[REDACTED] make"),
            ("push ghp_0123 now", "push [REDACTED] now"),
            ("x=\"sk-live-1\"", "[REDACTED]"),
            ("basics of it", "basics of it"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
        assert!(is_secret_name("GitHub-Token") && !is_secret_name("tool"));
        assert_eq!(without_secrets(&"é".repeat(1_000)).chars().count(), SAMPLE_MAX_CHARS);
    }
}
