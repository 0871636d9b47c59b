//! The timers of one entity: its state's, and those of what it has scheduled. They
//! follow the entity, which is where they are kept; here is only when they ring, awake
//! or asleep.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_liveness::{Entity, Input, Spec};
use sandglass_model::limit::MAX_BUDGET_MS;
use sandglass_model::{Clock, Monotonic};

use crate::timer::after_ms;

/// When the timers of an entity ring.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    idle: Option<Idle>,
    schedules: BTreeMap<u64, Monotonic>,
}

#[derive(Debug)]
struct Idle {
    generation: u64,
    armed_at: Monotonic,
    /// How long the state had been idle when the timer was armed: more than
    /// nothing where a restart lies between.
    already_ms: u64,
    rings_at: Monotonic,
}

/// A timer that rings.
#[derive(Debug)]
pub(super) enum Due {
    Idle { generation: u64, idle_ms: u64 },
    Schedule(u64),
}

impl Timers {
    /// Arms what the entity has and isn't armed, and disarms what it hasn't. What is
    /// left is told by the wall clock, which may have jumped: never less than
    /// nothing, never more than the whole.
    pub(crate) fn follow(&mut self, entity: &Entity, spec: &Spec, clock: &dyn Clock) {
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
        self.schedules.retain(|number, _| entity.schedule(*number).is_some());
        for schedule in entity.schedules() {
            self.schedules.entry(schedule.number).or_insert_with(|| {
                let left = schedule.due.since(clock.wall());
                clock.now().after(left.min(Duration::from_millis(MAX_BUDGET_MS)))
            });
        }
    }

    /// When the first of them rings.
    pub(crate) fn next(&self) -> Monotonic {
        let idle = self.idle.as_ref().map(|idle| idle.rings_at);
        let times = self.schedules.values().copied().chain(idle);
        times.min().unwrap_or(Monotonic::NEVER)
    }

    /// One that rings now: what was scheduled comes before idleness.
    pub(super) fn due(&self, clock: &dyn Clock) -> Option<Due> {
        let now = clock.now();
        let scheduled = self.schedules.iter().filter(|(_, at)| **at <= now);
        if let Some((number, _)) = scheduled.min_by_key(|(number, at)| (**at, **number)) {
            return Some(Due::Schedule(*number));
        }
        let idle = self.idle.as_ref().filter(|idle| idle.rings_at <= now)?;
        let waited = u64::try_from(now.since(idle.armed_at).as_millis()).unwrap_or(u64::MAX);
        let idle_ms = idle.already_ms.saturating_add(waited);
        Some(Due::Idle { generation: idle.generation, idle_ms })
    }

    /// Forgets a timer whose ringing was refused.
    pub(super) fn drop_due(&mut self, input: &Input) {
        match input {
            Input::StateIdle { .. } => {
                // The generation stays, so that it isn't armed again.
                if let Some(idle) = &mut self.idle {
                    idle.rings_at = Monotonic::NEVER;
                }
            }
            Input::ScheduleDue { schedule } => {
                self.schedules.insert(*schedule, Monotonic::NEVER);
            }
            _ => {}
        }
    }
}
