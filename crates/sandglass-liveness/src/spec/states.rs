//! Sets of the declared states of a spec. Checks of each integration, action or invariant in each state
//! would take time by the product of their numbers, so they compare whole sets.

use std::collections::BTreeMap;

use super::{Action, Name, STATES_MAX, Spec};

const BITS: usize = u64::BITS as usize;

/// The declared states.
pub(super) struct States<'s> {
    pub(super) declared: &'s [Name],
    /// In the order of their names.
    names: Vec<&'s str>,
}

/// A set of declared states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateSet([u64; STATES_MAX.div_ceil(BITS)]);

impl<'s> States<'s> {
    pub(super) fn of(declared: &'s [Name]) -> Self {
        let mut names: Vec<&str> = declared.iter().map(Name::as_str).collect();
        names.sort_unstable();
        names.dedup();
        Self { declared, names }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// The number of a state in the order of names.
    pub(super) fn number(&self, state: &str) -> Option<usize> {
        self.names.binary_search(&state).ok()
    }

    /// The set of `names`, without those that are not declared.
    pub(super) fn set<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> StateSet {
        let mut set = StateSet::default();
        names.into_iter().filter_map(|name| self.number(name)).for_each(|one| set.insert(one));
        set
    }

    /// The states of `set`, in the order of their names.
    pub(super) fn names(&self, set: StateSet) -> impl Iterator<Item = &'s str> {
        let names = self.names.iter().enumerate();
        names.filter(move |(number, _)| set.contains(*number)).map(|(_, name)| *name)
    }

    /// The states that take `action`.
    pub(super) fn taking(&self, action: &Action) -> StateSet {
        self.set(action.from.iter().map(Name::as_str))
    }

    /// The states that take each action.
    pub(super) fn taking_each<'a>(&self, spec: &'a Spec) -> BTreeMap<&'a str, StateSet> {
        spec.actions.iter().map(|(name, action)| (name.as_str(), self.taking(action))).collect()
    }

    /// The states that are entered when each integration starts, without those that are not declared.
    pub(super) fn entered<'a>(&self, spec: &'a Spec) -> BTreeMap<&'a str, StateSet> {
        let mut entered: BTreeMap<&str, StateSet> = BTreeMap::new();
        for action in spec.actions.values().filter(|action| !action.from.is_empty()) {
            let states = match &action.to {
                Some(to) => self.set([to.as_str()]),
                None => self.taking(action),
            };
            for integration in action.dispatches.iter().filter(|_| !states.is_empty()) {
                entered.entry(integration).or_default().join(states);
            }
        }
        entered
    }
}

impl StateSet {
    fn insert(&mut self, number: usize) {
        if let Some(word) = self.0.get_mut(number / BITS) {
            *word |= 1 << (number % BITS);
        }
    }

    pub(super) fn contains(self, number: usize) -> bool {
        self.0.get(number / BITS).is_some_and(|word| word & (1 << (number % BITS)) != 0)
    }

    pub(super) fn join(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    pub(super) fn without(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    pub(super) fn is_within(self, other: Self) -> bool {
        self.0.iter().zip(other.0).all(|(word, other)| word & !other == 0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}
