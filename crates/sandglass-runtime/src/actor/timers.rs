//! The timers of one entity: of its state, its scheduled actions and its limits. The entity defines
//! them; this computes when they fire, awake or asleep.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_liveness::instant::{Due, first_due};
use sandglass_liveness::session::{self as limits, Anchor, Elapsed, Evaluation, evaluate};
use sandglass_liveness::{Entity, Spec};
use sandglass_model::limit::MAX_BUDGET_MS;
use sandglass_model::{Clock, Monotonic, WallTime};

use crate::timer::after_ms;

/// When the timers of an entity fire.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    idle: Option<Idle>,
    schedules: BTreeMap<u64, Monotonic>,
    /// Boxed, because most entities have nothing whose limits are measured.
    limits: Option<Box<Limits>>,
}

/// What the limits of a session, or of handlers without one, are measured by.
#[derive(Debug)]
struct Limits {
    meters: [Meter; 5],
    has_work: bool,
    rings_at: Monotonic,
    /// When a limit is breached that ends something.
    stops_at: Monotonic,
    /// Whether a breach was refused. It is not evaluated again until an anchor changes.
    is_refused: bool,
    /// The last known host call of its handlers: activity that no record shows.
    active_at: Option<Monotonic>,
}

/// The time since an anchor.
#[derive(Clone, Copy, Debug)]
struct Meter {
    anchor: Anchor,
    generation: u64,
    at: WallTime,
    armed_at: Monotonic,
    /// The time since the anchor when it was first seen: more than zero if a restart lies between.
    already: Duration,
}

#[derive(Debug)]
struct Idle {
    generation: u64,
    armed_at: Monotonic,
    /// How long the state had been idle when the timer was armed: more than zero if a restart lies
    /// between.
    already_ms: u64,
    rings_at: Monotonic,
}

impl Timers {
    /// Arms the timers that the entity has, and disarms those that it no longer has. The remaining
    /// time is computed by the wall clock, which may have jumped, so it is clamped to the range
    /// from zero to the whole time.
    ///
    /// `has_work` is true while a handler is queued or executes: an end that waits for the journal
    /// does not count as inactivity.
    pub(crate) fn follow(
        &mut self,
        entity: &Entity,
        has_work: bool,
        spec: &Spec,
        clock: &dyn Clock,
    ) {
        let timer = entity.idle_timer(spec);
        let armed = self.idle.as_ref().map(|idle| idle.generation);
        if timer.map(|timer| timer.generation) != armed {
            self.idle = timer.map(|timer| {
                let (armed_at, waited) = (clock.now(), clock.wall().since(timer.since));
                let already_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                let rings_at = after_ms(armed_at, timer.after_ms.saturating_sub(already_ms));
                Idle { generation: timer.generation, armed_at, already_ms, rings_at }
            });
        }
        // Scheduled actions of a session wait while its run is not running, and come due with the
        // next run if their time has passed by then.
        let waits = entity.session().is_some_and(|session| !session.is_running());
        self.schedules.retain(|number, _| !waits && entity.schedule(*number).is_some());
        for schedule in entity.schedules().filter(|_| !waits) {
            self.schedules.entry(schedule.number).or_insert_with(|| {
                let left = schedule.due.since(clock.wall());
                clock.now().after(left.min(Duration::from_millis(MAX_BUDGET_MS)))
            });
        }
        self.measure(entity, has_work, clock);
    }

    /// Follows the anchors of a session, or of handlers without one, and computes when the next limit
    /// is breached.
    fn measure(&mut self, entity: &Entity, has_work: bool, clock: &dyn Clock) {
        let Some(watched) = entity.watched() else {
            self.limits = None;
            return;
        };
        let now = clock.now();
        let before = self.limits.as_ref().map(|limits| limits.meters);
        let mut is_refused = self.limits.as_ref().is_some_and(|limits| limits.is_refused);
        let active_at = self.limits.as_ref().and_then(|limits| limits.active_at);
        let meters = watched.anchors().map(|(anchor, generation, at)| {
            let known = before.iter().flatten().find(|meter| {
                (meter.anchor, meter.generation, meter.at) == (anchor, generation, at)
            });
            is_refused &= known.is_some();
            known.copied().unwrap_or_else(|| {
                let already = clock.wall().since(at);
                Meter { anchor, generation, at, armed_at: now, already }
            })
        });
        let found = evaluate(watched, has_work, &elapsed(&meters, active_at, now));
        let rings_at = match found {
            _ if is_refused => Monotonic::NEVER,
            Evaluation { due: Some(_), .. } => now,
            Evaluation { next: Some(next), .. } => now.after(next),
            Evaluation { .. } => Monotonic::NEVER,
        };
        let next_stop = found.next_stop.filter(|_| !is_refused);
        let stops_at = next_stop.map_or(Monotonic::NEVER, |next| now.after(next));
        let limits = Limits { meters, has_work, rings_at, stops_at, is_refused, active_at };
        match &mut self.limits {
            Some(kept) => **kept = limits,
            none => *none = Some(Box::new(limits)),
        }
    }

    /// The limit that is breached by now.
    pub(super) fn limit_due(&self, entity: &Entity, clock: &dyn Clock) -> Option<limits::Due> {
        let limits = self.limits.as_ref().filter(|limits| limits.rings_at <= clock.now())?;
        let elapsed = elapsed(&limits.meters, limits.active_at, clock.now());
        evaluate(entity.watched()?, limits.has_work, &elapsed).due
    }

    /// Notes that its handlers were last active `at`. Returns whether that is later than what was
    /// known; the timers have to follow it then.
    pub(super) fn note_activity(&mut self, at: Monotonic) -> bool {
        let Some(limits) = &mut self.limits else { return false };
        let is_later = limits.active_at.is_none_or(|known| at > known);
        limits.active_at = limits.active_at.max(Some(at));
        is_later
    }

    /// When a limit of a session is breached that ends something, if nothing else happens.
    pub(super) fn next_stop(&self) -> Monotonic {
        self.limits.as_ref().map_or(Monotonic::NEVER, |limits| limits.stops_at)
    }

    /// When a limit is breached, if nothing else happens.
    pub(super) fn next_limit(&self) -> Monotonic {
        self.limits.as_ref().map_or(Monotonic::NEVER, |limits| limits.rings_at)
    }

    /// When the first timer fires.
    pub(crate) fn next(&self) -> Monotonic {
        let idle = self.idle.as_ref().map(|idle| idle.rings_at);
        let times = self.schedules.values().copied().chain(idle).chain([self.next_limit()]);
        times.min().unwrap_or(Monotonic::NEVER)
    }

    /// The first timer that is due now, in the order that [`sandglass_liveness::instant`] defines.
    pub(super) fn due(&self, entity: &Entity, clock: &dyn Clock) -> Option<Due> {
        let now = clock.now();
        let schedules = self.schedules.iter().map(|(number, at)| (*number, *at));
        first_due(now, self.limit_due(entity, clock), schedules, || {
            let idle = self.idle.as_ref().filter(|idle| idle.rings_at <= now)?;
            let waited = u64::try_from(now.since(idle.armed_at).as_millis()).unwrap_or(u64::MAX);
            let idle_ms = idle.already_ms.saturating_add(waited);
            Some(Due::Idle { generation: idle.generation, idle_ms })
        })
    }

    /// Disarms a timer whose firing was refused.
    pub(super) fn drop_due(&mut self, due: Due) {
        match due {
            Due::Idle { .. } => {
                // The generation stays, so that it is not armed again.
                if let Some(idle) = &mut self.idle {
                    idle.rings_at = Monotonic::NEVER;
                }
            }
            Due::Schedule(number) => drop(self.schedules.insert(number, Monotonic::NEVER)),
            Due::Limit(_) => {
                if let Some(limits) = &mut self.limits {
                    limits.is_refused = true;
                }
            }
        }
    }
}

fn elapsed(meters: &[Meter], active_at: Option<Monotonic>, now: Monotonic) -> Elapsed {
    let mut elapsed = Elapsed::default();
    for meter in meters {
        elapsed.set(meter.anchor, meter.already.saturating_add(now.since(meter.armed_at)));
    }
    if let Some(active_at) = active_at {
        let activity = elapsed.since(Anchor::Activity).min(now.since(active_at));
        elapsed.set(Anchor::Activity, activity);
    }
    elapsed
}
