//! Whose inactivity is measured: that of a session, or that of the handlers of an entity that is not
//! a session, because its spec has no limits.

use sandglass_model::{
    DispatchId, Event, LastSignal, Limit, RulesVersion, TransitionCause, WallTime,
};
use serde::{Deserialize, Serialize};

use super::settings::{INACTIVITY_WARN_MS, STUCK_AFTER_MS};
use super::{Anchor, Mark, Session};
use crate::entity::Entity;
use crate::spec::Spec;

/// The inactivity of the handlers of an entity that is not a session, while some are in flight. It is
/// warned of after the default `inactivity_warn`; nothing stops it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerWatch {
    /// Since when handlers have been in flight.
    pub since: WallTime,
    /// The last sign of life.
    pub last_signal: LastSignal,
    active_since: Mark,
    /// Whether a warning about inactivity holds.
    is_silent: bool,
}

impl HandlerWatch {
    /// Begins with the first of the handlers, which `event` dispatches at `at`; `None` if `event`
    /// is another one, or the handlers of such an entity are not watched.
    pub(crate) fn started(spec: &Spec, event: &Event, at: WallTime) -> Option<Self> {
        let Event::Dispatched(dispatched) = event else { return None };
        // A journal of earlier versions of the rules has no warnings about such handlers.
        let is_watched = spec.limits.is_none() && spec.rules >= RulesVersion::V3;
        is_watched.then(|| Self {
            since: at,
            last_signal: LastSignal {
                kind: "dispatched".to_owned(),
                of: Some(dispatched.integration.clone()),
                at,
            },
            active_since: Mark::at(at),
            is_silent: false,
        })
    }

    /// Folds in one more record about `entity`, which does not have it yet.
    pub(crate) fn apply(&mut self, spec: &Spec, entity: &Entity, event: &Event, at: WallTime) {
        if let Some((kind, of, _)) = sign_of_life(spec, entity, event) {
            self.is_silent = false;
            self.active_since.set(at);
            self.last_signal = LastSignal { kind: kind.to_owned(), of, at };
        }
        match event {
            Event::LimitBreached(breach) if breach.limit == Limit::InactivityWarn => {
                self.is_silent = true;
                self.note_activity(breach.last_signal.as_ref());
            }
            Event::LimitCleared { last_signal: Some(signal), .. } => {
                self.is_silent = false;
                self.note_activity(Some(signal));
            }
            _ => {}
        }
    }

    /// Notes activity that no record of its own shows: a host call.
    fn note_activity(&mut self, signal: Option<&LastSignal>) {
        if let Some(signal) = signal.filter(|signal| signal.at > self.active_since.at) {
            self.active_since.set(signal.at);
            self.last_signal = signal.clone();
        }
    }
}

/// Whose inactivity is measured.
#[derive(Clone, Copy, Debug)]
pub enum Watched<'a> {
    /// That of the run of a session.
    Session(&'a Session),
    /// That of the handlers of an entity that is not a session.
    Handlers(&'a HandlerWatch),
}

impl<'a> From<&'a Session> for Watched<'a> {
    fn from(session: &'a Session) -> Self {
        Self::Session(session)
    }
}

impl<'a> Watched<'a> {
    /// The session, if it is one.
    #[must_use]
    pub const fn session(self) -> Option<&'a Session> {
        match self {
            Self::Session(session) => Some(session),
            Self::Handlers(_) => None,
        }
    }

    /// Whether its limits are measured: handlers always, a session while its run is running.
    #[must_use]
    pub fn is_running(self) -> bool {
        self.session().is_none_or(Session::is_running)
    }

    /// Whether a warning about inactivity holds.
    #[must_use]
    pub const fn is_silent(self) -> bool {
        match self {
            Self::Session(session) => session.is_silent(),
            Self::Handlers(handlers) => handlers.is_silent,
        }
    }

    /// When it last showed activity, or its run or the first of its handlers started.
    #[must_use]
    pub const fn active_since(self) -> WallTime {
        match self {
            Self::Session(session) => session.active_since(),
            Self::Handlers(handlers) => handlers.active_since.at,
        }
    }

    /// The last sign of life.
    #[must_use]
    pub const fn last_signal(self) -> Option<&'a LastSignal> {
        match self {
            Self::Session(session) => session.last_signal.as_ref(),
            Self::Handlers(handlers) => Some(&handlers.last_signal),
        }
    }

    /// How much inactivity is warned of, in milliseconds; `None` if none is.
    #[must_use]
    pub fn inactivity_warn_ms(self) -> Option<u64> {
        self.session().map_or(Some(INACTIVITY_WARN_MS), |session| session.limits.inactivity_warn_ms)
    }

    /// After how much inactivity it is marked STUCK, in milliseconds.
    #[must_use]
    pub fn stuck_after_ms(self) -> u64 {
        self.session().map_or(STUCK_AFTER_MS, |session| session.limits.stuck_after_ms)
    }

    /// The times that its limits are measured from, each with a number that distinguishes it from
    /// earlier ones of the same kind. Handlers have only that of their activity, and the others do
    /// not matter to them.
    #[must_use]
    pub fn anchors(self) -> [(Anchor, u64, WallTime); 5] {
        match self {
            Self::Session(session) => session.anchors(),
            Self::Handlers(HandlerWatch { since, active_since, .. }) => [
                (Anchor::Session, 0, *since),
                (Anchor::Run, 0, *since),
                (Anchor::Activity, active_since.generation, active_since.at),
                (Anchor::Progress, 0, *since),
                (Anchor::Stop, 0, *since),
            ],
        }
    }

    /// Whether `event` ends an inactivity of `entity` that was warned of.
    pub(crate) fn is_broken_by(self, spec: &Spec, entity: &Entity, event: &Event) -> bool {
        self.is_silent() && self.is_running() && sign_of_life(spec, entity, event).is_some()
    }
}

/// The activity that `event` shows, if any: its kind, the action or handler that it is about,
/// and whether it is progress. What the host does by itself shows none, and
/// neither do signals that are listed as synthetic. A new attempt is progress.
pub(super) fn sign_of_life<'e>(
    spec: &Spec,
    entity: &Entity,
    event: &'e Event,
) -> Option<(&'e str, Option<String>, bool)> {
    let limits = spec.limits.as_ref();
    let listed = |list: &[String], name: &str| list.iter().any(|one| one == name);
    let is_material =
        |name: &str| limits.map_or(name == "progress", |limits| listed(&limits.material, name));
    let handler = |dispatch: DispatchId| {
        entity.in_flight_handler(dispatch).map(|run| run.dispatched.integration.clone())
    };
    match event {
        Event::Transition {
            action,
            cause: TransitionCause::Requested | TransitionCause::Asked(_) | TransitionCause::Spawned,
            ..
        } => Some(("action", Some(action.clone()), is_material("action"))),
        Event::Signal { name, dispatch, .. } => {
            let is_synthetic = limits.is_some_and(|limits| listed(&limits.synthetic, name));
            (!is_synthetic).then(|| (&**name, dispatch.and_then(handler), is_material(name)))
        }
        Event::Dispatched(dispatched) => {
            Some(("dispatched", Some(dispatched.integration.clone()), true))
        }
        Event::Ended(ended) => Some(("ended", handler(ended.dispatch), is_material("ended"))),
        _ => None,
    }
}
