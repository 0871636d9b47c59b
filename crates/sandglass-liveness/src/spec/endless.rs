//! Finds actions that send each other again at once forever.

use std::collections::BTreeSet;

use super::states::{StateSet, States};
use super::{Action, Effect, Spec};

/// The actions that are sent again at once in the state that they were taken in, directly or through
/// others, without a guard that may refuse one of them.
pub(super) fn endless<'s>(spec: &'s Spec, states: &States<'_>) -> Vec<&'s Action> {
    let names: Vec<&str> = spec.actions.keys().map(String::as_str).collect();
    let nodes = spec.actions.values().map(|action| Node::of(action, &names, states)).collect();
    let graph = Graph { nodes, states: states.count() };
    let cyclic = Search::of(&graph);
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

/// A search for strongly connected components (Tarjan). It visits each pair once, and has a stack of its
/// own, because a file may chain all its actions.
struct Search {
    /// By pair: when it was reached, from 1, and the earliest pair in its component that is known.
    reached: Vec<(usize, usize)>,
    count: usize,
    /// The reached pairs whose components are not complete.
    open: Vec<usize>,
    /// The actions of pairs that lead to themselves.
    cyclic: BTreeSet<usize>,
}

/// The number of each pair of a complete component. It is larger than all others, so that `min` ignores it.
const COMPLETE: usize = usize::MAX;

impl Search {
    /// Returns the numbers of the actions that lead back to themselves.
    fn of(graph: &Graph<'_>) -> BTreeSet<usize> {
        let reached = vec![(0, 0); graph.nodes.len() * graph.states];
        let mut search = Self { reached, count: 0, open: Vec::new(), cyclic: BTreeSet::new() };
        graph.pairs().for_each(|pair| search.visit(graph, pair));
        search.cyclic
    }

    fn visit(&mut self, graph: &Graph<'_>, start: usize) {
        if self.reached[start].0 != 0 {
            return;
        }
        self.reach(start);
        let mut path = vec![(start, graph.after(start))];
        while let Some((pair, after)) = path.last_mut() {
            let pair = *pair;
            if let Some(next) = after.next() {
                if self.reached[next].0 == 0 {
                    self.reach(next);
                    path.push((next, graph.after(next)));
                } else {
                    self.reached[pair].1 = self.reached[pair].1.min(self.reached[next].0);
                }
                if next == pair {
                    self.cyclic.insert(pair / graph.states);
                }
                continue;
            }
            path.pop();
            if let Some((before, _)) = path.last() {
                self.reached[*before].1 = self.reached[*before].1.min(self.reached[pair].1);
            }
            if self.reached[pair].0 == self.reached[pair].1 {
                self.complete(pair, graph.states);
            }
        }
    }

    fn reach(&mut self, pair: usize) {
        self.count += 1;
        self.reached[pair] = (self.count, self.count);
        self.open.push(pair);
    }

    /// Completes the component whose first pair is `pair`.
    fn complete(&mut self, pair: usize, states: usize) {
        let first = self.open.iter().rposition(|open| *open == pair).unwrap_or_default();
        let is_cycle = self.open.len() - first > 1;
        for member in self.open.drain(first..) {
            self.reached[member] = (COMPLETE, COMPLETE);
            if is_cycle {
                self.cyclic.insert(member / states);
            }
        }
    }
}
