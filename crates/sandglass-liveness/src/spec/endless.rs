//! Finds actions that send each other again at once forever.

use std::collections::BTreeSet;

use super::components::components;
use super::states::{StateSet, States};
use super::{Action, Effect, Spec};

/// The actions that are sent again at once in the state that they were taken in, directly or through
/// others, without a guard that may refuse one of them.
pub(super) fn endless<'s>(spec: &'s Spec, states: &States<'_>) -> Vec<&'s Action> {
    let names: Vec<&str> = spec.actions.keys().map(String::as_str).collect();
    let nodes = spec.actions.values().map(|action| Node::of(action, &names, states)).collect();
    let graph = Graph { nodes, states: states.count() };
    let cyclic = graph.cyclic();
    let endless = graph.nodes.iter().enumerate().filter(|(number, _)| cyclic.contains(number));
    endless.map(|(_, node)| node.action).collect()
}

/// An action, by numbers.
struct Node<'s> {
    action: &'s Action,
    taking: StateSet,
    /// The state that it leads to; `None` if it stays.
    to: Option<usize>,
    /// The actions that it sends at once.
    sends: BTreeSet<usize>,
}

impl<'s> Node<'s> {
    fn of(action: &'s Action, names: &[&str], states: &States<'_>) -> Self {
        let at_once = action.effects.iter().filter_map(|effect| match effect {
            Effect::Schedule { action, delay_ms: 0 } => names.binary_search(&action.as_str()).ok(),
            _ => None,
        });
        let sends = at_once.filter(|_| !action.may_be_refused()).collect();
        let to = action.to.as_ref().and_then(|to| states.number(to));
        Self { action, taking: states.taking(action), to, sends }
    }
}

/// The pairs of an action and a state that takes it. Action n in state m has the number `n * states + m`.
struct Graph<'s> {
    nodes: Vec<Node<'s>>,
    states: usize,
}

impl Graph<'_> {
    /// The numbers of the actions that lead back to themselves.
    fn cyclic(&self) -> BTreeSet<usize> {
        let components = components(self.nodes.len() * self.states, |pair| self.after(pair));
        let leads_back =
            |pair: &usize| self.after(*pair).any(|next| components[next] == components[*pair]);
        self.pairs().filter(leads_back).map(|pair| pair / self.states).collect()
    }

    /// The pairs whose action sends others.
    fn pairs(&self) -> impl Iterator<Item = usize> {
        let sending = self.nodes.iter().enumerate().filter(|(_, node)| !node.sends.is_empty());
        sending.flat_map(move |(number, node)| {
            let states = (0..self.states).filter(|state| node.taking.contains(*state));
            states.map(move |state| number * self.states + state)
        })
    }

    /// The pairs that follow `pair`.
    fn after(&self, pair: usize) -> impl Iterator<Item = usize> {
        let node = &self.nodes[pair / self.states];
        let state = node.to.unwrap_or(pair % self.states);
        let taken = node.sends.iter().filter(move |next| self.nodes[**next].taking.contains(state));
        taken.map(move |next| next * self.states + state)
    }
}
