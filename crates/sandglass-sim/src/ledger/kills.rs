//! Whether the handlers of a run that is to stop end as soon as their grace is over.

use std::collections::BTreeMap;

use sandglass_model::{EntityRef, Event, Limit};

/// How long after a kill is recorded a handler that can be killed may go on, in milliseconds: the
/// process hears that the record is durable, and stops the handler.
const KILL_MAX_MS: i64 = 100;

/// Since when the handlers of each entity are to be killed, in milliseconds of the story.
#[derive(Debug, Default)]
pub(super) struct Kills(BTreeMap<EntityRef, i64>);

impl Kills {
    /// One more record about `entity`.
    pub(super) fn recorded(&mut self, entity: &EntityRef, event: &Event, now_ms: i64) {
        match event {
            Event::RunStopping(stopping) if stopping.grace_ms == 0 => {
                self.0.entry(entity.clone()).or_insert(now_ms);
            }
            Event::LimitBreached(breach) if breach.limit == Limit::AbortTimeout => {
                self.0.entry(entity.clone()).or_insert(now_ms);
            }
            Event::RunStopped(_) => {
                self.0.remove(entity);
            }
            _ => {}
        }
    }

    /// All handlers are gone with their process.
    pub(super) fn process_ended(&mut self) {
        self.0.clear();
    }

    /// A handler of `entity` that can be killed has ended. Returns a message if it ended too late.
    pub(super) fn ended(&self, entity: &EntityRef, now_ms: i64) -> Option<String> {
        let late_ms = now_ms - self.0.get(entity)?;
        (late_ms > KILL_MAX_MS).then(|| {
            format!("a handler of {entity} ran on for {late_ms} ms after its run's grace was over")
        })
    }
}
