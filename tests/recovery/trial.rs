//! A trial: a daemon and its clients, and what they observed.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use sandglass_model::{Clock as _, SystemClock, WallTime};
use serde_json::{Value, json};

use crate::binary::Folder;
use crate::daemon::{self, Answer, Daemon, ask};
use crate::load::{Client, Life, SHARED, Told, What};
use crate::log::{Log, Restart};
use crate::place::Place;
use crate::random::Random;
use crate::specs::{TIMER, specs};

pub(crate) const CLIENTS: usize = 4;
/// How many requests are acknowledged before a kill: few enough that most kills find the
/// journal at work and handlers in flight, and enough that they aren't all at the start.
const LEAST_ACKNOWLEDGED: usize = 20;
const MORE_ACKNOWLEDGED: usize = 120;
/// How often a trial ends with a restart, until one finds a timer half gone.
const LAST_ATTEMPTS: u32 = 6;
/// Far longer than anything here takes.
const LATE: Duration = Duration::from_secs(120);

/// A daemon that is killed again and again, its journal, and all that clients were answered.
pub(crate) struct Trial<P> {
    pub(crate) folder: Folder,
    pub(crate) clock: SystemClock,
    seed: u64,
    pub(crate) random: Random,
    clients: Vec<Client>,
    pub(crate) log: Log<P>,
    pub(crate) told: Vec<Told>,
    /// Each life but the first.
    pub(crate) restarts: Vec<Restart>,
}

impl<P: Place> Trial<P> {
    pub(crate) fn new(seed: u64, place: impl FnOnce(&Folder) -> P) -> Self {
        let folder = specs();
        let mut random = Random::new(seed);
        let clients = (0..CLIENTS).map(|name| Client::new(name, random.fork())).collect();
        let log = Log::new(place(&folder));
        let (told, restarts) = Default::default();
        let clock = SystemClock::new();
        Self { folder, clock, seed, random, clients, log, told, restarts }
    }

    pub(crate) fn first_start(&mut self) -> Daemon {
        let daemon = Daemon::listening(daemon::begin(&self.folder, &self.log.place));
        for entity in SHARED {
            self.ask(&daemon, entity, What::Create);
        }
        daemon
    }

    /// Has all clients ask until `life` ends, while `work` is done.
    pub(crate) fn under_load<T>(
        &mut self,
        life: &Life<'_>,
        work: impl FnOnce(&mut Self, &Receiver<Told>) -> T,
    ) -> T {
        let (tell, heard) = channel();
        let mut clients = std::mem::take(&mut self.clients);
        let done = thread::scope(|threads| {
            for client in &mut clients {
                let tell = tell.clone();
                threads.spawn(move || client.live(life, &tell));
            }
            drop(tell);
            let done = work(self, &heard);
            self.told.extend(heard);
            done
        });
        self.clients = clients;
        done
    }

    /// Waits until so many further requests are acknowledged.
    pub(crate) fn hear(&mut self, heard: &Receiver<Told>, least: usize) {
        let (mut acknowledged, late) = (0, self.clock.wall().after(LATE));
        while acknowledged < least {
            assert!(self.clock.wall() < late, "nothing is acknowledged");
            let told = heard.recv_timeout(LATE).expect("the daemon has gone by itself");
            acknowledged += usize::from(matches!(told.answer, Answer::Done(_)));
            self.told.push(told);
        }
    }

    /// Has all clients ask until so many requests are acknowledged; then the daemon is
    /// killed, in the midst of the others. Where a time is given, not before that, and
    /// no timers are started.
    pub(crate) fn until_killed(
        &mut self,
        daemon: Daemon,
        least: usize,
        earliest: Option<WallTime>,
    ) {
        let (address, is_ending) = (daemon.address.clone(), AtomicBool::new(true));
        let life = Life { address: &address, timers: earliest.is_none(), is_ending: &is_ending };
        self.under_load(&life, |trial, heard| {
            trial.hear(heard, least);
            while earliest.is_some_and(|earliest| trial.clock.wall() < earliest) {
                trial.hear(heard, 1);
            }
            daemon.kill();
        });
        self.log.place.settle();
    }

    /// Starts it again on what it left behind. Sometimes it is killed once more before it
    /// takes requests, when it has recovered a part. Answers how often.
    pub(crate) fn restart(&mut self, may_fail: u32) -> (Daemon, u32) {
        let mut failed = 0;
        let mut killed = self.log.read_on();
        while failed < may_fail && self.log.in_flight() > 0 && self.random.below(3) == 0 {
            self.restarts.push(Restart { began: self.clock.wall(), listening: None });
            let recovered = killed + 1 + self.random.below(self.log.in_flight());
            let starting = daemon::begin(&self.folder, &self.log.place);
            let late = self.clock.wall().after(LATE);
            // Each look reads the journal, so it neither spins nor needs a pause.
            while self.log.read_on() < recovered {
                assert!(self.clock.wall() < late, "it recovers nothing");
            }
            drop(starting);
            self.log.place.settle();
            killed = self.log.read_on();
            failed += 1;
        }
        let began = self.clock.wall();
        let daemon = Daemon::listening(daemon::begin(&self.folder, &self.log.place));
        self.restarts.push(Restart { began, listening: Some(self.clock.wall()) });
        self.log.read_on();
        self.log.what_was_in_flight_has_ended(killed, false);
        self.log.replays();
        (daemon, failed)
    }

    /// Has one client ask on until every timer has rung.
    pub(crate) fn until_timers_have_rung(&mut self, daemon: &Daemon) {
        let late = self.clock.wall().after(LATE);
        let is_ending = AtomicBool::new(true);
        let life = Life { address: &daemon.address, timers: false, is_ending: &is_ending };
        let (tell, heard) = channel();
        while !self.log.all_timers_have_rung() {
            assert!(self.clock.wall() < late, "a timer was forgotten");
            self.clients[0].step(&life, &tell).expect("the daemon lives");
            self.told.extend(heard.try_iter());
            self.log.read_on();
        }
    }

    /// Asks for something that has to be done.
    pub(crate) fn ask(&mut self, daemon: &Daemon, entity: &str, what: What) {
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

    /// How many requests are acknowledged before the next kill.
    pub(crate) fn until_the_next(&mut self) -> usize {
        LEAST_ACKNOWLEDGED + self.random.below(MORE_ACKNOWLEDGED)
    }

    /// Kills it until a restart has found a timer half gone, which needs more than one attempt if the
    /// machine is so slow that the timer is due before the restart is complete. Then checks all that was
    /// observed. Returns all requests.
    pub(crate) fn end(mut self, mut daemon: Daemon) -> Vec<Told> {
        for attempt in 0..LAST_ATTEMPTS {
            let lamp = format!("Lamp/last-{attempt}");
            self.ask(&daemon, &lamp, What::Create);
            let due = self.clock.wall().after(TIMER);
            self.ask(&daemon, &lamp, What::Act("SwitchOn"));
            let half = self.clock.wall().after(TIMER / 2);
            self.until_killed(daemon, LEAST_ACKNOWLEDGED, Some(half));
            (daemon, _) = self.restart(0);
            if self.clock.wall() < due {
                break;
            }
        }
        self.until_timers_have_rung(&daemon);
        daemon.kill();
        self.check();
        std::mem::take(&mut self.told)
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

impl<P> Drop for Trial<P> {
    #[expect(clippy::print_stderr, reason = "a test that fails says how to repeat it")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("it failed with SANDGLASS_SEED={}", self.seed);
            eprintln!("{}", std::fs::read_to_string(self.folder.path("said")).unwrap_or_default());
        }
    }
}

pub(crate) fn number<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}
