//! The sentences for [`Advice`]. They are here, and not in the command line or the daemon, because
//! both show the same ones, also in JSON.

use std::fmt;

use sandglass_model::{CancelledBy, FailureKind, LimitKind, OutgoingRequest, TrapKind};
use serde::{Serialize, Serializer};

use super::{Advice, Place, Precondition, Repetition, Requests, Retryable, TimeSpent, Unended};

impl Serialize for Advice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unended(unended) => unended.fmt(f),
            Self::TimedOut(spent) => spent.fmt(f),
            Self::AskerTimedOut(asker) => {
                let asker = asker.map(|asker| format!(" ({asker})")).unwrap_or_default();
                write!(
                    f,
                    "the time was that of its asker{asker}, which had no more left; its own \
                     budget is longer"
                )
            }
            Self::DefaultDeadline => f.write_str(
                "its spec declares no deadline, so the default ended it: declare one that fits",
            ),
            Self::Failed(kind) => f.write_str(failed(*kind)),
            Self::Trapped(kind, place) => write!(f, "{}{place}", trapped(*kind)),
            Self::LimitExceeded(kind, place) => write!(f, "{}{place}", limit_exceeded(*kind)),
            Self::Rejected => f.write_str("its guest never ran, so nothing of it has landed"),
            Self::Cancelled(by) => f.write_str(cancelled(*by)),
            Self::Interrupted => f.write_str(
                "its host ended in the middle of it, so its side effects are unknown: check the \
                 services it called",
            ),
            Self::LastStarted(last) => {
                let how = match last.outcome {
                    Some(outcome) => outcome.as_str().replace('_', " "),
                    None => "has not ended".to_owned(),
                };
                write!(f, "the last handler that ran for it there: {} ({how})", last.dispatch)
            }
            Self::Requests(requests) => requests.fmt(f),
            Self::Repetition(repetition) => repetition.fmt(f),
        }
    }
}

impl fmt::Display for Unended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndUnreadable => {
                "it has ended, as the transition that followed shows; the record that says how \
                 can't be read"
            }
            Self::EndMayBeUnreadable => {
                "records behind its dispatch can't be read: its end may be one of them, so \
                 it is unknown whether it has ended"
            }
            Self::JournalDamaged => {
                "`sandglass log` says which records are damaged or missing; a backup of the \
                 journal may have them"
            }
            Self::InFlight => {
                "it is queued or runs: `sandglass top`, or `/v1/live` of its daemon, shows where \
                 it is"
            }
            Self::Lost => "its host is gone, and it with it",
            Self::MayBeLost => {
                "its host may still run, and it with it; if not, it was lost with its host"
            }
            Self::EffectsUnknown => "its side effects are unknown: check the services it called",
            Self::EndsAtStart => {
                "the next start of its host ends it as interrupted, or runs it again where its \
                 spec says so (`on_crash`)"
            }
            Self::EndsAtRun => {
                "the next `sandglass run` of the same entity into this journal ends it as \
                 interrupted"
            }
        })
    }
}

impl fmt::Display for TimeSpent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instantiation => f.write_str(
                "it never came to its work: look at what it does when it is instantiated",
            ),
            Self::Ask(asked) => {
                write!(f, "it waited for another entity ({asked}): ask why that one takes so long")
            }
            Self::Signal(target) => write!(
                f,
                "it waited for another entity to record a signal ({target}): check the journal"
            ),
            Self::Parked(function) => write!(
                f,
                "its host had lost the lease of its cluster, so its call of {function} never began: \
                 look at the connection of that host to the database"
            ),
            Self::AnsweredRequests(place) => write!(
                f,
                "what it asked for was answered until its time was up, so it may only need a \
                 larger budget (`sandglass budgets`){place}"
            ),
            Self::OwnCode { host_calls: 0, place } => {
                write!(f, "its own code was busy when its time was up{place}")
            }
            Self::OwnCode { host_calls, place } => write!(
                f,
                "its own code was busy when its time was up; of its {host_calls} host calls none \
                 hung{place}"
            ),
            Self::HungRequest(OutgoingRequest { host, .. }) => {
                write!(f, "`{host}` gave no whole answer: look there first")
            }
            Self::HungBody(request) => {
                let request = name(request);
                write!(f, "the body of {request} didn't come to its end: look there first")
            }
            Self::Poll(span, place) => {
                write!(f, "the guest waited by its own choice, in {span}{place}")
            }
            Self::HungCall(span) => write!(f, "{span} didn't answer: look at what is behind it"),
        }
    }
}

impl fmt::Display for Requests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LastFailed(last) => {
                let how = if last.status.is_some() { "no whole answer" } else { "no answer" };
                let why = last.error.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                write!(f, "{} got {how}{why}: look at `{}` first", name(last), last.host)
            }
            Self::LastRefused(last) => write!(
                f,
                "{} was refused and never sent: look whether its manifest grants `{}`",
                name(last),
                last.host
            ),
            Self::MayBeCarriedOut(requests) => write!(
                f,
                "whether {} was carried out isn't known: find out there before a retry",
                names(requests)
            ),
            Self::WouldRepeat(requests) => {
                write!(f, "a retry would send {} again, which was answered", names(requests))
            }
            Self::WouldRepeatOmitted(count) => {
                write!(f, "{count} more requests are not listed, and a retry would send them again")
            }
            Self::SafeToRepeat(requests) => {
                write!(f, "{} may be sent again without another effect", names(requests))
            }
        }
    }
}

impl fmt::Display for Repetition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (after, dispatch, condition) = match self {
            Self::HasLaterAttempt => {
                return f.write_str("it was run again since: its later attempts tell more");
            }
            Self::Rerun => {
                return f.write_str(
                    "its spec has it run again after a crash; the next attempt tells more",
                );
            }
            Self::WaitsForResume => {
                return f.write_str("it is dispatched anew when its session is resumed");
            }
            Self::Habit(times) => {
                return write!(
                    f,
                    "it ended like this {times} times before: the same again will most likely do \
                     the same"
                );
            }
            Self::Run(after) => {
                return write!(
                    f,
                    "{after}, `sandglass run` with the same arguments runs it again, as another \
                     dispatch"
                );
            }
            Self::Retry(_, _, Retryable::No { state, missing, is_all }) => {
                let takes = if *is_all { "takes none" } else { "doesn't take all" };
                let missing = missing.join(", ");
                return write!(
                    f,
                    "a retry would be refused: its entity is in `{state}` now, which {takes} of \
                     its endings ({missing})"
                );
            }
            Self::Retry(after, dispatch, Retryable::Yes) => (after, dispatch, ""),
            Self::Retry(after, dispatch, Retryable::Unknown) => {
                (after, dispatch, " if the present state of its entity takes all of its endings")
            }
        };
        write!(
            f,
            "{after}, an operator may retry it{condition} (in a daemon: POST \
             /v1/dispatches/{dispatch}/retry); nothing is retried by itself"
        )
    }
}

impl fmt::Display for Precondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fix => "once that is fixed",
            Self::KnowEffects => "once that is known",
        })
    }
}

const fn failed(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::GuestFailure | FailureKind::TypedFailure => {
            "the guest answered this itself, in time: its author can say what it means"
        }
        FailureKind::Denied => {
            "a call was refused, and the guest reported success without asking why: grant what it \
             calls in its manifest, or change `on_denied` there"
        }
        FailureKind::NoAction | FailureKind::ActionNotTaken => {
            "its result and its spec do not fit: fix one of them"
        }
        _ => "the guest returned an invalid result: fix the guest",
    }
}

const fn trapped(kind: TrapKind) -> &'static str {
    match kind {
        TrapKind::Unreachable => "it gave up by itself, as a panic does",
        TrapKind::StackOverflow => "it called itself too deep",
        TrapKind::BadHostCall => "it passed a host function what can't be meant",
        TrapKind::Exit => "it ended its process in place of an answer",
        _ => "its code is at fault",
    }
}

const fn limit_exceeded(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::WasmMemory | LimitKind::WasmTable => {
            "give the integration more in its manifest (`[limits]`), or have it hold less"
        }
        LimitKind::HostMemory => {
            "have it drop resources, streams or responses that it no longer needs, or give it \
             more in its manifest (`host_memory` in `[limits]`)"
        }
        LimitKind::WasmFuel => "it computed for longer than its fuel",
    }
}

const fn cancelled(by: CancelledBy) -> &'static str {
    match by {
        CancelledBy::Operator => "it was cancelled on request; nothing is wrong with it",
        CancelledBy::Caller => "no caller waited for it any more",
        CancelledBy::StateLeft => {
            "its entity had left the state that started it; if it is to go on then, its spec says \
             `keep_on_exit = true`"
        }
        CancelledBy::Shutdown => {
            "its host was stopped before it ended; a longer grace lets more handlers finish"
        }
        CancelledBy::RunStopped => {
            "the run of its session was stopped; the records behind its end say by what"
        }
        CancelledBy::OwnershipLost => {
            "another host took over its entity, and decides what happens to its dispatch"
        }
    }
}

fn name(OutgoingRequest { method, host, path, .. }: &OutgoingRequest) -> String {
    format!("`{method} {host}{path}`")
}

fn names(requests: &[&OutgoingRequest]) -> String {
    let mut names: Vec<_> = requests.iter().map(|one| name(one)).collect();
    names.dedup();
    names.join(", ")
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = match self {
            Self::Unknown => return Ok(()),
            Self::Unnamed => {
                return f.write_str(": build it with names or debug information to see where");
            }
            Self::Frame(frame) => frame,
        };
        let function = frame.function.as_deref().unwrap_or("a function without a name");
        match (&frame.file, frame.line) {
            (Some(file), Some(line)) => write!(f, ": in {function}, {file}:{line}"),
            _ => write!(f, ": in {function}"),
        }
    }
}
