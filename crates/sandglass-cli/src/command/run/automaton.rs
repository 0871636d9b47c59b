//! The spec of an entity that exists to run one handler: it enters `Running`, and leaves it by the
//! action that the ending maps to.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use sandglass_insight::why::ONE_RUN;
use sandglass_model::id::NAME_MAX_BYTES;
use serde::Serialize;

/// The name of the guest's module in the spec.
pub(super) const MODULE: &str = "guest";

/// The actions that record how a handler ended.
pub(super) const ENDINGS: [&str; 5] = [
    "HandlerCompleted",
    "HandlerFailed",
    "HandlerTimedOut",
    "HandlerInterrupted",
    "HandlerCancelled",
];

/// How long the guest may take to compile. Long, because Ctrl-C can end the wait.
const SCHEDULE_TO_START: &str = "10m";

/// The state that each of [`ENDINGS`] leads to.
const ENDED: [&str; 5] = ["Completed", "Failed", "TimedOut", "Interrupted", "Cancelled"];

#[derive(Serialize)]
struct File<'a> {
    automaton: Automaton<'a>,
    action: Vec<Action<'a>>,
}

#[derive(Serialize)]
struct Automaton<'a> {
    name: &'a str,
    states: Vec<&'a str>,
    initial: &'a str,
    allow_indefinite_states: Vec<&'a str>,
}

#[derive(Serialize)]
struct Action<'a> {
    name: &'a str,
    from: Vec<&'a str>,
    to: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    triggers: Vec<Trigger<'a>>,
}

#[derive(Serialize)]
struct Trigger<'a> {
    name: String,
    kind: &'a str,
    module: &'a str,
    /// Always set, so that a `timeout_secs` in `config` has no meaning beyond the configuration.
    deadline: String,
    schedule_to_start_timeout: &'a str,
    on_success: &'a str,
    on_failure: &'a str,
    on_timeout: &'a str,
    on_interrupted: &'a str,
    on_cancelled: &'a str,
    config: BTreeMap<&'a str, &'a str>,
}

/// What a spec is written from.
pub(super) struct Sketch<'a> {
    pub(super) entity_type: &'a str,
    pub(super) guest: &'a Path,
    pub(super) action: &'a str,
    pub(super) deadline: Duration,
    pub(super) config: &'a [(String, String)],
}

/// The text of the spec for `sketch`. Deterministic, because an entity keeps its spec, which is
/// found by the digest of its text.
pub(super) fn source(sketch: &Sketch<'_>) -> String {
    let [on_success, on_failure, on_timeout, on_interrupted, on_cancelled] = ENDINGS;
    let rests: Vec<&str> = std::iter::once("Ready").chain(ENDED).collect();
    let states: Vec<&str> = rests.iter().copied().chain(["Running"]).collect();
    let trigger = Trigger {
        name: integration(sketch.guest),
        kind: "wasm",
        module: MODULE,
        deadline: format!("{}ms", sketch.deadline.as_millis()),
        schedule_to_start_timeout: SCHEDULE_TO_START,
        on_success,
        on_failure,
        on_timeout,
        on_interrupted,
        on_cancelled,
        config: sketch.config.iter().map(|(key, value)| (&**key, &**value)).collect(),
    };
    let run = Action { name: sketch.action, from: rests, to: "Running", triggers: vec![trigger] };
    let endings = ENDINGS.into_iter().zip(ENDED).map(|(name, to)| Action {
        name,
        from: vec!["Running"],
        to,
        triggers: Vec::new(),
    });
    let file = File {
        automaton: Automaton {
            name: sketch.entity_type,
            allow_indefinite_states: states.clone(),
            states,
            initial: "Ready",
        },
        action: std::iter::once(run).chain(endings).collect(),
    };
    let text = toml::to_string(&file).expect("strings, lists and tables are TOML");
    format!("{ONE_RUN}{text}")
}

/// The name of the integration: the file name of the guest without its extension, cut to the
/// length of a name.
pub(super) fn integration(guest: &Path) -> String {
    let stem = guest.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let mut name = String::new();
    for c in stem.chars().filter(|c| !c.is_control()) {
        if name.len() + c.len_utf8() > NAME_MAX_BYTES {
            break;
        }
        name.push(c);
    }
    if name.is_empty() { MODULE.to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_name_becomes_a_valid_name() {
        let check = |name: &str| sandglass_model::id::check_name("name", name, NAME_MAX_BYTES);
        for (stem, length) in [("⏳".repeat(60), 126), ("a".repeat(200), 128), ("\u{1b}".into(), 5)]
        {
            let name = integration(Path::new(&format!("{stem}.wasm")));
            assert_eq!((check(&name), name.len()), (Ok(()), length), "{name}");
        }
        assert_eq!(integration(Path::new("/")), MODULE);
    }
}
