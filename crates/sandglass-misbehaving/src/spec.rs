//! The specs of the handlers' entities: each entity takes one action that starts its handler, and
//! then the action that the handler's outcome maps to.

use std::fmt::Write as _;

use sandglass_liveness::Spec;
use sandglass_model::OutcomeKind;

use crate::member::{Handler, PEER_URL};

/// The action that starts a handler.
pub(crate) const BEGIN: &str = "Begin";

const FINISH: &str = "Finish";
const FAIL: &str = "Fail";
const TIMED_OUT: &str = "HandlerTimedOut";
const STOP: &str = "Stop";

/// Each action that an outcome can map to, and the state that it leads to.
const ENDINGS: [(&str, &str); 4] =
    [(FINISH, "Done"), (FAIL, "Failed"), (TIMED_OUT, "TimedOut"), (STOP, "Stopped")];

/// The action that an outcome maps to, as the spec declares it.
pub(crate) const fn action(outcome: OutcomeKind) -> &'static str {
    match outcome {
        OutcomeKind::Completed => FINISH,
        OutcomeKind::Failed | OutcomeKind::Trapped | OutcomeKind::Limit | OutcomeKind::Rejected => {
            FAIL
        }
        OutcomeKind::TimedOut | OutcomeKind::Interrupted => TIMED_OUT,
        OutcomeKind::Cancelled => STOP,
    }
}

/// The spec of a handler's entity; `peer` is the URL of its member's peer.
///
/// # Errors
/// The spec is not sound; the error states why.
pub(crate) fn of(handler: &Handler, peer: &str) -> Result<Spec, String> {
    let parsed = Spec::parse(&source(handler, peer));
    parsed.spec.ok_or_else(|| format!("{:?}", parsed.diagnostics))
}

fn source(handler: &Handler, peer: &str) -> String {
    let name = &handler.entity_type;
    let text = |text: &str| toml_string(&text.replace(PEER_URL, peer));
    let mut source = format!(
        r#"[automaton]
name = "{name}"
states = ["Idle", "Busy", "Done", "Failed", "TimedOut", "Stopped"]
initial = "Idle"
terminal = ["Done", "Failed", "TimedOut", "Stopped"]
allow_indefinite_states = ["Idle", "Busy"]
[[action]]
name = "{BEGIN}"
from = ["Idle"]
to = "Busy"
effect = "trigger {name}"
"#
    );
    for (action, to) in ENDINGS {
        let _ =
            writeln!(source, "[[action]]\nname = \"{action}\"\nfrom = [\"Busy\"]\nto = \"{to}\"");
    }
    for (field, value) in &handler.fields {
        let _ = writeln!(
            source,
            "[[state]]\nname = \"{field}\"\ntype = \"string\"\ninitial = {}",
            text(value)
        );
    }
    let _ = write!(
        source,
        r#"[[integration]]
name = "{name}"
module = "{name}"
deadline = "{}ms"
schedule_to_start_timeout = "60s"
on_success = "{FINISH}"
on_failure = "{FAIL}"
on_timeout = "{TIMED_OUT}"
on_cancelled = "{STOP}"
"#,
        handler.budget.as_millis()
    );
    for (key, value) in &handler.config {
        let _ = writeln!(source, "{key} = {}", text(value));
    }
    source
}

/// Formats `text` as a basic string of TOML. `serde_json` writes only escapes that TOML has, too.
fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
