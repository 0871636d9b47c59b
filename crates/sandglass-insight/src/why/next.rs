//! Advice on what to do about a handler that did not complete: what seems to be at fault, which
//! side effects may have happened, and whether a retry is worthwhile.

use sandglass_model::{
    CancelledBy, DeadlineOwner, Decision, Dispatched, Ended, FailureKind, Frame, LimitKind,
    Outcome, OutgoingRequest, RequestOutcome, Story, TrapKind,
};

use super::{Ending, Explanation, Host, Retryable};

/// A call counts as hung if it took at least this fraction (one in `HUNG_PART`) of the time.
const HUNG_PART: u64 = 4;

/// How often a failure must have been seen before to count as a habit.
const HABIT: u64 = 2;

/// What to do about records that cannot be read.
const DAMAGED: &str = "`sandglass log` says which records are damaged or missing; a backup of the \
                       journal may have them";

impl Explanation {
    /// What to do next: one sentence per step, in order. Empty for a handler that completed.
    #[must_use]
    pub fn next(&self) -> Vec<String> {
        let Some(ending) = &self.ending else {
            return self.unended_next();
        };
        let mut next = Vec::new();
        next.extend(dependency(&ending.ended));
        next.extend(about(&self.dispatched, &ending.ended));
        next.extend(self.waited_for());
        next.extend(landed(&ending.ended));
        next.extend(self.again(ending));
        next
    }

    /// The advice for a handler that has not ended, or whose end has no record.
    fn unended_next(&self) -> Vec<String> {
        match &self.unread {
            Some(unread) if unread.has_ended() => {
                return vec![
                    "it has ended, as the transition that followed shows; the record that says \
                     how can't be read"
                        .to_owned(),
                    DAMAGED.to_owned(),
                ];
            }
            Some(_) => {
                return vec![
                    "records behind its dispatch can't be read: its end may be one of them, so \
                     that nobody can tell whether it has ended"
                        .to_owned(),
                    DAMAGED.to_owned(),
                ];
            }
            None => {}
        }
        let lost = match (self.host, self.is_one_run) {
            (Host::Alive, _) => {
                return vec![
                    "it is queued or runs: `sandglass top`, or `/v1/live` of its daemon, shows \
                     where it is"
                        .to_owned(),
                ];
            }
            (Host::Gone, _) => "its host is gone, and it with it",
            (Host::Unknown, _) => {
                "its host may still run, and it with it; if not, it was lost with its host"
            }
        };
        let start = if self.is_one_run {
            "the next `sandglass run` of the same entity into this journal ends it as interrupted"
        } else {
            "the next start of its host ends it as interrupted, or runs it again where its spec \
             says so (`on_crash`)"
        };
        vec![
            lost.to_owned(),
            "what it did is known to nobody but those that it asked: find out there".to_owned(),
            start.to_owned(),
        ]
    }

    /// Where to look next if the handler died while it waited for another entity.
    fn waited_for(&self) -> Option<String> {
        let ended = &self.ending.as_ref()?.ended;
        ended.dying_span.as_deref().filter(|span| span.starts_with("ask:"))?;
        let last = self.started.told.last()?;
        let how = match last.outcome {
            Some(outcome) => outcome.as_str().replace('_', " "),
            None => "has not ended".to_owned(),
        };
        Some(format!("the last handler that ran for it there: {} ({how})", last.dispatch))
    }

    /// Whether a retry is worthwhile.
    fn again(&self, ending: &Ending) -> Option<String> {
        let Ending { ended, before, .. } = ending;
        if self.attempts.last().is_some_and(|last| last.attempt > ended.attempt) {
            return Some("it was run again since: its later attempts tell more".to_owned());
        }
        match &ended.outcome {
            Outcome::Completed(_) => None,
            _ if ended.decision == Decision::Rerun => Some(
                "its spec has it run again after a crash; the next attempt tells more".to_owned(),
            ),
            _ if ended.decision == Decision::Held => {
                Some("it is dispatched anew when its session is resumed".to_owned())
            }
            _ if before.count >= HABIT => Some(format!(
                "it ended like this {} times before: the same again will most likely do the same",
                before.count
            )),
            Outcome::TimedOut(_) | Outcome::Rejected(_) => {
                Some(self.may_run_again("once that is mended"))
            }
            Outcome::Interrupted => Some(self.may_run_again("once that is known")),
            _ => None,
        }
    }

    fn may_run_again(&self, once: &str) -> String {
        if self.is_one_run {
            return format!(
                "{once}, `sandglass run` with the same arguments runs it again, as another dispatch"
            );
        }
        let condition = match &self.retryable {
            Retryable::Yes => "",
            Retryable::Unknown => " if the present state of its entity takes all of its endings",
            Retryable::No { state, missing, is_all } => {
                let takes = if *is_all { "takes none" } else { "doesn't take all" };
                return format!(
                    "a retry would be refused: its entity is in `{state}` now, which {takes} of \
                     its endings ({})",
                    missing.join(", ")
                );
            }
        };
        format!(
            "{once}, an operator may retry it{condition} (in a daemon: POST \
             /v1/dispatches/{}/retry); nothing is retried by itself",
            self.dispatched.dispatch
        )
    }
}

/// The host that did not answer the last request of a handler that failed or trapped.
fn dependency(ended: &Ended) -> Option<String> {
    if !matches!(ended.outcome, Outcome::Failed(_) | Outcome::Trapped(_)) {
        return None;
    }
    let last = ended.account.as_ref()?.story.requests.last()?;
    let OutgoingRequest { method, host, path, .. } = last;
    match last.outcome {
        RequestOutcome::Failed => {
            let how = if last.status.is_some() { "no whole answer" } else { "no answer" };
            Some(format!("`{method} {host}{path}` got {how}: look at `{host}` first"))
        }
        RequestOutcome::Refused => Some(format!(
            "`{method} {host}{path}` was refused and never sent: look whether its manifest grants \
             `{host}`"
        )),
        _ => None,
    }
}

/// What the end itself says, and where to look.
fn about(dispatched: &Dispatched, ended: &Ended) -> Vec<String> {
    match &ended.outcome {
        Outcome::Completed(_) => Vec::new(),
        Outcome::TimedOut(_) => timed_out(dispatched, ended),
        Outcome::Failed(failure) => vec![
            match failure.kind {
                FailureKind::GuestFailure | FailureKind::TypedFailure => {
                    "the guest answered this itself, in time: its author can say what it means"
                }
                FailureKind::NoAction | FailureKind::ActionNotTaken => {
                    "its answer and its spec don't fit: mend one of them"
                }
                _ => "its answer is none that the host can take: its author has to mend that",
            }
            .to_owned(),
        ],
        Outcome::Trapped(trap) => {
            let what = match trap.kind {
                TrapKind::Unreachable => "it gave up by itself, as a panic does",
                TrapKind::StackOverflow => "it called itself too deep",
                TrapKind::BadHostCall => "it passed a host function what can't be meant",
                TrapKind::Exit => "it ended its process in place of an answer",
                _ => "its code is at fault",
            };
            vec![format!("{what}{}", at(ended.frames()))]
        }
        Outcome::Limit(breach) => vec![match breach.kind {
            LimitKind::WasmMemory | LimitKind::WasmTable => format!(
                "give the integration more in its manifest (`[limits]`), or have it hold less{}",
                at(ended.frames())
            ),
            LimitKind::HostMemory => format!(
                "have it drop resources, streams or responses that it no longer needs, or give it \
                 more in its manifest (`host_memory` in `[limits]`){}",
                at(ended.frames())
            ),
            LimitKind::WasmFuel => {
                format!("it computed for longer than its fuel{}", at(ended.frames()))
            }
        }],
        Outcome::Rejected(_) => {
            vec!["its guest never ran, so nothing of it has landed".to_owned()]
        }
        Outcome::Cancelled(cancelled) => vec![match cancelled.by {
            CancelledBy::Operator => {
                "somebody asked for its end; nothing is wrong with it".to_owned()
            }
            CancelledBy::Caller => "nobody waited for it any more".to_owned(),
            CancelledBy::StateLeft => "its entity had left the state that started it; if it is to \
                                       go on then, its spec says `keep_on_exit = true`"
                .to_owned(),
            CancelledBy::Shutdown => "its host was stopped before it ended; a longer grace lets \
                                      more handlers finish"
                .to_owned(),
            CancelledBy::RunStopped => "the run of its session was stopped; the records behind \
                                        its end say by what"
                .to_owned(),
        }],
        Outcome::Interrupted => vec![
            "its host ended in the middle of it, and what it did is known to nobody but those \
             that it asked"
                .to_owned(),
        ],
    }
}

fn timed_out(dispatched: &Dispatched, ended: &Ended) -> Vec<String> {
    let mut next = vec![where_the_time_went(ended)];
    if ended.deadline.owner == DeadlineOwner::Parent {
        let asker = dispatched.asker.map(|asker| format!(" ({asker})")).unwrap_or_default();
        next.push(format!(
            "the time was that of its asker{asker}, which had no more left; its own budget is longer"
        ));
    } else if dispatched.budget_defaulted {
        next.push(
            "its spec declares no deadline, so the default ended it: declare one that fits"
                .to_owned(),
        );
    }
    next
}

/// What was running at the timeout, and whether that hung.
fn where_the_time_went(ended: &Ended) -> String {
    let span = ended.dying_span.as_deref().unwrap_or("guest");
    let nothing = Story::default();
    let story = ended.account.as_ref().map_or(&nothing, |account| &account.story);
    match span {
        "guest" => return busy(ended, story),
        "instantiate" => {
            return "it never came to its work: look at what it does when it is instantiated"
                .to_owned();
        }
        _ => {}
    }
    if let Some(asked) = span.strip_prefix("ask:") {
        return format!("it waited for another entity ({asked}): ask why that one takes so long");
    }
    // A call that hung took a large part of the time. A call that had just begun at the deadline
    // did not.
    let last_us = story.calls.last().map(|call| call.duration_us);
    let elapsed_us = ended.deadline.elapsed_ms.saturating_mul(1000);
    if last_us.is_some_and(|last| last < elapsed_us / HUNG_PART) {
        return busy(ended, story);
    }
    let hung = story.requests.iter().rfind(|one| one.outcome == RequestOutcome::Unfinished);
    if let Some(one) = hung {
        return format!("`{}` gave no whole answer: look there first", one.host);
    }
    let reads = span.contains("incoming-response.read") || span.contains("input-stream.");
    match story.requests.last() {
        Some(one) if reads => {
            let of = format!("{} {}{}", one.method, one.host, one.path);
            format!("the body of `{of}` didn't come to its end: look there first")
        }
        _ if span.ends_with("poll_oneoff") || span.contains("wasi:io/poll") => {
            format!("the guest waited by its own choice, in {span}{}", at(ended.frames()))
        }
        _ => format!("{span} didn't answer: look at what is behind it"),
    }
}

/// The advice for a handler that worked until its end: it is slow, or in a loop.
fn busy(ended: &Ended, story: &Story) -> String {
    let answered = story.requests.iter().any(|one| one.outcome == RequestOutcome::Answered);
    let place = at(ended.frames());
    if answered {
        return format!(
            "what it asked for was answered until its time was up, so it may only need a larger \
             budget (`sandglass budgets`){place}"
        );
    }
    match ended.host_calls.count {
        0 => format!("its own code was busy when its time was up{place}"),
        count => format!(
            "its own code was busy when its time was up; of its {count} host calls none hung{place}"
        ),
    }
}

/// Which side effects requests of the handler may have had.
fn landed(ended: &Ended) -> Vec<String> {
    let Some(account) = &ended.account else { return Vec::new() };
    if matches!(ended.outcome, Outcome::Completed(_)) {
        return Vec::new();
    }
    let requests = &account.story.requests;
    let named = |wanted: &dyn Fn(&OutgoingRequest) -> bool| {
        let named = requests.iter().filter(|one| wanted(one));
        let mut named: Vec<_> =
            named.map(|one| format!("`{} {}{}`", one.method, one.host, one.path)).collect();
        named.dedup();
        named.join(", ")
    };
    let is_cut = |one: &OutgoingRequest| {
        let cut = [RequestOutcome::Unfinished, RequestOutcome::GivenUp, RequestOutcome::Failed];
        cut.contains(&one.outcome)
    };
    let is_unsure = |one: &OutgoingRequest| is_cut(one) && one.status.is_none();
    // The status tells whether the request succeeded, even if the body hung.
    let is_answered =
        |one: &OutgoingRequest| one.outcome == RequestOutcome::Answered || one.status.is_some();
    let (unsure, harmless, done) = (
        named(&|one| is_unsure(one) && !one.is_idempotent()),
        named(&|one| is_cut(one) && one.is_idempotent()),
        named(&|one| is_answered(one) && !one.is_idempotent()),
    );
    let mut landed = Vec::new();
    if !unsure.is_empty() {
        landed.push(format!(
            "whether {unsure} was carried out isn't known: find out there before a retry"
        ));
    }
    if !done.is_empty() {
        landed.push(format!("a retry would send {done} again, which was answered"));
    }
    if account.story.requests_omitted > 0 {
        landed.push(format!(
            "{} more requests are not told, and a retry would send them again",
            account.story.requests_omitted
        ));
    } else if !harmless.is_empty() && unsure.is_empty() {
        landed.push(format!("{harmless} may be sent again without another effect"));
    }
    landed
}

/// Where in its code the guest was, as far as the backtrace shows.
fn at(frames: &[Frame]) -> String {
    // Prefer frames of the author to frames of the standard library.
    let is_authors =
        |frame: &&Frame| frame.file.as_deref().is_some_and(|file| !file.starts_with("/rustc/"));
    let named = |frame: &&Frame| frame.file.is_some() || frame.function.is_some();
    let frame = frames.iter().find(is_authors).or_else(|| frames.iter().find(named));
    let Some(frame) = frame else {
        return match frames.first() {
            Some(_) => ": build it with names or debug information to see where".to_owned(),
            None => String::new(),
        };
    };
    let function = frame.function.as_deref().unwrap_or("a function without a name");
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!(": in {function}, {file}:{line}"),
        _ => format!(": in {function}"),
    }
}
