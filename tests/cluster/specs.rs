//! The specs of a trial, the guest of its handlers, and the configuration of all hosts.

use std::time::Duration;

use crate::binary::Folder;
use crate::verify::Rules;

pub(crate) const RULES: Rules = Rules {
    timer: Duration::from_secs(6),
    timer_grace: Duration::from_secs(8),
    calls: CALLS,
    reruns: "surely",
    starts_timer: "SwitchOn",
};
const CALLS: u32 = 3;
/// The variable with the name of the process, which its guests send to the effect server.
pub(crate) const HOST_VARIABLE: &str = "TRIAL_HOST";

const COUNTER: &str = r#"
[automaton]
name = "Counter"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[state]]
name = "touched"
type = "counter"

[[action]]
name = "Touch"
from = ["Open"]
effect = ["increment touched"]
"#;

/// `Begin` starts a handler that runs once, and `BeginSurely` one that runs again after a crash.
const JOB: &str = r#"
[automaton]
name = "Job"
states = ["Idle", "Running", "Lost", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Running", "Lost"]

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
name = "Finish"
from = ["Running", "Lost"]
to = "Done"

[[action]]
name = "Fail"
from = ["Running", "Lost"]
to = "Lost"
"#;

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

/// Sends its context to the effect server as often as its handlers have effects.
const GUEST: &str = r#"(module
  (import "env" "host_get_context" (func $get_context (param i32 i32) (result i32)))
  (import "env" "host_http_call" (func $call
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 2)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (data (i32.const 128) "POST")
  (data (i32.const 256) "URL")
  (func (export "run") (param i32 i32) (result i32)
    (local $size i32) (local $number i32)
    (local.set $size (call $get_context (i32.const 4096) (i32.const 32768)))
    (loop $again
      (local.set $number (i32.add (local.get $number) (i32.const 1)))
      ;; The number is the last digit of the URL.
      (i32.store8 (i32.const DIGIT) (i32.add (i32.const 48) (local.get $number)))
      (if (i32.lt_s
            (call $call
              (i32.const 128) (i32.const 4) (i32.const 256) (i32.const LENGTH)
              (i32.const 0) (i32.const 0) (i32.const 4096) (local.get $size)
              (i32.const 40960) (i32.const 4096))
            (i32.const 0))
        (then (unreachable)))
      (br_if $again (i32.lt_u (local.get $number) (i32.const CALLS))))
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
"#;

const MANIFEST: &str = r#"name = "effects"
module = "effects.wat"
abi = "core"

[grants]
hosts = ["127.0.0.1:PORT"]
secrets = ["HOST"]
"#;

/// A folder with `specs/`, whose handlers have effects at this port, and `sandglass.toml`.
pub(crate) fn folder(effects: u16) -> Folder {
    let folder = Folder::new();
    let mut job = JOB.to_owned();
    for (name, on_crash) in [("once", "interrupt"), ("surely", "rerun")] {
        job.push_str(&format!(
            "\n[[integration]]\nname = \"{name}\"\nmodule = \"effects\"\non_crash = \"{on_crash}\"\n\
             deadline = \"600s\"\non_success = \"Finish\"\non_failure = \"Fail\"\non_timeout = \"Fail\"\n\
             on_interrupted = \"Fail\"\nhost = \"{{secret:HOST}}\"\n"
        ));
    }
    folder.write("specs/job.ioa.toml", job);
    folder.write("specs/counter.ioa.toml", COUNTER);
    let seconds = RULES.timer.as_secs().to_string();
    folder.write("specs/lamp.ioa.toml", LAMP.replace("SECONDS", &seconds));
    folder.write("specs/integration.toml", MANIFEST.replace("PORT", &effects.to_string()));
    let url = format!("http://127.0.0.1:{effects}/0");
    let guest = GUEST
        .replace("LENGTH", &url.len().to_string())
        .replace("DIGIT", &(256 + url.len() - 1).to_string())
        .replace("CALLS", &CALLS.to_string())
        .replace("URL", &url);
    folder.write("specs/effects.wat", guest);
    folder.write("sandglass.toml", format!("[secrets]\nHOST = \"{HOST_VARIABLE}\"\n"));
    folder
}
