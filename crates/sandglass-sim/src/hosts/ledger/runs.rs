//! Which handlers run where.

use std::collections::BTreeMap;

use sandglass_model::{DispatchId, EntityRef, Partition};

use crate::hosts::timeline::Life;
use crate::invariant::Invariant;

/// One attempt of one dispatch.
pub(crate) type Key = (DispatchId, u32);

type Finding = Option<(Invariant, String)>;

#[derive(Debug)]
struct Run {
    life: Life,
    entity: EntityRef,
    is_running: bool,
}

/// All handlers that were started.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: BTreeMap<Key, Run>,
}

impl Runs {
    pub(super) fn note_start(
        &mut self,
        life: Life,
        entity: &EntityRef,
        key: Key,
        is_durable: bool,
    ) -> Finding {
        let run = Run { life, entity: entity.clone(), is_running: true };
        if let Some(before) = self.runs.insert(key, run) {
            let what = format!(
                "attempt {} of {} of {entity} starts on {life}, and has started on {}",
                key.1, key.0, before.life
            );
            return Some((Invariant::AtMostOnce, what));
        }
        (!is_durable).then(|| {
            let what = format!("{} of {entity} starts on {life}, and is not in flight", key.0);
            (Invariant::DurableFirst, what)
        })
    }

    /// A handler does not run any more.
    pub(crate) fn note_stop(&mut self, life: Life, key: Key) {
        if let Some(run) = self.runs.get_mut(&key).filter(|run| run.life == life) {
            run.is_running = false;
        }
    }

    /// The slots in which handlers run, once for each handler.
    pub(crate) fn busy_slots(&self) -> Vec<usize> {
        self.runs.values().filter(|run| run.is_running).map(|run| run.life.slot).collect()
    }

    pub(super) fn note_effect(&self, life: Life, entity: &EntityRef, key: Key) -> Finding {
        let of = self.runs.get(&key).map(|run| run.life);
        (of != Some(life)).then(|| {
            let what = format!("{} of {entity} acts on {life}, and started on {of:?}", key.0);
            (Invariant::AtMostOnce, what)
        })
    }

    /// An entity of the partition with a handler that runs in this process.
    pub(super) fn running_in(&self, life: Life, partition: Partition) -> Option<&EntityRef> {
        let of = |run: &&Run| {
            run.is_running && run.life == life && Partition::of(&run.entity) == partition
        };
        self.runs.values().find(of).map(|run| &run.entity)
    }
}
