//! Checks that the handlers of a stopping run end as soon as their grace is over.

use std::collections::BTreeMap;

use sandglass_model::{EntityRef, Event, Limit};

/// How long a handler that can be killed may continue after its kill is recorded, in milliseconds:
/// the process first learns that the record is durable, and then kills the handler.
const KILL_MAX_MS: i64 = 100;

/// Since when the handlers of each entity must be killed, in milliseconds of simulated time.
#[derive(Debug, Default)]
pub(super) struct Kills(BTreeMap<EntityRef, i64>);

impl Kills {
    /// Takes one more record about `entity`.
    pub(super) fn record(&mut self, entity: &EntityRef, event: &Event, now_ms: i64) {
        let is_grace_over = match event {
            Event::RunStopping(stopping) => stopping.grace_ms == 0,
            Event::LimitBreached(breach) => breach.limit == Limit::AbortTimeout,
            Event::RunStopped(_) => {
                self.0.remove(entity);
                false
            }
            _ => false,
        };
        if is_grace_over {
            self.0.entry(entity.clone()).or_insert(now_ms);
        }
    }

    /// Forgets all handlers, which ended with their process.
    pub(super) fn end_process(&mut self) {
        self.0.clear();
    }

    /// A handler of `entity` that can be killed has ended. Returns a message if it ended too late.
    pub(super) fn check_end(&self, entity: &EntityRef, now_ms: i64) -> Option<String> {
        let late_ms = now_ms - self.0.get(entity)?;
        (late_ms > KILL_MAX_MS).then(|| {
            format!("a handler of {entity} ran on for {late_ms} ms after its run's grace was over")
        })
    }
}
