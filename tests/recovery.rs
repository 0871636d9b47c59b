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
mod daemon;
#[path = "recovery/load.rs"]
mod load;
#[path = "recovery/log.rs"]
mod log;
#[path = "recovery/random.rs"]
mod random;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use sandglass_model::{Clock as _, SystemClock, WallTime};
use serde_json::{Value, json};

use binary::{Folder, fixture, sandglass};
use daemon::{Answer, Daemon, ask};
use load::{Client, Life, SHARED, Told, What};
use log::{Log, Restart};
use random::Random;

/// How often the daemon is killed, unless it is said.
const KILLS: u32 = 8;
const CLIENTS: usize = 4;
/// How many requests are acknowledged before a kill: few enough that most kills find the
/// journal at work and handlers in flight, and enough that they aren't all at the start.
const LEAST_ACKNOWLEDGED: usize = 20;
const MORE_ACKNOWLEDGED: usize = 120;
/// How long timers run. A restart that finds half of that gone tells a timer that goes on
/// from one that begins anew, and the other half is what a slow machine may take.
const TIMER: Duration = Duration::from_secs(12);
/// Far longer than anything here takes.
const LATE: Duration = Duration::from_secs(120);

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

fn specs() -> Folder {
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

/// A daemon that is killed again and again, its journal, and all that anybody was told.
struct Trial {
    folder: Folder,
    clock: SystemClock,
    seed: u64,
    random: Random,
    clients: Vec<Client>,
    log: Log,
    told: Vec<Told>,
    /// Each life but the first.
    restarts: Vec<Restart>,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let folder = specs();
        let mut random = Random::new(seed);
        let clients = (0..CLIENTS).map(|name| Client::new(name, random.fork())).collect();
        let log = Log::new(folder.path("runs.db"));
        let (told, restarts) = Default::default();
        let clock = SystemClock::new();
        Self { folder, clock, seed, random, clients, log, told, restarts }
    }

    fn first_start(&mut self) -> Daemon {
        let daemon = Daemon::listening(daemon::begin(&self.folder));
        for entity in SHARED {
            self.ask(&daemon, entity, What::Create);
        }
        daemon
    }

    /// Has all clients ask until so many requests are acknowledged; then the daemon is
    /// killed, in the midst of the others. Where a time is given, not before that, and
    /// no timers are started.
    fn until_killed(&mut self, daemon: Daemon, least: usize, earliest: Option<WallTime>) {
        let address = daemon.address.clone();
        let mut daemon = Some(daemon);
        let life = Life { address: &address, timers: earliest.is_none() };
        let (tell, heard) = channel();
        thread::scope(|threads| {
            for client in &mut self.clients {
                let (life, tell) = (&life, tell.clone());
                threads.spawn(move || client.live(life, &tell));
            }
            drop(tell);
            let mut acknowledged = 0;
            for told in heard {
                acknowledged += usize::from(matches!(told.answer, Answer::Done(_)));
                self.told.push(told);
                let early = earliest.is_some_and(|earliest| self.clock.wall() < earliest);
                if acknowledged >= least && !early {
                    daemon.take().into_iter().for_each(Daemon::kill);
                }
            }
        });
        assert!(daemon.is_none(), "the daemon has gone by itself");
    }

    /// Starts it again on what it left behind. Sometimes it is killed once more before it
    /// takes requests, when it has recovered a part. Answers how often.
    fn restart(&mut self, may_fail: u32) -> (Daemon, u32) {
        let mut failed = 0;
        let mut killed = self.log.read_on();
        while failed < may_fail && self.log.in_flight() > 0 && self.random.below(3) == 0 {
            self.restarts.push(Restart { began: self.clock.wall(), listening: None });
            let recovered = killed + 1 + self.random.below(self.log.in_flight());
            let starting = daemon::begin(&self.folder);
            let late = self.clock.wall().after(LATE);
            // Each look reads the journal, so it neither spins nor needs a pause.
            while self.log.read_on() < recovered {
                assert!(self.clock.wall() < late, "it recovers nothing");
            }
            drop(starting);
            killed = self.log.read_on();
            failed += 1;
        }
        let began = self.clock.wall();
        let daemon = Daemon::listening(daemon::begin(&self.folder));
        self.restarts.push(Restart { began, listening: Some(self.clock.wall()) });
        self.log.read_on();
        self.log.what_was_in_flight_has_ended(killed);
        sandglass(&[&"replay", &self.log.path()]).exits(0).says(" 0 divergences");
        (daemon, failed)
    }

    /// Has one client ask on until every timer has rung.
    fn until_timers_have_rung(&mut self, daemon: &Daemon) {
        let late = self.clock.wall().after(LATE);
        let life = Life { address: &daemon.address, timers: false };
        let (tell, heard) = channel();
        while !self.log.all_timers_have_rung() {
            assert!(self.clock.wall() < late, "a timer was forgotten");
            self.clients[0].step(&life, &tell).expect("the daemon lives");
            self.told.extend(heard.try_iter());
            self.log.read_on();
        }
    }

    /// Asks for something that has to be done.
    fn ask(&mut self, daemon: &Daemon, entity: &str, what: What) {
        let token = format!("trial-{}", self.told.len());
        let (path, body) = match &what {
            What::Act(action) => {
                (format!("/actions/{action}"), json!({"params": {"token": token}}))
            }
            _ => (String::new(), Value::Null),
        };
        let answer = ask(&daemon.address, &format!("POST /v1/entities/{entity}{path}"), &body);
        assert!(matches!(answer, Answer::Done(_)), "{entity}, {what:?}: {answer:?}");
        self.told.push(Told { entity: entity.to_owned(), what, token, answer });
    }

    fn check(&mut self) {
        self.log.read_on();
        self.log.is_as_it_was_read();
        self.log.entities_are_whole();
        self.log.agrees_with(&self.told);
        self.log.nothing_ran_twice_by_itself(&self.told);
        let tested = self.log.timers_went_on(TIMER, &self.restarts);
        assert!(tested > 0, "no restart has found a timer half gone");
        let said = std::fs::read_to_string(self.folder.path("said")).expect("it is there");
        assert!(!said.contains("panicked"), "{said}");
    }
}

impl Drop for Trial {
    #[expect(clippy::print_stderr, reason = "a test that fails says how to repeat it")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("it failed with SANDGLASS_SEED={}", self.seed);
            eprintln!("{}", std::fs::read_to_string(self.folder.path("said")).unwrap_or_default());
        }
    }
}

fn number<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice_whenever_it_is_killed() {
    let kills = number("SANDGLASS_KILLS").unwrap_or(KILLS);
    let seed = number("SANDGLASS_SEED").unwrap_or_else(|| RandomState::new().hash_one(()));
    let mut trial = Trial::new(seed);
    let mut daemon = trial.first_start();
    let mut killed = 1;
    while killed < kills {
        let least = LEAST_ACKNOWLEDGED + trial.random.below(MORE_ACKNOWLEDGED);
        trial.until_killed(daemon, least, None);
        let (next, failed) = trial.restart(kills - killed - 1);
        killed += 1 + failed;
        daemon = next;
    }
    // The last kill finds this timer half gone, whatever the machine does meanwhile.
    trial.ask(&daemon, "Lamp/last", What::Create);
    trial.ask(&daemon, "Lamp/last", What::Act("SwitchOn"));
    let half = trial.clock.wall().after(TIMER / 2);
    trial.until_killed(daemon, LEAST_ACKNOWLEDGED, Some(half));
    let (daemon, _) = trial.restart(0);
    trial.until_timers_have_rung(&daemon);
    daemon.kill();
    trial.check();
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
    folder.write("turn.ioa.toml", TURN);
    for kill in 0..4 {
        let daemon = Daemon::listening(daemon::begin(&folder));
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
    Daemon::listening(daemon::begin(&folder)).kill();
    let journal = folder.path("runs.db");
    let counts = |kind: &str| {
        let said = sandglass(&[&"log", &journal, &"--json"]).exits(0);
        said.json_lines().iter().filter(|record| record["event"]["type"] == kind).count()
    };
    let (stops, ends) = (counts("run.stopping"), counts("ended"));
    assert!(stops > 20 && ends > 100, "{stops} stops and {ends} ends");
    sandglass(&[&"replay", &journal]).exits(0).says(" 0 divergences");
}
