//! Clients that ask a daemon for this and that until it is gone, and what they were told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use serde_json::{Value, json};

use crate::daemon::{Answer, ask};
use crate::random::Random;

/// The entities that all clients touch.
pub(crate) const SHARED: [&str; 3] = ["Job/shared-0", "Job/shared-1", "Job/shared-2"];

/// Most handlers that hang which one client starts between two kills: each holds a place
/// until the next.
const HANGING_MAX: u32 = 6;

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Create,
    Act(&'static str),
    Retry(String),
    Look,
}

/// A request and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// TYPE/ID.
    pub(crate) entity: String,
    pub(crate) what: What,
    /// Tells this request from all others, in the record that it becomes.
    pub(crate) token: String,
    pub(crate) answer: Answer,
}

/// One life of the daemon, as clients see it.
pub(crate) struct Life<'a> {
    pub(crate) address: &'a str,
    /// Whether timers are started, too.
    pub(crate) timers: bool,
    /// Whether it ends when an answer is lost, or the journal does not respond.
    pub(crate) is_ending: &'a AtomicBool,
}

/// Somebody who asks for one thing after the other.
pub(crate) struct Client {
    name: usize,
    random: Random,
    asked: u32,
    hanging: u32,
    /// The entities whose creation nobody acknowledged.
    unsure: Vec<String>,
    /// Dispatches that were in flight when a daemon was killed, maybe.
    retryable: Vec<(String, String)>,
    /// Actions of which nobody said whether they were taken.
    unanswered: Vec<Action>,
    /// Where the shared entities were when this client was last told.
    sequences: [u64; SHARED.len()],
}

/// An action that is asked for, as it can be sent again.
#[derive(Clone, Debug)]
struct Action {
    entity: String,
    name: &'static str,
    token: String,
    /// With it, sent twice it is taken once.
    expected: Option<u64>,
}

impl Client {
    pub(crate) fn new(name: usize, random: Random) -> Self {
        let (unsure, retryable, unanswered) = Default::default();
        let sequences = [0; SHARED.len()];
        Self { name, random, asked: 0, hanging: 0, unsure, retryable, unanswered, sequences }
    }

    /// Asks on until the life ends.
    pub(crate) fn live(&mut self, life: &Life<'_>, tell: &Sender<Told>) {
        self.hanging = 0;
        for entity in std::mem::take(&mut self.unsure) {
            self.create(life, tell, entity);
        }
        for action in std::mem::take(&mut self.unanswered) {
            self.send(life, tell, action);
        }
        while self.step(life, tell).is_some() || !life.is_ending.load(Ordering::Relaxed) {}
    }

    /// Asks for one thing; none if the daemon is gone, or its journal does not respond.
    pub(crate) fn step(&mut self, life: &Life<'_>, tell: &Sender<Told>) -> Option<()> {
        match self.random.below(100) {
            0..35 => self.job(life, tell),
            35..41 if life.timers => {
                self.timer(life, tell, "Lamp", "SwitchOn")?;
                self.timer(life, tell, "Alarm", "Set")
            }
            41..46 => self.retry(life, tell),
            46..60 => self.look(life, tell),
            _ => self.touch(life, tell),
        }
    }

    /// A handler: one that is quick or one that hangs, each in two kinds.
    fn job(&mut self, life: &Life<'_>, tell: &Sender<Told>) -> Option<()> {
        let action = match self.random.below(10) {
            0 | 1 if self.hanging < HANGING_MAX => "Hang",
            2 if self.hanging < HANGING_MAX => "HangOn",
            3..6 => "BeginSurely",
            _ => "Begin",
        };
        let entity = self.name("Job");
        self.create(life, tell, entity.clone())?;
        let taken = self.act(life, tell, &entity, action)?;
        if action.starts_with("Hang") {
            self.hanging += 1;
            let dispatch = taken["dispatches"][0].as_str().expect("its handler is started");
            self.retryable.push((entity, dispatch.to_owned()));
        }
        Some(())
    }

    fn timer(
        &mut self,
        life: &Life<'_>,
        tell: &Sender<Told>,
        of: &str,
        action: &'static str,
    ) -> Option<()> {
        let entity = self.name(of);
        self.create(life, tell, entity.clone())?;
        self.act(life, tell, &entity, action).map(drop)
    }

    fn touch(&mut self, life: &Life<'_>, tell: &Sender<Told>) -> Option<()> {
        let (nth, entity) = self.shared();
        // Others are as quick, so that this is refused as often as it is taken.
        let expected = (self.random.below(4) == 0).then_some(self.sequences[nth]);
        let action = self.action(entity, "Touch", expected);
        let taken = if expected.is_some() && self.random.below(2) == 0 {
            self.send_twice(life, tell, action)?
        } else {
            self.send(life, tell, action)?
        };
        self.saw(nth, &taken);
        Some(())
    }

    fn look(&mut self, life: &Life<'_>, tell: &Sender<Told>) -> Option<()> {
        let (nth, entity) = self.shared();
        let request = format!("GET /v1/entities/{entity}");
        let seen = self.told(life, tell, entity, What::Look, &request, |_| Value::Null)?;
        self.saw(nth, &seen);
        Some(())
    }

    fn retry(&mut self, life: &Life<'_>, tell: &Sender<Told>) -> Option<()> {
        if self.retryable.is_empty() {
            return Some(());
        }
        let nth = self.random.below(self.retryable.len());
        let (entity, dispatch) = self.retryable[nth].clone();
        let request = format!("POST /v1/dispatches/{dispatch}/retry");
        let body = |token: &str| json!({"reason": token});
        self.told(life, tell, &entity, What::Retry(dispatch), &request, body).map(drop)
    }

    fn create(&mut self, life: &Life<'_>, tell: &Sender<Told>, entity: String) -> Option<()> {
        let request = format!("POST /v1/entities/{entity}");
        let created = self.told(life, tell, &entity, What::Create, &request, |_| Value::Null);
        if created.is_none() {
            self.unsure.push(entity);
        }
        created.map(drop)
    }

    /// The answer; null where it was refused.
    fn act(
        &mut self,
        life: &Life<'_>,
        tell: &Sender<Told>,
        entity: &str,
        name: &'static str,
    ) -> Option<Value> {
        let action = self.action(entity, name, None);
        self.send(life, tell, action)
    }

    fn action(&mut self, entity: &str, name: &'static str, expected: Option<u64>) -> Action {
        Action { entity: entity.to_owned(), name, token: self.name("token"), expected }
    }

    /// Sends it on two connections at once, as what lies between may do.
    fn send_twice(
        &mut self,
        life: &Life<'_>,
        tell: &Sender<Told>,
        action: Action,
    ) -> Option<Value> {
        let told = thread::scope(|threads| {
            let other = threads.spawn(|| action.sent(life));
            [action.sent(life), other.join().expect("it only asks")]
        });
        let said = told.iter().map(|told| said(&told.answer)).collect::<Option<Vec<_>>>();
        told.into_iter().for_each(|told| drop(tell.send(told)));
        match said {
            Some(said) => said.into_iter().find(|said| !said.is_null()).or(Some(Value::Null)),
            None => {
                self.unanswered.push(action);
                None
            }
        }
    }

    /// The answer; null where it was refused. Where there is none, it is sent again in
    /// the next life if it can't be taken twice.
    fn send(&mut self, life: &Life<'_>, tell: &Sender<Told>, action: Action) -> Option<Value> {
        let told = action.sent(life);
        let said = said(&told.answer);
        // Whoever listens has failed, and says so.
        let _ = tell.send(told);
        if said.is_none() && action.expected.is_some() {
            self.unanswered.push(action);
        }
        said
    }

    fn told(
        &mut self,
        life: &Life<'_>,
        tell: &Sender<Told>,
        entity: &str,
        what: What,
        request: &str,
        body: impl Fn(&str) -> Value,
    ) -> Option<Value> {
        let token = self.name("token");
        let answer = ask(life.address, request, &body(&token));
        let said = said(&answer);
        let told = Told { entity: entity.to_owned(), what, token, answer };
        // Whoever listens has failed, and says so.
        let _ = tell.send(told);
        said
    }

    fn shared(&mut self) -> (usize, &'static str) {
        let nth = self.random.below(SHARED.len());
        (nth, SHARED[nth])
    }

    fn saw(&mut self, nth: usize, view: &Value) {
        self.sequences[nth] = view["sequence"].as_u64().unwrap_or(self.sequences[nth]);
    }

    /// A name that nothing else has.
    fn name(&mut self, of: &str) -> String {
        self.asked += 1;
        format!("{of}/{}-{}", self.name, self.asked)
    }
}

impl Action {
    fn sent(&self, life: &Life<'_>) -> Told {
        let Self { entity, name, token, expected } = self;
        let request = format!("POST /v1/entities/{entity}/actions/{name}");
        let body = json!({"params": {"token": token}, "expected_sequence": expected});
        let answer = ask(life.address, &request, &body);
        Told { entity: entity.clone(), what: What::Act(name), token: token.clone(), answer }
    }
}

/// What an answer says; null for a refusal, and none where there was no answer, or the journal did not
/// respond.
fn said(answer: &Answer) -> Option<Value> {
    match answer {
        _ if answer.is_unavailable() => None,
        Answer::Done(said) => Some(said.clone()),
        Answer::Refused(_) => Some(Value::Null),
        Answer::Lost => None,
    }
}
