//! The scripted world of a case: answers the handler's calls, and records them for the comparison.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_host::{
    Answer as BoxedAnswer, Answered, Ask, AskError, Asks, CallOrigin, EntitySignal, HttpCall,
    HttpClient, HttpError, Response, Secret, Secrets, Signal, SignalError, Signals,
};
use sandglass_model::Sequence;
use serde_json::{Value, json};

use crate::answer::{Answer, Call, Reply};
use crate::clock::sleep;

/// Largest accepted body of a request. Handlers under test send less.
const BODY_MAX_BYTES: u64 = 16 << 20;
/// Most recorded observations of one kind per handler. The host's report counts all of them.
const OBSERVATIONS_MAX: usize = 1_000;

/// The world of the running case.
#[derive(Debug, Default)]
pub(crate) struct World(Mutex<Script>);

/// What is scripted, and what was observed.
#[derive(Debug, Default)]
struct Script {
    answers: Vec<ScriptedAnswer>,
    secrets: BTreeMap<String, String>,
    observed: Observed,
}

#[derive(Debug)]
struct ScriptedAnswer {
    answer: Answer,
    used: u32,
}

/// The calls that a handler made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// The requests: `METHOD URL`.
    pub(crate) requests: Vec<String>,
    pub(crate) progress: Vec<Value>,
    pub(crate) status: Option<String>,
    /// The bodies of the requests that were sent: as JSON if they are JSON, otherwise as text.
    pub(crate) bodies: Vec<Value>,
    pub(crate) asks: Vec<Value>,
    pub(crate) signals: Vec<Value>,
    /// Requests to hosts that are not granted.
    pub(crate) denied: Vec<String>,
    /// Calls without a matching answer.
    pub(crate) unanswered: Vec<String>,
}

impl World {
    pub(crate) fn begin(&self, answers: &[Answer], secrets: &BTreeMap<String, String>) {
        let scripted = |answer: &Answer| ScriptedAnswer { answer: answer.clone(), used: 0 };
        *self.lock() = Script {
            answers: answers.iter().map(scripted).collect(),
            secrets: secrets.clone(),
            observed: Observed::default(),
        };
    }

    /// Returns the observed calls, and the answers that were used less often than scripted, with how
    /// often they were used.
    pub(crate) fn end(&self) -> (Observed, Vec<(Answer, u32)>) {
        let script = std::mem::take(&mut *self.lock());
        let unused = script
            .answers
            .into_iter()
            .filter(|scripted| scripted.answer.times.is_some_and(|times| scripted.used < times));
        (script.observed, unused.map(|scripted| (scripted.answer, scripted.used)).collect())
    }

    /// Takes the next answer to a call that `matches`.
    fn next(&self, matches: impl Fn(&Call) -> bool) -> Option<Answer> {
        let mut script = self.lock();
        let is_available = |scripted: &ScriptedAnswer| {
            scripted.answer.times.is_none_or(|times| scripted.used < times)
        };
        let found = script
            .answers
            .iter_mut()
            .find(|scripted| is_available(scripted) && matches(&scripted.answer.to));
        found.map(|scripted| {
            scripted.used = scripted.used.saturating_add(1);
            scripted.answer.clone()
        })
    }

    /// Returns the scripted value of the host function `name`.
    pub(crate) async fn call(&self, name: &str) -> Result<Value, String> {
        let Some(answer) = self.next(|call| call.matches_function(name)) else {
            self.record_unanswered(name.to_owned());
            return Err(format!("no answer to {name} is scripted"));
        };
        match reply(answer).await {
            Reply::Value(value) => Ok(value),
            Reply::Error(why) => Err(why),
            other => Err(wrong_reply(&other, "a host function")),
        }
    }

    fn record_unanswered(&self, call: String) {
        push_bounded(&mut self.lock().observed.unanswered, call);
    }

    fn lock(&self) -> MutexGuard<'_, Script> {
        // A poisoned lock is harmless, because no code can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push_bounded<T>(list: &mut Vec<T>, item: T) {
    if list.len() < OBSERVATIONS_MAX {
        list.push(item);
    }
}

/// Waits for the delay of an answer, and returns its reply.
async fn reply(answer: Answer) -> Reply {
    sleep(answer.after).await;
    if answer.reply == Reply::Never {
        return std::future::pending().await;
    }
    answer.reply
}

/// A handle to the world that implements the traits of the host.
#[derive(Debug)]
pub(crate) struct SharedWorld(pub(crate) Arc<World>);

impl HttpClient for SharedWorld {
    fn send<'a>(&'a self, call: HttpCall<'a>) -> BoxedAnswer<'a, Result<Response, HttpError>> {
        let HttpCall { request, destinations, limits, .. } = call;
        Box::pin(async move {
            // A fragment is never sent to the server.
            let url = request.url().split('#').next().unwrap_or_default().to_owned();
            let method = request.method().to_owned();
            let line = format!("{method} {url}");
            if let Err(denied) = destinations.allow(&request) {
                let mut script = self.0.lock();
                push_bounded(&mut script.observed.requests, format!("{line} (not granted)"));
                push_bounded(&mut script.observed.denied, line);
                return Err(denied);
            }
            push_bounded(&mut self.0.lock().observed.requests, line.clone());
            // The whole body is read before the answer, as most servers do.
            let sending = request.into_body(BODY_MAX_BYTES);
            let body = limits.bound(sending).await?;
            push_bounded(&mut self.0.lock().observed.bodies, body_value(&body));
            let Some(answer) = self.0.next(|call| call.matches_request(&method, &url)) else {
                let why = format!("no answer to {line} is scripted");
                self.0.record_unanswered(line);
                return Err(HttpError::Transport(why));
            };
            let answering = async { Ok(reply(answer).await) };
            match limits.bound(answering).await? {
                Reply::Response { body, .. } if body.len() as u64 > limits.response_bytes => {
                    Err(HttpError::TooLarge(limits.response_bytes))
                }
                Reply::Response { status, headers, body } => Ok(Response { status, headers, body }),
                Reply::Error(why) => Err(HttpError::Transport(why)),
                other => Err(HttpError::Transport(wrong_reply(&other, "a request"))),
            }
        })
    }
}

impl Secrets for SharedWorld {
    fn secret<'a>(&'a self, name: &'a str, _: CallOrigin<'a>) -> BoxedAnswer<'a, Option<Secret>> {
        Box::pin(async move {
            if let Some(answer) = self.0.next(|call| call.matches_secret(name)) {
                return match reply(answer).await {
                    Reply::Secret(value) => value.map(Secret::new),
                    _ => None,
                };
            }
            let value = self.0.lock().secrets.get(name).cloned();
            if value.is_none() {
                self.0.record_unanswered(format!("secret {name}"));
            }
            value.map(Secret::new)
        })
    }
}

impl Asks for SharedWorld {
    fn knows(&self, entity_type: &str, action: &str) -> bool {
        let answers = &self.0.lock().answers;
        answers.iter().any(|scripted| scripted.answer.to.may_match_ask(entity_type, action))
    }

    fn ask(&self, ask: Ask) -> BoxedAnswer<'static, Result<Answered, AskError>> {
        let world = Arc::clone(&self.0);
        Box::pin(async move {
            let (target, action) = (ask.target.to_string(), ask.action);
            let asked = json!({ "ask": format!("{target}.{action}"), "params": ask.params });
            push_bounded(&mut world.lock().observed.asks, asked);
            let Some(answer) = world.next(|call| call.matches_ask(&target, &action)) else {
                let called = format!("ask {target}.{action}");
                let why = format!("no answer to {called} is scripted");
                world.record_unanswered(called);
                return Err(AskError::UnknownTarget(why));
            };
            match reply(answer).await {
                Reply::Asked { state, fields } => {
                    Ok(Answered { sequence: Sequence(1), state, fields })
                }
                Reply::Error(why) => Err(parse_ask_error(&why)),
                other => Err(AskError::Refused(wrong_reply(&other, "an ask"))),
            }
        })
    }

    fn signal(&self, signal: EntitySignal) -> BoxedAnswer<'static, Result<(), SignalError>> {
        let world = Arc::clone(&self.0);
        Box::pin(async move {
            let EntitySignal { target, name, payload } = signal;
            let target = target.to_string();
            let mut sent = json!({ "signal": format!("{target}.{name}") });
            if !payload.is_null() {
                sent["payload"] = payload;
            }
            push_bounded(&mut world.lock().observed.signals, sent);
            let Some(answer) = world.next(|call| call.matches_signal(&target, &name)) else {
                return Ok(());
            };
            match reply(answer).await {
                Reply::Recorded => Ok(()),
                Reply::Error(why) => Err(parse_signal_error(&why)),
                other => Err(SignalError::Refused(wrong_reply(&other, "a signal"))),
            }
        })
    }
}

/// Parses an error of a signal in the form that guests see, `KIND: MESSAGE`. Other text is a refusal.
fn parse_signal_error(why: &str) -> SignalError {
    let (kind, message) = why.split_once(':').unwrap_or((why, ""));
    let message = message.trim().to_owned();
    match kind.trim() {
        "signal_invalid" => SignalError::Invalid(message),
        "signal_not_allowed" => SignalError::NotAllowed(message),
        "signal_unknown_target" => SignalError::UnknownTarget(message),
        "signal_timed_out" => SignalError::TimedOut(message),
        "signal_cut_short" => SignalError::CutShort(message),
        "signal_unavailable" => SignalError::Unavailable(message),
        "signal_refused" => SignalError::Refused(message),
        _ => SignalError::Refused(why.to_owned()),
    }
}

/// A body in the form of an expectation: as JSON if it is JSON, otherwise as text.
fn body_value(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(bytes).into_owned()))
}

/// Parses an error of an ask in the form that guests see, `KIND: MESSAGE`. Other text is a refusal.
fn parse_ask_error(why: &str) -> AskError {
    let (kind, message) = why.split_once(':').unwrap_or((why, ""));
    let message = message.trim().to_owned();
    match kind.trim() {
        "ask_invalid" => AskError::Invalid(message),
        "ask_not_allowed" => AskError::NotAllowed(message),
        "ask_unknown_target" => AskError::UnknownTarget(message),
        "ask_cycle" => AskError::Cycle,
        "ask_too_deep" => AskError::TooDeep(8),
        "ask_timed_out" => AskError::TimedOut(message),
        "ask_cut_short" => AskError::CutShort(message),
        "ask_unavailable" => AskError::Unavailable(message),
        "ask_refused" => AskError::Refused(message),
        _ => AskError::Refused(why.to_owned()),
    }
}

/// The error for a reply that belongs to another kind of call.
fn wrong_reply(reply: &Reply, call: &str) -> String {
    format!("the case answers {call} with {reply:?}, which is a reply to another kind of call")
}

impl Signals for SharedWorld {
    fn signal(&self, signal: Signal) {
        let mut script = self.0.lock();
        match signal {
            Signal::Progress(value) => push_bounded(&mut script.observed.progress, value),
            Signal::Status(text) => script.observed.status = Some(text),
            Signal::Heartbeat => {}
        }
    }
}
