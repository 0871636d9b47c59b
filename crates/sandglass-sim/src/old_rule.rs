//! The old rule for state timers, computed beside the new one: each state has one timer, which
//! continues while handlers run and is re-armed by what they send. It decides nothing here; it only
//! determines when the old timer would have fired.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sandglass_liveness::{Entity, Spec};
use sandglass_model::{EntityRef, Event, Record, SpecDigest, WallTime};
use serde::Serialize;

use crate::automaton::Automaton;
use crate::invariant::Invariant;

/// How often state timers fired, and would have fired by the old rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleCounts {
    /// State timers that fired.
    pub fired: u64,
    /// State timers that fired while a handler was in flight.
    pub fired_in_flight: u64,
    /// State timers that fired and would not have fired by the old rule.
    pub fired_anew: u64,
    /// How often the old rule would have fired while a handler was in flight, in spite of
    /// everything that re-armed it.
    pub spared: u64,
}

impl std::ops::AddAssign for RuleCounts {
    fn add_assign(&mut self, other: Self) {
        self.fired += other.fired;
        self.fired_in_flight += other.fired_in_flight;
        self.fired_anew += other.fired_anew;
        self.spared += other.spared;
    }
}

/// The state of the old rule in one seed.
#[derive(Debug, Default)]
pub(crate) struct OldRule {
    automata: BTreeMap<String, Automaton>,
    armed: BTreeMap<EntityRef, WallTime>,
    /// Entities whose old timer has fired since it was last armed.
    gone_off: BTreeSet<EntityRef>,
    pub(crate) counts: RuleCounts,
    is_blind: bool,
}

impl OldRule {
    pub(crate) fn beside(automata: &[Automaton]) -> Self {
        let named = automata.iter().map(|one| (one.name.clone(), one.clone()));
        Self { automata: named.collect(), ..Self::default() }
    }

    /// Stops comparing the rules, because clocks jump and so the times of records cannot be
    /// compared.
    pub(crate) fn cannot_judge(&mut self) {
        self.is_blind = true;
    }

    /// Takes a signal that a handler sent, whether it is recorded or not.
    pub(crate) fn note_signal(&mut self, name: &EntityRef, state: &str, what: &str, at: WallTime) {
        if self.is_own(name, state, what) {
            self.arm(name, at);
        }
    }

    /// Takes one more record; `entity` is as it was before.
    pub(crate) fn record(
        &mut self,
        record: &Record,
        entity: Option<&Entity>,
        specs: &BTreeMap<SpecDigest, Arc<Spec>>,
    ) -> Option<(Invariant, String)> {
        let name = record.entity.as_ref()?;
        let Some(entity) = entity else {
            self.arm(name, record.at);
            return None;
        };
        let timeout = specs.get(&entity.spec).and_then(|spec| spec.timeouts.get(&entity.state));
        let since = self.armed.get(name).copied().unwrap_or_default();
        let waited_ms = u64::try_from(record.at.since(since).as_millis()).unwrap_or(u64::MAX);
        let is_over = timeout.is_some_and(|timeout| waited_ms >= timeout.after_ms);
        if is_over && !self.is_blind && !entity.is_settled() && self.gone_off.insert(name.clone()) {
            self.counts.spared += 1;
        }
        match &record.event {
            Event::StateIdle { state, after_ms, .. } => {
                self.counts.fired += 1;
                self.counts.fired_in_flight += u64::from(!entity.is_settled());
                if waited_ms < *after_ms && !self.is_blind {
                    self.counts.fired_anew += 1;
                    let what = format!(
                        "the timer of `{state}` of {name} fires, and the old one was armed \
                         {waited_ms} ms ago of {after_ms}"
                    );
                    return Some((Invariant::OldRuleFires, what));
                }
            }
            Event::Transition { .. } | Event::SpecChanged { .. } => self.arm(name, record.at),
            Event::Signal { name: what, dispatch, resets_idle, .. } => {
                let is_own = dispatch.is_some() && self.is_own(name, &entity.state, what);
                if *resets_idle || is_own {
                    self.arm(name, record.at);
                }
            }
            _ => {}
        }
        None
    }

    fn arm(&mut self, name: &EntityRef, at: WallTime) {
        self.armed.insert(name.clone(), at);
        self.gone_off.remove(name);
    }

    fn is_own(&self, name: &EntityRef, state: &str, what: &str) -> bool {
        let automaton = self.automata.get(name.entity_type());
        automaton.is_some_and(|one| one.own_resets(state).contains(&what))
    }
}
