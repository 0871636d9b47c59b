//! Advice on what to do about a handler that did not complete: what seems to be at fault, which
//! side effects may have happened, and whether a retry is worthwhile.

use sandglass_model::{
    CancelledBy, DeadlineOwner, Decision, DispatchId, Dispatched, Ended, FailureKind, Frame,
    LimitKind, Outcome, OutgoingRequest, RequestOutcome, Story, TrapKind,
};

use super::{Brief, Ending, Explanation, Host, Retryable};

/// A call counts as hung if it took at least this fraction (one in `HUNG_PART`) of the time.
const HUNG_PART: u64 = 4;

/// How often a failure must have been seen before to count as a habit.
const HABIT: u64 = 2;

/// A fact that says what to do next about a handler. Its `Display` is the sentence for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Advice<'a> {
    /// There is no record of its end.
    Unended(Unended),
    /// It timed out.
    TimedOut(TimeSpent<'a>),
    /// The budget that ran out was that of its asker.
    AskerTimedOut(Option<DispatchId>),
    /// The default deadline applied, because its spec declares none.
    DefaultDeadline,
    /// It failed.
    Failed(FailureKind),
    /// It trapped.
    Trapped(TrapKind, Place<'a>),
    /// It exceeded a limit.
    LimitExceeded(LimitKind, Place<'a>),
    /// It was rejected before its guest ran.
    Rejected,
    /// It was cancelled.
    Cancelled(CancelledBy),
    /// Its host ended while it ran.
    Interrupted,
    /// The last handler of another entity that it waited for.
    LastStarted(&'a Brief),
    /// What became of its requests.
    Requests(Requests<'a>),
    /// Whether a repetition is worthwhile.
    Repetition(Repetition<'a>),
}

/// What is known about a handler without a record of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unended {
    /// It has ended, but the record of its end cannot be read.
    EndUnreadable,
    /// Records after its dispatch cannot be read, and its end may be one of them.
    EndMayBeUnreadable,
    /// Records are damaged or missing.
    JournalDamaged,
    /// It is queued or running.
    InFlight,
    /// It was lost with its host.
    Lost,
    /// It was lost if its host no longer runs.
    MayBeLost,
    /// Its side effects are unknown.
    EffectsUnknown,
    /// The next start of its host ends it as interrupted, or reruns it.
    EndsAtStart,
    /// The next `sandglass run` ends it as interrupted.
    EndsAtRun,
}

/// What a handler did when it timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSpent<'a> {
    /// It was being instantiated.
    Instantiation,
    /// It waited for this action (`TYPE.ACTION`) of another entity.
    Ask(&'a str),
    /// It waited until another entity had recorded a signal of this grant (`TYPE.NAME`).
    Signal(&'a str),
    /// A call of this host function waited for the lease of the host, and never began.
    Parked(&'a str),
    /// It worked, and its requests were answered.
    AnsweredRequests(Place<'a>),
    /// It ran its own code.
    OwnCode {
        /// The number of its host calls, none of which hung.
        host_calls: u64,
        /// Where it was.
        place: Place<'a>,
    },
    /// It waited for the response to this request.
    HungRequest(&'a OutgoingRequest),
    /// It read the body of the response to this request.
    HungBody(&'a OutgoingRequest),
    /// It waited in this host function by its own choice.
    Poll(&'a str, Place<'a>),
    /// It waited for this host function.
    HungCall(&'a str),
}

/// What became of requests of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requests<'a> {
    /// The last one before the handler failed or trapped got no complete response.
    LastFailed(&'a OutgoingRequest),
    /// The last one before the handler failed or trapped was refused by the host.
    LastRefused(&'a OutgoingRequest),
    /// It is unknown whether these, which are not safe to repeat, were carried out.
    MayBeCarriedOut(Vec<&'a OutgoingRequest>),
    /// A retry would repeat these, which were answered and are not safe to repeat.
    WouldRepeat(Vec<&'a OutgoingRequest>),
    /// A retry would repeat this many that are not listed.
    WouldRepeatOmitted(u64),
    /// These were cut off, and are safe to repeat.
    SafeToRepeat(Vec<&'a OutgoingRequest>),
}

/// Whether and how a handler is executed once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition<'a> {
    /// It has later attempts.
    HasLaterAttempt,
    /// Its spec requests a rerun after a crash.
    Rerun,
    /// It is dispatched again when its session is resumed.
    WaitsForResume,
    /// It ended in the same way this many times before.
    Habit(u64),
    /// Another `sandglass run` may be worthwhile.
    Run(Precondition),
    /// A retry of this dispatch may be worthwhile, if the state of its entity allows it.
    Retry(Precondition, DispatchId, &'a Retryable),
}

/// What should be done before a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The cause should be fixed.
    Fix,
    /// It should be known which side effects happened.
    KnowEffects,
}

/// Where in its code a guest was, as far as the backtrace shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// There is no backtrace.
    Unknown,
    /// The module has neither names nor debug information.
    Unnamed,
    /// In the function of this frame.
    Frame(&'a Frame),
}

impl<'a> Place<'a> {
    fn of(ended: &'a Ended) -> Self {
        let frames = ended.frames();
        // Prefer frames of the author to frames of the standard library.
        let is_authors =
            |frame: &&Frame| frame.file.as_deref().is_some_and(|file| !file.starts_with("/rustc/"));
        let is_named = |frame: &&Frame| frame.file.is_some() || frame.function.is_some();
        match frames.iter().find(is_authors).or_else(|| frames.iter().find(is_named)) {
            Some(frame) => Self::Frame(frame),
            None if frames.is_empty() => Self::Unknown,
            None => Self::Unnamed,
        }
    }
}

impl Explanation {
    /// Advises what to do next, step by step. Empty for a handler that completed.
    #[must_use]
    pub fn advise(&self) -> Vec<Advice<'_>> {
        let Some(ending) = &self.ending else {
            return self.advise_unended();
        };
        let mut advice = Vec::new();
        advice.extend(last_request(&ending.ended).map(Advice::Requests));
        advice.extend(about(&self.dispatched, &ending.ended));
        advice.extend(self.last_started(&ending.ended));
        advice.extend(side_effects(&ending.ended).into_iter().map(Advice::Requests));
        advice.extend(self.repetition(ending).map(Advice::Repetition));
        advice
    }

    /// Advises about a handler that has not ended, or whose end has no record.
    fn advise_unended(&self) -> Vec<Advice<'_>> {
        let facts = match (&self.unread, self.host) {
            (Some(unread), _) if unread.has_ended() => {
                vec![Unended::EndUnreadable, Unended::JournalDamaged]
            }
            (Some(_), _) => vec![Unended::EndMayBeUnreadable, Unended::JournalDamaged],
            (None, Host::Alive) => vec![Unended::InFlight],
            (None, host) => vec![
                if host == Host::Gone { Unended::Lost } else { Unended::MayBeLost },
                Unended::EffectsUnknown,
                if self.is_one_run { Unended::EndsAtRun } else { Unended::EndsAtStart },
            ],
        };
        facts.into_iter().map(Advice::Unended).collect()
    }

    /// Where to look next if the handler died while it waited for another entity.
    fn last_started(&self, ended: &Ended) -> Option<Advice<'_>> {
        ended.dying_span.as_deref().filter(|span| span.starts_with("ask:"))?;
        self.started.listed.last().map(Advice::LastStarted)
    }

    /// Whether a retry is worthwhile.
    fn repetition(&self, ending: &Ending) -> Option<Repetition<'_>> {
        let Ending { ended, before, .. } = ending;
        if self.attempts.last().is_some_and(|last| last.attempt > ended.attempt) {
            return Some(Repetition::HasLaterAttempt);
        }
        let after = match &ended.outcome {
            Outcome::Completed(_) => return None,
            _ if ended.decision == Decision::Rerun => return Some(Repetition::Rerun),
            _ if ended.decision == Decision::Held => return Some(Repetition::WaitsForResume),
            _ if before.count >= HABIT => return Some(Repetition::Habit(before.count)),
            Outcome::TimedOut(_) | Outcome::Rejected(_) => Precondition::Fix,
            Outcome::Interrupted => Precondition::KnowEffects,
            _ => return None,
        };
        Some(match self.is_one_run {
            true => Repetition::Run(after),
            false => Repetition::Retry(after, self.dispatched.dispatch, &self.retryable),
        })
    }
}

/// The last request of a handler that failed or trapped, if it got no complete response.
fn last_request(ended: &Ended) -> Option<Requests<'_>> {
    if !matches!(ended.outcome, Outcome::Failed(_) | Outcome::Trapped(_)) {
        return None;
    }
    let last = ended.account.as_ref()?.story.requests.last()?;
    match last.outcome {
        RequestOutcome::Failed => Some(Requests::LastFailed(last)),
        RequestOutcome::Refused => Some(Requests::LastRefused(last)),
        _ => None,
    }
}

/// What the end itself says, and where to look.
fn about<'a>(dispatched: &Dispatched, ended: &'a Ended) -> Vec<Advice<'a>> {
    let place = Place::of(ended);
    vec![match &ended.outcome {
        Outcome::Completed(_) => return Vec::new(),
        Outcome::TimedOut(_) => {
            let mut advice = vec![Advice::TimedOut(time_spent(ended))];
            if ended.deadline.owner == DeadlineOwner::Parent {
                advice.push(Advice::AskerTimedOut(dispatched.asker));
            } else if dispatched.budget_defaulted {
                advice.push(Advice::DefaultDeadline);
            }
            return advice;
        }
        Outcome::Failed(failure) => Advice::Failed(failure.kind),
        Outcome::Trapped(trap) => Advice::Trapped(trap.kind, place),
        Outcome::Limit(breach) => Advice::LimitExceeded(breach.kind, place),
        Outcome::Rejected(_) => Advice::Rejected,
        Outcome::Cancelled(cancelled) => Advice::Cancelled(cancelled.by),
        Outcome::Interrupted => Advice::Interrupted,
    }]
}

/// What was running at the timeout, and whether that hung.
fn time_spent(ended: &Ended) -> TimeSpent<'_> {
    let span = ended.dying_span.as_deref().unwrap_or("guest");
    let story = ended.account.as_deref().map(|account| &account.story);
    let requests = story.map_or(&[][..], |story| &story.requests);
    let last_call = story.and_then(|story| story.calls.last());
    if let Some(asked) = span.strip_prefix("ask:") {
        return TimeSpent::Ask(asked);
    }
    if let Some(target) = span.strip_prefix("signal:") {
        return TimeSpent::Signal(target);
    }
    if let Some(function) = span.strip_prefix("parked:") {
        return TimeSpent::Parked(function);
    }
    if span == "instantiate" {
        return TimeSpent::Instantiation;
    }
    let place = Place::of(ended);
    // A call that hung took a large part of the time. A call that had just begun at the deadline
    // did not.
    let hung_us = ended.deadline.elapsed_ms.saturating_mul(1000) / HUNG_PART;
    let is_busy = last_call.is_some_and(|last| last.duration_us < hung_us);
    if span == "guest" || is_busy {
        // It worked until its end: it is slow, or in a loop.
        let is_answered = |one: &OutgoingRequest| one.outcome == RequestOutcome::Answered;
        return match requests.iter().any(is_answered) {
            true => TimeSpent::AnsweredRequests(place),
            false => TimeSpent::OwnCode { host_calls: ended.host_calls.count, place },
        };
    }
    let hung = requests.iter().rfind(|one| one.outcome == RequestOutcome::Unfinished);
    if let Some(hung) = hung {
        return TimeSpent::HungRequest(hung);
    }
    let reads = span.contains("incoming-response.read") || span.contains("input-stream.");
    match requests.last() {
        Some(last) if reads => TimeSpent::HungBody(last),
        _ if span.ends_with("poll_oneoff") || span.contains("wasi:io/poll") => {
            TimeSpent::Poll(span, place)
        }
        _ => TimeSpent::HungCall(span),
    }
}

/// Which side effects requests of the handler may have had.
fn side_effects(ended: &Ended) -> Vec<Requests<'_>> {
    let Some(account) = &ended.account else { return Vec::new() };
    if matches!(ended.outcome, Outcome::Completed(_)) {
        return Vec::new();
    }
    let Story { requests, requests_omitted, .. } = &account.story;
    let cut = [RequestOutcome::Unfinished, RequestOutcome::GivenUp, RequestOutcome::Failed];
    let (mut unsure, mut repeatable, mut answered) = (Vec::new(), Vec::new(), Vec::new());
    for one in requests {
        let is_cut = cut.contains(&one.outcome);
        match one.is_idempotent() {
            true if is_cut => repeatable.push(one),
            true => {}
            // The status shows whether the request succeeded, even if the body hung.
            false if one.outcome == RequestOutcome::Answered || one.status.is_some() => {
                answered.push(one);
            }
            false if is_cut => unsure.push(one),
            false => {}
        }
    }
    let is_safe = unsure.is_empty() && !repeatable.is_empty();
    let mut effects = Vec::new();
    if !unsure.is_empty() {
        effects.push(Requests::MayBeCarriedOut(unsure));
    }
    if !answered.is_empty() {
        effects.push(Requests::WouldRepeat(answered));
    }
    if *requests_omitted > 0 {
        effects.push(Requests::WouldRepeatOmitted(*requests_omitted));
    } else if is_safe {
        effects.push(Requests::SafeToRepeat(repeatable));
    }
    effects
}
