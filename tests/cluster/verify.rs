//! Whether what was observed is what the documentation promises.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_model::{Decision, DispatchId, Event, OutcomeKind, TransitionCause, WallTime};
use serde_json::Value;

use crate::history::{
    Answer, Effect, Happened, Kind, Life, Observed, Request, Try, Violation, What,
};
use crate::{handlers, requests, timers};

/// How much later than its host's lease an effect may begin.
pub(crate) const EFFECT_GRACE: Duration = Duration::from_secs(1);
/// How long after the end of a fault its consequences may be recorded.
pub(crate) const CONSEQUENCES_WITHIN: Duration = Duration::from_secs(30);

/// How long a request may take during a planned move if it does not wait for handlers. The goal is shorter;
/// this is for any machine.
const ACCEPTED_IN_MOVE: Duration = Duration::from_secs(2);

/// The rules of the specs, which decide what is right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How long timers run.
    pub(crate) timer: Duration,
    /// How late a timer may fire if nothing fails.
    pub(crate) timer_grace: Duration,
    /// How many effects a handler has.
    pub(crate) calls: u32,
    /// The integration whose handlers run again after a crash.
    pub(crate) reruns: &'static str,
    /// The action that starts a timer.
    pub(crate) starts_timer: &'static str,
}

/// A record of a request.
#[derive(Clone, Debug)]
pub(crate) struct Done<'a> {
    pub(crate) entity: String,
    pub(crate) action: &'a str,
    pub(crate) sequence: u64,
    pub(crate) state: &'a str,
    /// The handlers that it started.
    pub(crate) started: Vec<DispatchId>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) at: WallTime,
    pub(crate) outcome: OutcomeKind,
    pub(crate) decision: &'a Decision,
}

/// An attempt of a dispatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) number: u32,
    pub(crate) at: WallTime,
    pub(crate) integration: &'a str,
    pub(crate) end: Option<End<'a>>,
}

/// The records by what they are looked for with.
#[derive(Debug, Default)]
pub(crate) struct Index<'a> {
    pub(crate) created: BTreeMap<String, usize>,
    /// The state of an entity at a sequence.
    pub(crate) states: BTreeMap<(String, u64), &'a str>,
    pub(crate) tokens: BTreeMap<&'a str, Vec<Done<'a>>>,
    pub(crate) attempts: BTreeMap<DispatchId, Vec<Attempt<'a>>>,
    /// When the timer of an entity was started, and when it fired.
    pub(crate) timers: BTreeMap<String, (WallTime, Vec<WallTime>)>,
    found: Vec<Violation>,
}

/// All violations.
pub(crate) fn verify(observed: &Observed, rules: &Rules) -> Vec<Violation> {
    let mut index = Index::of(observed, rules);
    let mut found = std::mem::take(&mut index.found);
    requests::verify(observed, &index, &mut found);
    handlers::verify(observed, &index, rules, &mut found);
    timers::verify(observed, &index, rules, &mut found);
    found
}

impl Violation {
    pub(crate) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }
}

impl<'a> Index<'a> {
    fn of(observed: &'a Observed, rules: &Rules) -> Self {
        let mut index = Self::default();
        let mut sequences: BTreeMap<String, u64> = BTreeMap::new();
        for (partition, record) in &observed.records {
            let Some(entity) = record.entity.as_ref().map(ToString::to_string) else { continue };
            let sequence = record.sequence.0;
            let place = || format!("{entity}, position {} of {partition}", record.position.0);
            let before = sequences.get(&entity).copied();
            let expected = match &record.event {
                Event::Created { .. } => before.is_none().then_some(0),
                Event::Transition { .. } => before.map(|before| before + 1),
                _ => before,
            };
            if expected != Some(sequence) {
                let what = format!("{}: sequence {sequence} after {before:?}", place());
                index.found.push(Violation::new(Kind::BrokenSequence, what));
            }
            sequences.insert(entity.clone(), sequence);
            match &record.event {
                Event::Created { state, .. } => {
                    *index.created.entry(entity.clone()).or_default() += 1;
                    index.states.insert((entity, sequence), state);
                }
                Event::Transition { action, params, to, cause, .. } => {
                    index.states.insert((entity.clone(), sequence), to);
                    if action == rules.starts_timer {
                        index.timers.insert(entity.clone(), (record.at, Vec::new()));
                    }
                    let token = params.get("token").and_then(Value::as_str);
                    let (Some(token), TransitionCause::Requested) = (token, cause) else {
                        continue;
                    };
                    let (started, state) = (Vec::new(), &**to);
                    let done = Done { entity, action, sequence, state, started };
                    index.tokens.entry(token).or_default().push(done);
                }
                Event::Dispatched(run) => {
                    let attempt = Attempt {
                        number: run.attempt,
                        at: record.at,
                        integration: &run.integration,
                        end: None,
                    };
                    index.attempts.entry(run.dispatch).or_default().push(attempt);
                    let token = run.params.get("token").and_then(Value::as_str);
                    let done = token.and_then(|token| index.tokens.get_mut(token)?.last_mut());
                    if let (1, Some(done)) = (run.attempt, done) {
                        done.started.push(run.dispatch);
                    }
                }
                Event::Ended(ended) => {
                    let (outcome, decision) = (ended.outcome.kind(), &ended.decision);
                    let end = End { at: record.at, outcome, decision };
                    let attempts = index.attempts.entry(ended.dispatch).or_default();
                    match attempts.iter_mut().find(|one| one.number == ended.attempt) {
                        Some(attempt) if attempt.end.is_none() => attempt.end = Some(end),
                        other => {
                            let (what, id) = (place(), (ended.dispatch, ended.attempt));
                            let what = format!("{what}: {id:?} ends: {other:?}");
                            index.found.push(Violation::new(Kind::FalseEnd, what));
                        }
                    }
                }
                Event::StateIdle { taken: true, .. } => match index.timers.get_mut(&entity) {
                    Some((_, fired)) => fired.push(record.at),
                    None => index.found.push(Violation::new(Kind::TimerTwice, place())),
                },
                _ => {}
            }
        }
        index
    }
}

impl Observed {
    /// Whether this is a call that was checked under a valid lease before its process was stopped, and sent
    /// when it continued. Nothing can prevent that.
    pub(crate) fn was_frozen_in_call(&self, effect: &Effect, began: Option<WallTime>) -> bool {
        let stops = |fault: &Happened| {
            let stop = fault.frozen.filter(|stop| stop.host == effect.life.host)?;
            let until = stop.continued.after(EFFECT_GRACE);
            (fault.ended <= effect.at && effect.at <= until).then_some(stop)
        };
        let Some(stop) = self.faults.iter().find_map(stops) else { return false };
        let before = if effect.call == 1 {
            began
        } else {
            let id = |one: &Effect| (one.dispatch, one.attempt, one.call);
            let previous = (effect.dispatch, effect.attempt, effect.call - 1);
            let previous = self.effects.iter().find(|one| id(one) == previous);
            previous.and_then(|previous| previous.answered)
        };
        before.is_some_and(|before| before <= stop.stopped)
    }
}

/// How many requests have each outcome, and how many effects there were.
pub(crate) fn count(observed: &Observed) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut add = |name: String| *counts.entry(name).or_default() += 1;
    for one in observed.requests.iter().flat_map(|request| &request.tries) {
        add(match &one.answer {
            Answer::Done(_) => "done".to_owned(),
            Answer::Refused(code) => format!("refused {code}"),
            Answer::Unknown(code) => format!("unknown {code}"),
            Answer::NotSent => "not sent".to_owned(),
            Answer::Undocumented(_) => "undocumented".to_owned(),
        });
    }
    counts
}

/// Requests that failed while an operator moved entities: everything but an answer, and refusals by the
/// entity itself. A try that was in flight during an unplanned fault, too, does not count, because that fault
/// may have failed it, unless the try had taken too long before that.
pub(crate) fn failed_in_moves(observed: &Observed) -> Vec<Violation> {
    let (moves, unplanned): (Vec<&Happened>, Vec<&Happened>) =
        observed.faults.iter().partition(|one| one.is_planned);
    let move_of = |request: &Request, one: &Try| {
        let late = one.sent.after(ACCEPTED_IN_MOVE);
        let due = if request.waits { one.finished } else { one.finished.min(late) };
        let is_during =
            |until: WallTime, fault: &Happened| one.sent <= fault.ended && fault.begun <= until;
        let is_explained = unplanned.iter().any(|fault| is_during(due, fault));
        moves.iter().find(|fault| is_during(one.finished, fault)).filter(|_| !is_explained)
    };
    let mut failed = Vec::new();
    for request in &observed.requests {
        for one in &request.tries {
            let is_wrong = match &one.answer {
                Answer::Done(_) => false,
                Answer::Unknown(_) | Answer::Undocumented(_) | Answer::NotSent => true,
                Answer::Refused(_) => one.answer.is_passing(),
            };
            if let (true, Some(during)) = (is_wrong, move_of(request, one)) {
                let (request, sent, failed_at) = (describe(request), one.sent, one.finished);
                let Happened { what, begun, .. } = during;
                let what = format!(
                    "{request}; the try at {sent} failed at {failed_at}, during {what}, which began at {begun}"
                );
                failed.push(Violation::new(Kind::FailedInMove, what));
            }
        }
    }
    failed
}

/// For messages.
pub(crate) fn describe(request: &Request) -> String {
    let Request { token, entity, what, has_key, waits, tries } = request;
    let key = if *has_key { ", with a key" } else { "" };
    let waits = if *waits { ", waits for handlers" } else { "" };
    let tries: Vec<String> = tries
        .iter()
        .map(|one| format!("host {} at {}: {:?}", one.host, one.sent, one.answer))
        .collect();
    let what = match what {
        What::Create => "create",
        What::Look => "read",
        What::Act(action) => action,
    };
    format!("{token} ({what} {entity}{key}{waits}): {}", tries.join("; "))
}

impl std::fmt::Display for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {} in its life {}", self.host, self.start)
    }
}
