//! The one type of entity: it has handlers that are repeated or not, timers, schedules and spawns, and
//! comes to rest within a minute.

use std::sync::{Arc, OnceLock};

use sandglass_liveness::Spec;

/// The name of the type.
pub(crate) const TYPE: &str = "Job";

/// What clients and guests request.
pub(crate) const ACTIONS: [&str; 8] =
    ["Touch", "Start", "Repeat", "Beside", "Start", "Nap", "Later", "Breed"];

const SOURCE: &str = r#"
[automaton]
name = "Job"
states = ["Idle", "Busy", "Napping", "Over"]
initial = "Idle"
terminal = ["Over"]
allow_indefinite_states = ["Idle"]

[[state]]
name = "text"
type = "string"
initial = ""

[[action]]
name = "Touch"
from = ["Idle", "Busy", "Napping"]

[[action]]
name = "Start"
from = ["Idle"]
to = "Busy"
effect = "trigger work"

[[action]]
name = "Repeat"
from = ["Idle"]
to = "Busy"
effect = "trigger again"

[[action]]
name = "Beside"
from = ["Idle", "Busy", "Napping"]
effect = "trigger beside"

[[action]]
name = "Finish"
from = ["Idle", "Busy", "Napping"]
to = "Idle"

[[action]]
name = "Fail"
from = ["Idle", "Busy", "Napping"]
to = "Idle"

[[action]]
name = "Noted"
from = ["Idle", "Busy", "Napping"]

[[action]]
name = "Nap"
from = ["Idle"]
to = "Napping"

[[action]]
name = "Wake"
from = ["Napping"]
to = "Idle"

[[action]]
name = "Later"
from = ["Idle", "Busy", "Napping"]
effect = "schedule Touch 3"

[[action]]
name = "Breed"
from = ["Idle", "Busy", "Napping"]
params = ["text"]
effect = [{ type = "spawn", entity_type = "Job", entity_id_source = "text", store_id_in = "text", initial_action = "Start" }]

[[state_timeout]]
state = "Napping"
after_seconds = 4
on_timeout = "Wake"

[[state_timeout]]
state = "Busy"
after_seconds = 20
on_timeout = "Fail"

[[integration]]
name = "work"
module = "work"
deadline = "15s"
on_success = "Finish"
on_failure = "Fail"
on_timeout = "Fail"
on_interrupted = "Fail"
on_cancelled = "Fail"

[[integration]]
name = "again"
module = "again"
deadline = "10s"
on_crash = "rerun"
on_success = "Finish"
on_failure = "Fail"
on_timeout = "Fail"
on_interrupted = "Fail"
on_cancelled = "Fail"

[[integration]]
name = "beside"
module = "beside"
deadline = "8s"
keep_on_exit = true
on_success = "Noted"
on_failure = "Noted"
on_timeout = "Noted"
on_interrupted = "Noted"
on_cancelled = "Noted"
"#;

/// The spec, parsed once.
pub(crate) fn spec() -> Option<Arc<Spec>> {
    static SPEC: OnceLock<Option<Arc<Spec>>> = OnceLock::new();
    SPEC.get_or_init(|| Spec::parse(SOURCE).spec.map(Arc::new)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spec_is_valid() {
        let parsed = Spec::parse(SOURCE);
        let errors: Vec<String> = parsed.diagnostics.iter().map(ToString::to_string).collect();
        assert!(parsed.spec.is_some(), "{errors:?}");
    }
}
