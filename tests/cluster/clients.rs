//! Clients that send requests to any host, and record what they learn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandglass_model::{Clock as _, SystemClock, WallTime};
use serde_json::{Value, json};

use crate::history::{Answer, Request, Try, What};
use crate::http;
use crate::random::Random;
use crate::server::pause;

/// The counters that all clients use.
const SHARED: usize = 6;
/// How long a client waits for a response: longer than a host looks for an owner.
const PATIENCE: Duration = Duration::from_secs(8);
/// The same if it waits until all handlers have ended.
const PATIENCE_SETTLED: Duration = Duration::from_secs(40);
/// How long a request with a key is sent again.
const REPEATS_FOR: Duration = Duration::from_secs(120);
/// How long a client avoids a host that did not respond.
const AVOIDS_FOR: Duration = Duration::from_secs(2);

/// The hosts as clients see them, and all that clients learned.
pub(crate) struct World {
    pub(crate) addresses: Vec<String>,
    /// Whether a load balancer sends requests there.
    pub(crate) in_rotation: Vec<AtomicBool>,
    pub(crate) has_keys: bool,
    pub(crate) is_ending: AtomicBool,
    pub(crate) clock: SystemClock,
    requests: Mutex<Vec<Request>>,
}

impl World {
    pub(crate) fn new(addresses: Vec<String>) -> Self {
        let in_rotation = addresses.iter().map(|_| AtomicBool::new(true)).collect();
        let (has_keys, is_ending) = (addresses.len() > 1, AtomicBool::new(false));
        let (clock, requests) = (SystemClock::new(), Mutex::new(Vec::new()));
        Self { addresses, in_rotation, has_keys, is_ending, clock, requests }
    }

    pub(crate) fn add(&self, request: Request) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }

    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_in_rotation(&self, host: usize) -> bool {
        self.in_rotation[host].load(Ordering::Relaxed)
    }

    /// Sends a request to a host once.
    pub(crate) fn send(&self, host: usize, request: &Request) -> Try {
        let Request { token, entity, what, has_key, waits, .. } = request;
        let (line, body) = match what {
            What::Create => (format!("POST /v1/entities/{entity}"), Value::Null),
            What::Look => (format!("GET /v1/entities/{entity}"), Value::Null),
            What::Act(action) => {
                let wait = if *waits { "?wait=settled&timeout=20s" } else { "" };
                let line = format!("POST /v1/entities/{entity}/actions/{action}{wait}");
                (line, json!({"params": {"token": token}}))
            }
        };
        let key = if *has_key { format!("idempotency-key: {token}\r\n") } else { String::new() };
        let patience = if *waits { PATIENCE_SETTLED } else { PATIENCE };
        let sent = self.clock.wall();
        let reply = http::exchange(&self.addresses[host], &line, &key, &body, patience);
        Try { host, sent, finished: self.clock.wall(), answer: Answer::of(reply) }
    }
}

pub(crate) struct Client<'a> {
    name: String,
    random: Random,
    world: &'a World,
    sent: u32,
    avoided: Vec<Option<WallTime>>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(number: usize, random: Random, world: &'a World) -> Self {
        let avoided = vec![None; world.addresses.len()];
        Self { name: format!("c{number}"), random, world, sent: 0, avoided }
    }

    /// Creates the shared counters.
    pub(crate) fn prepare(&mut self) {
        for nth in 0..SHARED {
            self.create(&shared(nth));
        }
    }

    /// Sends one request after the other until the world ends.
    pub(crate) fn live(&mut self) {
        while !self.world.is_ending.load(Ordering::Relaxed) {
            match self.random.below(100) {
                0..20 => self.job(),
                20..28 => self.timer(),
                28..45 => self.look(),
                _ => {
                    let entity = shared(self.random.below(SHARED));
                    self.act(&entity, "Touch", false);
                }
            }
        }
    }

    fn job(&mut self) {
        let entity = self.name("Job");
        if self.create(&entity) {
            let action = if self.random.below(2) == 0 { "Begin" } else { "BeginSurely" };
            let waits = self.random.below(3) == 0;
            self.act(&entity, action, waits);
        }
    }

    fn timer(&mut self) {
        let entity = self.name("Lamp");
        if self.create(&entity) {
            self.act(&entity, "SwitchOn", false);
        }
    }

    fn look(&mut self) {
        let entity = shared(self.random.below(SHARED));
        let request = self.request(&entity, What::Look);
        self.once(request);
    }

    /// Whether the entity exists then.
    fn create(&mut self, entity: &str) -> bool {
        let request = self.request(entity, What::Create);
        self.once(request)
    }

    fn act(&mut self, entity: &str, action: &'static str, waits: bool) {
        let has_key = self.world.has_keys && self.random.below(2) == 0;
        let request = self.request(entity, What::Act(action));
        let request = Request { has_key, waits, ..request };
        if has_key {
            self.until_acknowledged(request);
        } else {
            self.once(request);
        }
    }

    fn request(&mut self, entity: &str, what: What) -> Request {
        self.sent += 1;
        let token = format!("{}-{}", self.name, self.sent);
        let (has_key, waits) = (false, false);
        Request { token, entity: entity.to_owned(), what, has_key, waits, tries: Vec::new() }
    }

    /// Sends it once, and returns whether it was done.
    fn once(&mut self, mut request: Request) -> bool {
        let one = self.send(&request);
        let is_done = one.answer.is_done();
        request.tries.push(one);
        self.world.add(request);
        is_done
    }

    /// Sends it until it is acknowledged.
    fn until_acknowledged(&mut self, mut request: Request) {
        let late = self.world.clock.wall().after(REPEATS_FOR);
        loop {
            let one = self.send(&request);
            let may_succeed = matches!(one.answer, Answer::Unknown(_)) || one.answer.is_passing();
            request.tries.push(one);
            if !may_succeed || self.world.clock.wall() > late {
                break;
            }
            pause();
        }
        self.world.add(request);
    }

    fn send(&mut self, request: &Request) -> Try {
        let host = self.choose();
        let one = self.world.send(host, request);
        let is_bad = match &one.answer {
            Answer::NotSent => true,
            Answer::Unknown(code) => code == "broken" || code == "shutting_down",
            _ => false,
        };
        self.avoided[host] = is_bad.then(|| one.finished.after(AVOIDS_FOR));
        if is_bad {
            pause();
        }
        one
    }

    /// A host in rotation that responded before, or any.
    fn choose(&mut self) -> usize {
        let now = self.world.clock.wall();
        let hosts = || 0..self.world.addresses.len();
        let is_good = |host: &usize| {
            let avoided = self.avoided[*host].is_some_and(|until| now < until);
            self.world.is_in_rotation(*host) && !avoided
        };
        let mut hosts: Vec<usize> = match hosts().filter(is_good).collect::<Vec<_>>() {
            good if good.is_empty() => {
                hosts().filter(|host| self.world.is_in_rotation(*host)).collect()
            }
            good => good,
        };
        if hosts.is_empty() {
            hosts.push(0);
        }
        hosts[self.random.below(hosts.len())]
    }

    /// A name that nothing else has.
    fn name(&mut self, of: &str) -> String {
        self.sent += 1;
        format!("{of}/{}-{}", self.name, self.sent)
    }
}

fn shared(nth: usize) -> String {
    format!("Counter/shared-{nth}")
}
