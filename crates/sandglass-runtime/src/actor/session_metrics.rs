//! Metrics of an entity as a session: it is counted in its status, and each of its records once,
//! when it is durable.

use sandglass_liveness::{Entity, session};
use sandglass_model::{Event, Limit, LimitBreached, Monotonic, StopCause, WallTime};
use sandglass_telemetry::metrics::{Level, LevelGuard, ResumedBy};

use super::Actor;
use crate::blocked::Entry;
use crate::shared::Shared;

/// What an entity's task keeps for the metrics of its session.
#[derive(Debug, Default)]
pub(super) struct SessionMetrics {
    counted: Option<Counted>,
    /// When its run began to stop, if that was since the task started.
    stop_began: Option<Monotonic>,
}

/// Keeps a session counted in its status, and listed while it waits to be resumed.
#[derive(Debug)]
pub(crate) struct Counted {
    level: Level,
    _held: LevelGuard,
    _listed: Option<Entry>,
}

impl Counted {
    /// `None` if `entity` is not a session, or is over.
    fn of(shared: &Shared, entity: &Entity) -> Option<Self> {
        let level = level(entity)?;
        let held = shared.telemetry.metrics.hold(level);
        Some(Self { level, _held: held, _listed: shared.blocked.enter(entity) })
    }

    /// For an entity that falls asleep: only sessions that wait to be resumed stay counted. Boxed,
    /// because many entities sleep and few of them are such sessions.
    pub(crate) fn asleep(shared: &Shared, entity: &Entity) -> Option<Box<Self>> {
        let standing = entity.session().map(|session| &session.phase);
        let is_stopped = matches!(standing, Some(session::RunPhase::Stopped(_)));
        is_stopped.then(|| Self::of(shared, entity)).flatten().map(Box::new)
    }
}

/// The status in which `entity` is counted; `None` if it is not a session, or is over.
fn level(entity: &Entity) -> Option<Level> {
    let session = entity.session()?;
    match &session.phase {
        session::RunPhase::Running if session.is_silent() => Some(Level::SessionsSilent),
        session::RunPhase::Running => Some(Level::SessionsRunning),
        session::RunPhase::Stopping { .. } => Some(Level::SessionsStopping),
        session::RunPhase::Stopped(_) if session.is_over() => None,
        session::RunPhase::Stopped(stopped) => Some(blocked_by(&stopped.cause)),
    }
}

const fn blocked_by(cause: &StopCause) -> Level {
    match cause {
        StopCause::Limit { limit: Limit::RunTimeout } => Level::BlockedByWatchdog,
        StopCause::Limit { limit: Limit::ProgressTimeout } => Level::BlockedWithoutProgress,
        StopCause::Shutdown => Level::BlockedByShutdown,
        StopCause::Limit { .. }
        | StopCause::Operator { .. }
        | StopCause::Parent { .. }
        | StopCause::Trap
        | StopCause::Completion => Level::BlockedOtherwise,
    }
}

impl Actor {
    /// Counts it among the sessions in its present status.
    pub(super) fn count_status(&mut self) {
        let counted = self.session_metrics.counted.as_ref().map(|counted| counted.level);
        if counted != level(&self.entity) {
            self.session_metrics.counted = Counted::of(&self.shared, &self.entity);
        }
    }

    /// The run begins to stop, whether that can be recorded or not.
    pub(super) fn note_stop(&mut self) {
        let now = self.shared.clock.now();
        self.session_metrics.stop_began.get_or_insert(now);
    }

    /// Counts a durable record of its session; `before` is the entity before it.
    pub(super) fn count_session(&mut self, before: &Entity, event: &Event, at: WallTime) {
        let metrics = &self.shared.telemetry.metrics;
        let entity_type = before.entity.entity_type();
        match event {
            Event::LimitBreached(breach) => {
                // One record may stand for several breaches.
                let LimitBreached { limit, action, times, .. } = **breach;
                metrics.limit_breached(entity_type, limit, action, times);
            }
            Event::RunStarted { .. } => self.session_metrics.stop_began = None,
            Event::RunStopping(_) => self.note_stop(),
            Event::RunStopped(stopped) => {
                metrics.run_stopped(entity_type, &stopped.stop_reason_code, stopped.directive);
                let began = self.session_metrics.stop_began.take();
                let elapsed = began.map(|began| self.shared.clock.now().since(began));
                // If the run began to stop before its host ended, the records state when.
                let known = elapsed.or_else(|| match &before.session()?.phase {
                    session::RunPhase::Stopping { since, .. } => Some(at.since(*since)),
                    _ => None,
                });
                if let Some(time) = known {
                    metrics.run_stopped_within(entity_type, time);
                }
            }
            Event::SessionResumed { by, to_cancel: false, .. } => {
                let by = if by.is_some() { ResumedBy::Request } else { ResumedBy::Retry };
                metrics.session_resumed(entity_type, by);
            }
            _ => {}
        }
    }
}
