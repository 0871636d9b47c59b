//! The failures of a session by signature: which are repeated.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::signature::{CALL_FAILED, CALL_TIMED_OUT};
use sandglass_model::{
    Calls, Decision, Dispatched, Ended, EntityRef, Limit, LimitBreached, Outcome, OutcomeKind,
    Overrun, Repeated, Signature,
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

    /// Counts a host call of a running handler that reached its time limit.
    pub fn count_timed_out_call(
        &mut self,
        entity: &EntityRef,
        dispatched: &Dispatched,
        breach: &LimitBreached,
    ) {
        let Some((_, host_call)) = breach.call_of_running() else { return };
        let signature = Signature::of_calls(entity, dispatched, host_call, CALL_TIMED_OUT);
        let (count, sample) = (breach.times, sample(dispatched));
        let cost_ms = breach.observed.saturating_mul(count);
        self.add(Repeated { signature, count, sample, cost_ms });
    }

    /// Counts the host calls of a handler that failed or timed out, however the handler ended.
    /// Those that are `recorded` were counted when they happened.
    pub fn count_calls(
        &mut self,
        entity: &EntityRef,
        dispatched: &Dispatched,
        ended: &Ended,
        recorded: &RecordedCalls,
    ) {
        for (signature, calls) in failed_calls(entity, dispatched, ended, recorded) {
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

/// The host calls of one attempt that reached their time limit and were recorded while its handler
/// was running, by host function. The end of the handler neither records nor counts them again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecordedCalls(BTreeMap<String, Calls>);

impl RecordedCalls {
    /// Adds the call that `breach` records.
    pub fn add(&mut self, breach: &LimitBreached) {
        let Some((_, host_call)) = breach.call_of_running() else { return };
        let calls = self.0.entry(host_call.to_owned()).or_default();
        let took_us = breach.observed.saturating_mul(1_000).saturating_mul(breach.times);
        calls.count = calls.count.saturating_add(breach.times);
        calls.total_us = calls.total_us.saturating_add(took_us);
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |count, calls| count.saturating_add(calls.count))
    }

    /// What an end adds to `overrun`; `None` if all its breaches are recorded.
    #[must_use]
    pub fn unrecorded<'a>(&self, overrun: &'a Overrun) -> Option<Cow<'a, Overrun>> {
        let host_call =
            overrun.host_call.as_deref().filter(|_| overrun.limit == Limit::HostCallTimeout);
        let Some(calls) = host_call.and_then(|host_call| self.0.get(host_call)) else {
            return Some(Cow::Borrowed(overrun));
        };
        let times = overrun.times.saturating_sub(calls.count);
        (times > 0).then(|| Cow::Owned(Overrun { times, ..overrun.clone() }))
    }

    /// Those of `timed_out`, calls of `host_call`, that are not recorded.
    fn others(&self, host_call: &str, timed_out: Calls) -> Calls {
        let Some(recorded) = self.0.get(host_call) else { return timed_out };
        Calls {
            count: timed_out.count.saturating_sub(recorded.count),
            total_us: timed_out.total_us.saturating_sub(recorded.total_us),
        }
    }
}

/// Whether a handler failed because of a host call that reached its time limit
/// ([`Story::last_timeout`](sandglass_model::story::Story::last_timeout)). The call counts as a failure
/// then, and the handler does not count as another one.
#[must_use]
pub fn failed_by_timed_out_call(ended: &Ended) -> bool {
    let last = ended.account.as_ref().and_then(|account| account.story.last_timeout());
    matches!(ended.outcome, Outcome::Failed(_) | Outcome::Trapped(_)) && last.is_some()
}

/// The host calls of a handler that failed or timed out, by signature, without those that are
/// `recorded`: of at most [`SHAPES_MAX`] functions, because a session remembers no more.
pub fn failed_calls<'a>(
    entity: &'a EntityRef,
    dispatched: &'a Dispatched,
    ended: &'a Ended,
    recorded: &'a RecordedCalls,
) -> impl Iterator<Item = (Signature, Calls)> + 'a {
    let functions = ended.host_calls.by_function.iter();
    let failed = functions.flat_map(move |function| {
        let timed_out = recorded.others(&function.name, function.timed_out);
        let kinds = [(CALL_TIMED_OUT, timed_out), (CALL_FAILED, function.failed)];
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
