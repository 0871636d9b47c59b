//! Which limit of a session, or of handlers without one, is due, and when the next one is.

use std::time::Duration;

use sandglass_model::Limit;

use super::{RunPhase, Watched};
use crate::instant::TIME_LIMITS;

/// A time that limits are measured from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anchor {
    /// The start of the first run.
    Session,
    /// The start of the present one.
    Run,
    /// The last activity, or the start of the run.
    Activity,
    /// The last progress, or the start of the run.
    Progress,
    /// The stop of the run.
    Stop,
}

/// The time since each [`Anchor`], by a monotonic clock except across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elapsed([Duration; 5]);

impl Elapsed {
    /// The time since `anchor`.
    #[must_use]
    pub const fn since(&self, anchor: Anchor) -> Duration {
        self.0[anchor as usize]
    }

    /// Sets the time since `anchor`.
    pub const fn set(&mut self, anchor: Anchor, measured: Duration) {
        self.0[anchor as usize] = measured;
    }
}

/// What is due, and when to evaluate again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// The breached limit; if there are several, the one that stops most.
    pub due: Option<Due>,
    /// The time until the next limit is breached, if nothing else happens; `None` if none will be.
    pub next: Option<Duration>,
    /// As `next`, for limits that end something; zero if one is breached.
    pub next_stop: Option<Duration>,
}

/// A limit that is breached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which.
    pub limit: Limit,
    /// What was measured, in milliseconds, rounded up: always above what it allows.
    pub observed_ms: u64,
}

/// Evaluates the limits. `has_work` is true if a handler is queued or in flight: inactivity and lack
/// of progress are measured only then. A limit is breached by more than it allows, so not at the
/// very moment.
#[must_use]
pub fn evaluate<'a>(
    watched: impl Into<Watched<'a>>,
    has_work: bool,
    elapsed: &Elapsed,
) -> Evaluation {
    let watched = watched.into();
    let mut found = Evaluation::default();
    for limit in TIME_LIMITS {
        let Some((threshold_ms, anchor)) = threshold_and_anchor(watched, has_work, limit) else {
            continue;
        };
        let (allowed, measured) = (Duration::from_millis(threshold_ms), elapsed.since(anchor));
        let left = allowed.checked_sub(measured);
        let left = left.map(|left| left.saturating_add(Duration::from_nanos(1)));
        if limit != Limit::InactivityWarn {
            found.next_stop = sooner(found.next_stop, left.unwrap_or_default());
        }
        match left {
            Some(left) => found.next = sooner(found.next, left),
            None if found.due.is_none() => {
                let observed_ms = measured.as_nanos().div_ceil(1_000_000);
                let observed_ms = u64::try_from(observed_ms).unwrap_or(u64::MAX);
                found.due = Some(Due { limit, observed_ms });
            }
            None => {}
        }
    }
    found
}

fn sooner(known: Option<Duration>, other: Duration) -> Option<Duration> {
    Some(known.map_or(other, |known| known.min(other)))
}

/// What `limit` allows now, in milliseconds, and its anchor; `None` if it is not measured.
#[must_use]
pub(crate) fn threshold_and_anchor(
    watched: Watched<'_>,
    has_work: bool,
    limit: Limit,
) -> Option<(u64, Anchor)> {
    if limit == Limit::InactivityWarn {
        let is_measured = has_work && watched.is_running() && !watched.is_silent();
        let threshold_ms = watched.inactivity_warn_ms().filter(|_| is_measured)?;
        return Some((threshold_ms, Anchor::Activity));
    }
    let session = watched.session()?;
    let limits = &session.limits;
    match (&session.phase, limit) {
        (RunPhase::Stopping { stopping, is_killing: false, .. }, Limit::AbortTimeout) => {
            has_work.then_some((stopping.grace_ms, Anchor::Stop))
        }
        (RunPhase::Running, Limit::ExecutionTimeout) => {
            limits.execution_timeout_ms.map(|ms| (ms, Anchor::Session))
        }
        (RunPhase::Running, Limit::RunTimeout) => limits.run_timeout_ms.map(|ms| (ms, Anchor::Run)),
        (RunPhase::Running, Limit::InactivityTimeout) if has_work => {
            limits.inactivity_timeout_ms.map(|ms| (ms, Anchor::Activity))
        }
        (RunPhase::Running, Limit::ProgressTimeout) if has_work => {
            limits.progress_timeout_ms.map(|ms| (ms, Anchor::Progress))
        }
        _ => None,
    }
}
