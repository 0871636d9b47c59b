//! The specs of the entities of a trial.

use std::time::Duration;

use crate::binary::{Folder, fixture};

/// How long timers run. A restart that finds half of that gone tells a timer that goes on
/// from one that begins anew, and the other half is what a slow machine may take.
pub(crate) const TIMER: Duration = Duration::from_secs(12);

/// `Begin` and `Hang` start handlers that run once, and `BeginSurely` and `HangOn` such as
/// may run again.
const JOB: &str = r#"
[automaton]
name = "Job"
states = ["Idle", "Running", "Lost", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Running", "Lost"]

[[state]]
name = "touched"
type = "counter"

[[action]]
name = "Touch"
from = ["Idle", "Running", "Lost"]
effect = ["increment touched"]

[[action]]
name = "Begin"
from = ["Idle"]
to = "Running"
effect = ["trigger once"]

[[action]]
name = "BeginSurely"
from = ["Idle"]
to = "Running"
effect = ["trigger surely"]

[[action]]
name = "Hang"
from = ["Idle"]
to = "Running"
effect = ["trigger hangs"]

[[action]]
name = "HangOn"
from = ["Idle"]
to = "Running"
effect = ["trigger hangs_on"]

[[action]]
name = "Finish"
from = ["Running", "Lost"]
to = "Done"

[[action]]
name = "Fail"
from = ["Running", "Lost"]
to = "Lost"

[[action]]
name = "Interrupt"
from = ["Running", "Lost"]
to = "Lost"
"#;

/// A lamp goes out when its state's timer has run down, an alarm rings when its scheduled
/// action comes.
const LAMP: &str = r#"
[automaton]
name = "Lamp"
states = ["Off", "On"]
initial = "Off"
allow_indefinite_states = ["Off"]

[[action]]
name = "SwitchOn"
from = ["Off"]
to = "On"

[[action]]
name = "SwitchOff"
from = ["On"]
to = "Off"

[[state_timeout]]
state = "On"
after_seconds = SECONDS
on_timeout = "SwitchOff"
"#;
const ALARM: &str = r#"
[automaton]
name = "Alarm"
states = ["Quiet", "Ringing"]
initial = "Quiet"
allow_indefinite_states = ["Quiet", "Ringing"]

[[action]]
name = "Set"
from = ["Quiet"]
effect = ["schedule Ring SECONDS"]

[[action]]
name = "Ring"
from = ["Quiet"]
to = "Ringing"
"#;

/// A folder with the specs, and the guests of their integrations.
pub(crate) fn specs() -> Folder {
    let folder = Folder::new();
    let mut job = JOB.to_owned();
    for (name, module, on_crash) in [
        ("once", "finishes", "interrupt"),
        ("surely", "finishes", "rerun"),
        ("hangs", "waits", "interrupt"),
        ("hangs_on", "waits", "rerun"),
    ] {
        job.push_str(&format!(
            "\n[[integration]]\nname = \"{name}\"\nmodule = \"{module}\"\n\
             on_crash = \"{on_crash}\"\ndeadline = \"3600s\"\non_success = \"Finish\"\n\
             on_failure = \"Fail\"\non_timeout = \"Fail\"\non_interrupted = \"Interrupt\"\n"
        ));
    }
    folder.write("job.ioa.toml", job);
    let seconds = TIMER.as_secs().to_string();
    folder.write("lamp.ioa.toml", LAMP.replace("SECONDS", &seconds));
    folder.write("alarm.ioa.toml", ALARM.replace("SECONDS", &seconds));
    for (name, guest) in [("finishes", "echo"), ("waits", "sleeps_in_wasi_poll")] {
        let text = std::fs::read(fixture(&format!("wat/{guest}.wat"))).expect("it is there");
        folder.write(&format!("{name}.wat"), text);
    }
    folder
}
