//! Outages: daemons whose journal is in PostgreSQL, when they, their server, or the connections to it
//! fail at random instants under load. Nothing acknowledged is lost, nothing runs twice, nothing is left
//! without an end; and after a failure of the server alone the daemon goes on by itself.
//!
//! `SANDGLASS_KILLS` is the number of failures (12 if it is not set), and `SANDGLASS_SEED` repeats the
//! random choices of a trial. `.ci/recovery --postgres KILLS SEED` runs it.

#![allow(clippy::print_stdout, reason = "figures of the trial")]

mod binary;
#[path = "recovery/daemon.rs"]
mod daemon;
#[path = "recovery/http.rs"]
mod http;
#[path = "recovery/load.rs"]
mod load;
#[path = "recovery/log.rs"]
mod log;
#[path = "recovery/place.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod place;
#[path = "../crates/sandglass-postgres/tests/server/proxy.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
#[allow(clippy::unwrap_used, reason = "it is a part of tests")]
mod proxy;
#[path = "recovery/random.rs"]
mod random;
#[path = "outages/rig.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod rig;
#[path = "../crates/sandglass-postgres/tests/server/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "it is a part of tests")]
mod server;
#[path = "recovery/specs.rs"]
mod specs;
#[path = "recovery/trial.rs"]
mod trial;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use sandglass_model::Clock as _;

use daemon::{Answer, Daemon};
use load::{Life, SHARED, Told, What};
use log::Restart;
use place::Place as _;
use rig::{OUTAGES, Outage, Rig};
use trial::{Trial, number};

/// How many failures a trial has if it is not set.
const FAILURES: u32 = 12;
/// Requests that are acknowledged after an outage, before the next failure.
const ACKNOWLEDGED_AFTER: usize = 20;
/// How long a daemon may take to go on after an outage.
const RECOVERS_WITHIN: Duration = Duration::from_secs(20);
/// How long a daemon may take to stop after another one has taken the journal. It notices within a second, and
/// gives its handlers, which hang, no time.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Failure {
    /// The daemon is killed.
    Killed,
    /// Another daemon takes the journal.
    Taken,
    Outage(Outage),
}

/// Ends a life, also if its test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Trial<Rig> {
    fn next_failure(&mut self) -> Failure {
        match self.random.below(OUTAGES.len() + 4) {
            0 | 1 => Failure::Killed,
            2 | 3 => Failure::Taken,
            nth => Failure::Outage(OUTAGES[nth - 4]),
        }
    }

    /// Lets the server fail. The daemon has to go on by itself.
    fn outage(&mut self, daemon: &Daemon, heard: &Receiver<Told>, outage: Outage) {
        let begun = self.clock.wall();
        // Timers may be late now.
        self.restarts.push(Restart { began: begun, listening: None });
        let before = self.log.read_on();
        self.log.place.suffer(outage, &mut self.random);
        let ended = self.clock.wall();
        let late = ended.after(RECOVERS_WITHIN);
        self.told.extend(heard.try_iter());
        self.hear(heard, ACKNOWLEDGED_AFTER);
        server::until(|| daemon.is_healthy());
        let (took, went_on) = (ended.since(begun), self.clock.wall().since(ended));
        println!("    took {took:?}, and the daemon went on after {went_on:?}");
        assert!(self.clock.wall() < late, "it went on too late");
        assert!(daemon.is_alive(), "the daemon has stopped");
        server::until(|| {
            self.log.read_on();
            self.log.quick_ones_have_ended(before)
        });
    }

    /// Starts another daemon on the same database. The first one has to stop.
    fn take_over(&mut self, first: Daemon, is_ending: &AtomicBool) -> Daemon {
        let killed = self.log.read_on();
        let began = self.clock.wall();
        is_ending.store(true, Ordering::Relaxed);
        let second = Daemon::listening(daemon::begin(&self.folder, &self.log.place));
        let listening = self.clock.wall();
        self.restarts.push(Restart { began, listening: Some(listening) });
        server::until(|| !first.is_alive());
        let took = self.clock.wall().since(listening);
        println!("    the first stopped {took:?} after the second listened");
        assert!(took < STOPS_WITHIN, "it stopped too late");
        assert_eq!(first.ended(), Some(4), "exit code");
        self.log.read_on();
        self.log.what_was_in_flight_has_ended(killed, true);
        second
    }

    /// A daemon under load, until it is killed or another one takes its journal. Returns the next one,
    /// unless it was killed.
    fn live(
        &mut self,
        daemon: Daemon,
        left: &mut u32,
        counts: &mut BTreeMap<Failure, u32>,
    ) -> Option<Daemon> {
        let (address, is_ending) = (daemon.address.clone(), AtomicBool::new(false));
        let life = Life { address: &address, timers: true, is_ending: &is_ending };
        let started = self.log.read_on();
        self.under_load(&life, |trial, heard| {
            let _ending = Ending(&is_ending);
            while *left > 0 {
                let least = trial.until_the_next();
                trial.hear(heard, least);
                let failure = trial.next_failure();
                println!("{left} left: {failure:?}");
                *left -= 1;
                *counts.entry(failure).or_default() += 1;
                match failure {
                    Failure::Outage(outage) => trial.outage(&daemon, heard, outage),
                    Failure::Killed => break,
                    Failure::Taken => {
                        let before = trial.log.read_on();
                        trial.log.nothing_was_interrupted(started, before);
                        let next = trial.take_over(daemon, &is_ending);
                        return Some(next);
                    }
                }
            }
            is_ending.store(true, Ordering::Relaxed);
            daemon.kill();
            trial.log.place.settle();
            let killed = trial.log.read_on();
            trial.log.nothing_was_interrupted(started, killed);
            None
        })
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice_whatever_fails() {
    let seed = number("SANDGLASS_SEED").unwrap_or_else(|| RandomState::new().hash_one(()));
    let failures = number("SANDGLASS_KILLS").unwrap_or(FAILURES);
    println!("{failures} failures with SANDGLASS_SEED={seed}");
    let mut trial = Trial::new(seed, |_| Rig::new());
    let (mut left, mut counts) = (failures, BTreeMap::new());
    let mut daemon = trial.first_start();
    while left > 0 {
        daemon = match trial.live(daemon, &mut left, &mut counts) {
            Some(next) => next,
            None => {
                let (next, failed) = trial.restart(left);
                left -= failed;
                *counts.entry(Failure::Killed).or_default() += failed;
                next
            }
        };
    }
    for entity in SHARED {
        trial.ask(&daemon, entity, What::Act("Touch"));
    }
    let told = trial.end(daemon);
    let count = |is: fn(&Answer) -> bool| told.iter().filter(|one| is(&one.answer)).count();
    println!(
        "{counts:?}; {} acknowledged, {} unavailable, {} without an answer: 0 lost, 0 doubled, 0 stuck, \
         0 divergences",
        count(|it| matches!(it, Answer::Done(_))),
        count(Answer::is_unavailable),
        count(|it| matches!(it, Answer::Lost)),
    );
}
