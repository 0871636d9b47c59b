//! Recovery: a daemon that is killed at random instants under load loses nothing that it
//! acknowledged, runs nothing twice, and leaves nothing without an end.
//!
//! `SANDGLASS_KILLS` says how often it is killed (8, unless it is said), and
//! `SANDGLASS_SEED` repeats what a failure's seed decides: what is asked for, and after
//! which acknowledged request, or which record of a recovery, a kill comes. For a long run:
//!
//! ```sh
//! SANDGLASS_KILLS=500 cargo test --test recovery
//! ```

mod binary;
#[path = "recovery/daemon.rs"]
#[allow(dead_code, reason = "outages need the rest")]
mod daemon;
#[path = "recovery/http.rs"]
mod http;
#[path = "recovery/load.rs"]
mod load;
#[path = "recovery/log.rs"]
#[allow(dead_code, reason = "outages need the rest")]
mod log;
#[path = "recovery/place.rs"]
mod place;
#[path = "recovery/random.rs"]
mod random;
#[path = "recovery/specs.rs"]
mod specs;
#[path = "recovery/trial.rs"]
mod trial;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::mpsc::channel;
use std::thread;

use serde_json::{Value, json};

use binary::sandglass;
use daemon::{Answer, Daemon, ask};
use place::File;
use specs::specs;
use trial::{CLIENTS, Trial, number};

/// How often the daemon is killed, unless it is said.
const KILLS: u32 = 8;

/// A session whose limits are breached all the time, while its handlers succeed with an action that
/// the state refuses, sleep until they are killed, and are dispatched anew.
const TURN: &str = r#"
[automaton]
name = "Turn"
states = ["Ready", "Busy"]
initial = "Ready"
allow_indefinite_states = ["Ready", "Busy"]

[limits]
run_timeout = "150ms"
progress_timeout = "60ms"
abort_timeout = "20ms"
[limits.retry]
progress_timeout = 3

[[action]]
name = "Start"
from = ["Ready", "Busy"]
to = "Busy"
effect = ["trigger refused", "trigger sleeps"]

[[action]]
name = "Finish"
from = ["Ready"]

[[action]]
name = "Back"
from = ["Ready", "Busy"]
to = "Ready"

[[integration]]
name = "refused"
module = "finishes"
deadline = "50ms"
on_failure = "Back"
on_timeout = "Back"
on_interrupted = "Back"
on_cancelled = "Back"

[[integration]]
name = "sleeps"
module = "waits"
deadline = "80ms"
keep_on_exit = true
on_crash = "rerun"
on_success = "Back"
on_failure = "Back"
on_timeout = "Back"
on_interrupted = "Back"
on_cancelled = "Back"
"#;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice_whenever_it_is_killed() {
    let kills = number("SANDGLASS_KILLS").unwrap_or(KILLS);
    let seed = number("SANDGLASS_SEED").unwrap_or_else(|| RandomState::new().hash_one(()));
    let mut trial = Trial::new(seed, |folder| File(folder.path("runs.db")));
    let mut daemon = trial.first_start();
    let mut killed = 1;
    while killed < kills {
        let least = trial.until_the_next();
        trial.until_killed(daemon, least, None);
        let (next, failed) = trial.restart(kills - killed - 1);
        killed += 1 + failed;
        daemon = next;
    }
    let told = trial.end(daemon);
    assert!(!told.iter().any(|one| one.answer.is_unavailable()), "a file always works");
}

/// Starts handlers of a session of its own and resumes it, over and over, until the daemon is gone
/// or `requests` were answered; returns how many were.
fn press(address: &str, entity: &str, requests: u32) -> u32 {
    let mut answered = 0;
    ask(address, &format!("POST /v1/entities/{entity}"), &Value::Null);
    while answered < requests {
        let start = ask(address, &format!("POST /v1/entities/{entity}/actions/Start"), &json!({}));
        let resume = ask(address, &format!("POST /v1/sessions/{entity}/resume"), &json!({}));
        if [start, resume].iter().any(|answer| matches!(answer, Answer::Lost)) {
            break;
        }
        answered += 2;
    }
    answered
}

#[test]
fn limits_that_are_breached_under_load_and_kills_replay_without_divergences() {
    let folder = specs();
    let place = File(folder.path("runs.db"));
    folder.write("turn.ioa.toml", TURN);
    for kill in 0..4 {
        let daemon = Daemon::listening(daemon::begin(&folder, &place));
        let (address, (tell, enough)) = (daemon.address.clone(), channel());
        thread::scope(|threads| {
            for client in 0..CLIENTS {
                let (address, tell) = (&address, tell.clone());
                threads.spawn(move || {
                    let entity = format!("Turn/{kill}-{client}");
                    press(address, &entity, 120);
                    // The first that has enough has the daemon killed under the others.
                    let _ = tell.send(());
                    press(address, &entity, u32::MAX);
                });
            }
            enough.recv().expect("a client has had its answers");
            daemon.kill();
        });
    }
    // What was in flight at the last kill ends in one more life.
    Daemon::listening(daemon::begin(&folder, &place)).kill();
    let journal = &place.0;
    let counts = |kind: &str| {
        let said = sandglass(&[&"log", journal, &"--json"]).exits(0);
        said.json_lines().iter().filter(|record| record["event"]["type"] == kind).count()
    };
    let (stops, ends) = (counts("run.stopping"), counts("ended"));
    assert!(stops > 20 && ends > 100, "{stops} stops and {ends} ends");
    sandglass(&[&"replay", journal]).exits(0).says(" 0 divergences");
}
