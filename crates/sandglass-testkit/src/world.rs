//! What a handler meets in place of the world: the answers of its case, and a note of what it
//! asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_host::{
    Answer as Answering, Answered, Ask, AskError, Asks, Destinations, HttpClient, HttpError,
    Limits, Request, Response, Secret, Secrets, Signal, Signals,
};
use sandglass_model::Sequence;
use serde_json::{Value, json};

use crate::answer::{Answer, Call, Reply};
use crate::clock::pass;

/// Largest body of a request that is taken; a handler sends what it was given, or less.
const BODY_MAX_BYTES: u64 = 16 << 20;
/// Most notes of one kind that are kept of a run; all are counted by the host's report.
const NOTES_MAX: usize = 1_000;

/// The world of the case that runs.
#[derive(Debug, Default)]
pub(crate) struct World(Mutex<Script>);

/// What is scripted, and what came.
#[derive(Debug, Default)]
struct Script {
    answers: Vec<Scripted>,
    secrets: BTreeMap<String, String>,
    met: Met,
}

#[derive(Debug)]
struct Scripted {
    answer: Answer,
    used: u32,
}

/// What a handler did to its world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Met {
    /// The requests: `METHOD URL`.
    pub(crate) requests: Vec<String>,
    pub(crate) progress: Vec<Value>,
    pub(crate) status: Option<String>,
    /// The bodies of the requests that were sent: JSON, or else a text.
    pub(crate) bodies: Vec<Value>,
    /// The asks.
    pub(crate) asks: Vec<Value>,
    /// Requests to hosts that aren't granted.
    pub(crate) denied: Vec<String>,
    /// Calls that no answer was for.
    pub(crate) unanswered: Vec<String>,
}

impl World {
    pub(crate) fn begin(&self, answers: &[Answer], secrets: &BTreeMap<String, String>) {
        let scripted = |answer: &Answer| Scripted { answer: answer.clone(), used: 0 };
        *self.lock() = Script {
            answers: answers.iter().map(scripted).collect(),
            secrets: secrets.clone(),
            met: Met::default(),
        };
    }

    /// What came, and which answers nobody wanted, or not as often as was said: with how often
    /// each was wanted.
    pub(crate) fn end(&self) -> (Met, Vec<(Answer, u32)>) {
        let script = std::mem::take(&mut *self.lock());
        let left = script
            .answers
            .into_iter()
            .filter(|scripted| scripted.answer.times.is_some_and(|times| scripted.used < times));
        (script.met, left.map(|scripted| (scripted.answer, scripted.used)).collect())
    }

    /// The next answer to a call that `fits`.
    fn next(&self, fits: impl Fn(&Call) -> bool) -> Option<Answer> {
        let mut script = self.lock();
        let has_some =
            |scripted: &Scripted| scripted.answer.times.is_none_or(|times| scripted.used < times);
        let found = script
            .answers
            .iter_mut()
            .find(|scripted| has_some(scripted) && fits(&scripted.answer.to));
        found.map(|scripted| {
            scripted.used = scripted.used.saturating_add(1);
            scripted.answer.clone()
        })
    }

    /// What the host function `name` answers.
    pub(crate) async fn call(&self, name: &str) -> Result<Value, String> {
        let Some(answer) = self.next(|call| call.is_function(name)) else {
            self.unanswered(name.to_owned());
            return Err(format!("no answer to {name} is scripted"));
        };
        match replied(answer).await {
            Reply::Value(value) => Ok(value),
            Reply::Error(why) => Err(why),
            other => Err(no_such(&other, "a host function")),
        }
    }

    fn unanswered(&self, call: String) {
        keep(&mut self.lock().met.unanswered, call);
    }

    fn lock(&self) -> MutexGuard<'_, Script> {
        // Each change is made whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep<T>(notes: &mut Vec<T>, note: T) {
    if notes.len() < NOTES_MAX {
        notes.push(note);
    }
}

/// The reply, when its time has come.
async fn replied(answer: Answer) -> Reply {
    pass(answer.after).await;
    if answer.reply == Reply::Never {
        return std::future::pending().await;
    }
    answer.reply
}

/// Hosts want clients of their own, so this is one.
#[derive(Debug)]
pub(crate) struct Shared(pub(crate) Arc<World>);

impl HttpClient for Shared {
    fn send<'a>(
        &'a self,
        request: Request,
        destinations: &'a Destinations,
        limits: Limits,
        _: &'a str,
    ) -> Answering<'a, Result<Response, HttpError>> {
        Box::pin(async move {
            // A fragment is for who asks, and never sent.
            let url = request.url().split('#').next().unwrap_or_default().to_owned();
            let method = request.method().to_owned();
            let called = format!("{method} {url}");
            if let Err(denied) = destinations.allow(&request) {
                let mut script = self.0.lock();
                keep(&mut script.met.requests, format!("{called} (not granted)"));
                keep(&mut script.met.denied, called);
                return Err(denied);
            }
            keep(&mut self.0.lock().met.requests, called.clone());
            // It is sent whole before anything is answered, as by most servers.
            let sending = request.into_body(BODY_MAX_BYTES);
            let body = limits.bound(sending).await?;
            keep(&mut self.0.lock().met.bodies, body_of(&body));
            let Some(answer) = self.0.next(|call| call.is_request(&method, &url)) else {
                let why = format!("no answer to {called} is scripted");
                self.0.unanswered(called);
                return Err(HttpError::Transport(why));
            };
            let answering = async { Ok(replied(answer).await) };
            match limits.bound(answering).await? {
                Reply::Response { body, .. } if body.len() as u64 > limits.response_bytes => {
                    Err(HttpError::TooLarge(limits.response_bytes))
                }
                Reply::Response { status, headers, body } => Ok(Response { status, headers, body }),
                Reply::Error(why) => Err(HttpError::Transport(why)),
                other => Err(HttpError::Transport(no_such(&other, "a request"))),
            }
        })
    }
}

impl Secrets for Shared {
    fn secret<'a>(&'a self, name: &'a str) -> Answering<'a, Option<Secret>> {
        Box::pin(async move {
            if let Some(answer) = self.0.next(|call| call.is_secret(name)) {
                return match replied(answer).await {
                    Reply::Secret(value) => value.map(Secret::new),
                    _ => None,
                };
            }
            let value = self.0.lock().secrets.get(name).cloned();
            if value.is_none() {
                self.0.unanswered(format!("secret {name}"));
            }
            value.map(Secret::new)
        })
    }
}

impl Asks for Shared {
    fn knows(&self, entity_type: &str, action: &str) -> bool {
        let answers = &self.0.lock().answers;
        answers.iter().any(|scripted| scripted.answer.to.may_be_asked(entity_type, action))
    }

    fn ask(&self, ask: Ask) -> Answering<'static, Result<Answered, AskError>> {
        let world = Arc::clone(&self.0);
        Box::pin(async move {
            let (target, action) = (ask.target.to_string(), ask.action);
            let asked = json!({ "ask": format!("{target}.{action}"), "params": ask.params });
            keep(&mut world.lock().met.asks, asked);
            let Some(answer) = world.next(|call| call.is_ask(&target, &action)) else {
                let called = format!("ask {target}.{action}");
                let why = format!("no answer to {called} is scripted");
                world.unanswered(called);
                return Err(AskError::UnknownTarget(why));
            };
            match replied(answer).await {
                Reply::Asked { state, fields } => {
                    Ok(Answered { sequence: Sequence(1), state, fields })
                }
                Reply::Error(why) => Err(ask_error(&why)),
                other => Err(AskError::Refused(no_such(&other, "an ask"))),
            }
        })
    }
}

/// A body as cases say it: the JSON that it is, or else its text.
fn body_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(bytes).into_owned()))
}

/// An error of an ask: of the kind that `why` begins with, as guests read it, and else a refusal.
fn ask_error(why: &str) -> AskError {
    let (kind, message) = why.split_once(':').unwrap_or((why, ""));
    let message = message.trim().to_owned();
    match kind.trim() {
        "ask_invalid" => AskError::Invalid(message),
        "ask_not_allowed" => AskError::NotAllowed(message),
        "ask_unknown_target" => AskError::UnknownTarget(message),
        "ask_cycle" => AskError::Cycle,
        "ask_too_deep" => AskError::TooDeep(8),
        "ask_timed_out" => AskError::TimedOut,
        "ask_cut_short" => AskError::CutShort(message),
        "ask_unavailable" => AskError::Unavailable(message),
        "ask_refused" => AskError::Refused(message),
        _ => AskError::Refused(why.to_owned()),
    }
}

/// What is said of a reply that belongs to another kind of call.
fn no_such(reply: &Reply, what: &str) -> String {
    format!("the case answers {what} with {reply:?}, which is none for it")
}

impl Signals for Shared {
    fn signal(&self, signal: Signal) {
        let mut script = self.0.lock();
        match signal {
            Signal::Progress(value) => keep(&mut script.met.progress, value),
            Signal::Status(text) => script.met.status = Some(text),
            Signal::Heartbeat => {}
        }
    }
}
