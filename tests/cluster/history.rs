//! What was observed: what clients sent and received, what the effect server received, and what failed.

use sandglass_model::{DispatchId, Record, WallTime};
use serde_json::Value;

use crate::http::Reply;

/// Codes of errors after which the request is certainly not done.
const REFUSALS: [&str; 8] = [
    "busy",
    "conflict",
    "entity_exists",
    "journal_unavailable",
    "not_taken",
    "owner_moving",
    "unavailable",
    "unknown_entity",
];
/// Codes of refusals that pass by themselves.
const PASSING: [&str; 4] = ["busy", "journal_unavailable", "owner_moving", "unavailable"];
/// Codes of errors after which the request may be done.
const UNKNOWN: [&str; 3] = ["outcome_unknown", "shutting_down", "timed_out"];

/// What a client learned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Done(Taken),
    /// It is not done, for the reason with this code.
    Refused(String),
    /// It may be done: a code, or `broken`.
    Unknown(String),
    /// It was not sent, because the host does not listen.
    NotSent,
    /// A response that the documentation does not allow.
    Undocumented(String),
}

/// What a response states of the entity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) sequence: u64,
    pub(crate) state: String,
    pub(crate) dispatches: Vec<DispatchId>,
    /// Whether all its handlers have ended, if the client waited for that.
    pub(crate) settled: Option<bool>,
}

impl Answer {
    pub(crate) fn of(reply: Reply) -> Self {
        match reply {
            Reply::Refused => Self::NotSent,
            Reply::Broken => Self::Unknown("broken".to_owned()),
            Reply::Complete(status, body) if status < 400 => match Taken::of(&body) {
                Some(taken) => Self::Done(taken),
                None => Self::Undocumented(format!("{status}: {body}")),
            },
            Reply::Complete(status, body) => match body["error"]["code"].as_str() {
                Some(code) if REFUSALS.contains(&code) => Self::Refused(code.to_owned()),
                Some(code) if UNKNOWN.contains(&code) => Self::Unknown(code.to_owned()),
                _ => Self::Undocumented(format!("{status}: {body}")),
            },
        }
    }

    pub(crate) const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// Whether it is not done, and may be done if it is sent again.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Refused(code) => PASSING.contains(&&**code),
            Self::NotSent => true,
            _ => false,
        }
    }
}

impl Taken {
    fn of(body: &Value) -> Option<Self> {
        let dispatches = body.get("dispatches").and_then(Value::as_array);
        let dispatches = dispatches.into_iter().flatten();
        let dispatches = dispatches.map(|id| id.as_str()?.parse().ok()).collect::<Option<_>>()?;
        Some(Self {
            sequence: body["sequence"].as_u64()?,
            state: body["state"].as_str()?.to_owned(),
            dispatches,
            settled: body["waited"]["settled"].as_bool(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Create,
    Act(&'static str),
    Look,
}

/// One time that a request was sent.
#[derive(Clone, Debug)]
pub(crate) struct Try {
    pub(crate) host: usize,
    pub(crate) sent: WallTime,
    pub(crate) finished: WallTime,
    pub(crate) answer: Answer,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Distinguishes it from all others; it is in the record of its transition.
    pub(crate) token: String,
    /// TYPE/ID.
    pub(crate) entity: String,
    pub(crate) what: What,
    /// Whether it had an `Idempotency-Key`, and was sent until it was acknowledged.
    pub(crate) has_key: bool,
    /// Whether its response waits until all handlers have ended.
    pub(crate) waits: bool,
    pub(crate) tries: Vec<Try>,
}

impl Request {
    /// The response that acknowledged it, and its time.
    pub(crate) fn done(&self) -> Option<(&Taken, WallTime)> {
        self.tries.iter().find_map(|one| match &one.answer {
            Answer::Done(taken) => Some((taken, one.finished)),
            _ => None,
        })
    }

    pub(crate) fn sent(&self) -> Option<WallTime> {
        self.tries.first().map(|one| one.sent)
    }
}

/// One life of a host: its index, and how often it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) host: usize,
    pub(crate) start: u32,
}

/// A request of a handler that arrived at the effect server.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) dispatch: DispatchId,
    pub(crate) attempt: u32,
    /// Its number within the attempt, from 1.
    pub(crate) call: u32,
    pub(crate) life: Life,
    pub(crate) at: WallTime,
    /// When its response was sent.
    pub(crate) answered: Option<WallTime>,
}

/// A time in which a host must not begin an effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    pub(crate) host: usize,
    pub(crate) from: WallTime,
    pub(crate) to: WallTime,
}

/// A host that was stopped by a signal. On a busy machine, to send one takes some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frozen {
    pub(crate) host: usize,
    /// When the signal that stops it had been sent.
    pub(crate) stopped: WallTime,
    /// When the signal that continues it had been sent.
    pub(crate) continued: WallTime,
}

/// A fault that happened.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) what: String,
    pub(crate) begun: WallTime,
    /// When its cause was over.
    pub(crate) ended: WallTime,
    /// Whether handlers may have been interrupted by it.
    pub(crate) may_interrupt: bool,
    /// Whether an operator does it, so that no request may fail.
    pub(crate) is_planned: bool,
    /// The host that did not execute in this time, and continued.
    pub(crate) frozen: Option<Frozen>,
    pub(crate) silences: Vec<Silence>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) requests: Vec<Request>,
    /// Each with its partition, in the order of each partition.
    pub(crate) records: Vec<(usize, Record)>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) faults: Vec<Happened>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An acknowledged request has no record.
    Lost,
    /// A request has more than one record.
    Doubled,
    /// A request that was refused, or not sent, has a record.
    RefusedButDone,
    /// A response that the documentation does not allow.
    Undocumented,
    /// A request with a key was never acknowledged.
    NeverAcknowledged,
    /// A response states something else than the records.
    FalseResponse,
    /// The sequences of an entity contradict the times of requests.
    OutOfOrder,
    /// An entity is created twice, or a sequence is missing or there twice.
    BrokenSequence,
    /// An attempt started that should not.
    FalseAttempt,
    /// An attempt ended twice, or without a start.
    FalseEnd,
    NeverEnded,
    /// An attempt ended by itself, but not well.
    UnexpectedEnd,
    /// An attempt was interrupted, and no fault explains it.
    Interrupted,
    /// An attempt had effects from two processes.
    SplitAttempt,
    /// One effect twice.
    RepeatedEffect,
    /// An effect of an attempt that has no record.
    UnrecordedEffect,
    /// An attempt completed without one of its effects.
    MissingEffect,
    /// An effect began after the end of its attempt was recorded.
    LateEffect,
    /// An effect began when its host had no lease.
    EffectWithoutLease,
    TimerLost,
    TimerTwice,
    TimerEarly,
    TimerLate,
    /// An entity accepted no action in time.
    Stuck,
    /// A partition has no live owner in time.
    NoOwner,
    /// A process panicked, or ended by itself.
    Ended,
    /// A request failed during a planned move.
    FailedInMove,
}

#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) what: String,
}
