//! What somebody does next about a handler that didn't complete: whose fault it looks
//! like, what may have landed, and whether it is worth trying again.

use sandglass_model::{
    CallOutcome, CancelledBy, DeadlineOwner, Decision, Dispatched, Ended, Frame, LimitKind,
    Outcome, OutgoingRequest, RequestOutcome, TrapKind,
};

use super::{Ending, Explanation};

/// From how many times on a failure is called a habit.
const HABIT: u64 = 2;

impl Explanation {
    /// What to do next, a sentence each, in the order in which to do it. Nothing for one
    /// that completed.
    #[must_use]
    pub fn next(&self) -> Vec<String> {
        let Some(ending) = &self.ending else {
            return vec![
                "it hasn't ended: it runs, or its host does no longer; the host's next start \
                 ends it as interrupted"
                    .to_owned(),
            ];
        };
        let mut next = Vec::new();
        next.extend(about(&self.dispatched, &ending.ended));
        next.extend(landed(&ending.ended));
        next.extend(self.again(ending));
        next
    }

    /// Whether the same again is worth it.
    fn again(&self, ending: &Ending) -> Option<String> {
        let Ending { ended, before, .. } = ending;
        match &ended.outcome {
            Outcome::Completed(_) => None,
            _ if ended.decision == Decision::Rerun => Some(
                "its spec has it run again after a crash; the next attempt tells more".to_owned(),
            ),
            _ if before.count >= HABIT => Some(format!(
                "it ended like this {} times before: the same again will most likely do the same",
                before.count
            )),
            Outcome::TimedOut(_) | Outcome::Interrupted | Outcome::Rejected(_) => Some(
                "once that is mended, an operator may retry it (POST /v1/dispatches/ID/retry); \
                 nothing is retried by itself"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// What its end says, and where to look.
fn about(dispatched: &Dispatched, ended: &Ended) -> Vec<String> {
    match &ended.outcome {
        Outcome::Completed(_) => Vec::new(),
        Outcome::TimedOut(_) => timed_out(dispatched, ended),
        Outcome::Failed(_) => vec![
            "the guest answered this itself, in time: its author can say what it means".to_owned(),
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
        }],
        Outcome::Interrupted => vec![
            "its host ended in the middle of it, and what it did is known to nobody but those \
             that it asked"
                .to_owned(),
        ],
    }
}

fn timed_out(dispatched: &Dispatched, ended: &Ended) -> Vec<String> {
    let mut next = Vec::new();
    let span = ended.dying_span.as_deref().unwrap_or("guest");
    let hung = ended.account.iter().flat_map(|account| &account.story.requests);
    let hung: Vec<_> = hung.filter(|one| one.outcome == RequestOutcome::Unfinished).collect();
    next.push(match span {
        "guest" => format!("its own code was busy when its time was up{}", at(ended.frames())),
        "instantiate" => {
            "it never came to its work: look at what it does when it is instantiated".to_owned()
        }
        _ if span.starts_with("ask:") => format!(
            "it waited for another entity ({}): ask why that one takes so long",
            span.trim_start_matches("ask:")
        ),
        _ if span.ends_with("poll_oneoff") || span.contains("wasi:io/poll") && hung.is_empty() => {
            format!("the guest waited by its own choice, in {span}{}", at(ended.frames()))
        }
        _ => match hung.first() {
            Some(one) => format!("`{}` didn't answer: look there first", one.host),
            None => format!("{span} didn't answer: look at what is behind it"),
        },
    });
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
    } else if ended.account.as_ref().is_some_and(|account| was_steady(&account.story.calls)) {
        next.push(
            "it was making calls that were answered until its end: it may only need a larger \
             budget (`sandglass budgets`)"
                .to_owned(),
        );
    }
    next
}

/// Whether calls went on being answered, so that it was slow rather than stuck.
fn was_steady(calls: &[sandglass_model::Call]) -> bool {
    let (Some(last), Some(first)) = (calls.last(), calls.first()) else { return false };
    let end = last.started_us.saturating_add(last.duration_us);
    let answered = calls.iter().filter(|call| call.outcome == CallOutcome::Ok).count();
    answered >= 8 && last.duration_us < end.saturating_sub(first.started_us) / 4
}

/// What others may have done for it.
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
    let unfinished = |one: &OutgoingRequest| one.outcome == RequestOutcome::Unfinished;
    let (unsure, harmless, done) = (
        named(&|one| unfinished(one) && !one.is_idempotent()),
        named(&|one| unfinished(one) && one.is_idempotent()),
        named(&|one| one.outcome == RequestOutcome::Answered && !one.is_idempotent()),
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
    if !harmless.is_empty() && unsure.is_empty() {
        landed.push(format!("{harmless} may be sent again without another effect"));
    }
    landed
}

/// Where the guest was, as far as it is known.
fn at(frames: &[Frame]) -> String {
    let named = |frame: &&Frame| frame.file.is_some() || frame.function.is_some();
    let Some(frame) = frames.iter().find(named) else {
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
