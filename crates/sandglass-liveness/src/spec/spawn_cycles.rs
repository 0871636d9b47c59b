//! Finds actions that spawn entities again and again, because nothing on the way back to them waits for
//! time or may refuse. The cost is linear in the size of the specs: it finds strongly connected components,
//! and one cycle in each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sandglass_source::{Diagnostic, Diagnostics};

use super::components::components;
use super::spawn::NEW_ID;
use super::{Action, Effect, Name, SpawnId, Spec};

/// Most actions of a cycle that a message names.
const SHOWN_MAX: usize = 8;

/// Warns of cycles of spawns within `spec`.
pub(super) fn lint(spec: &Spec, out: &mut Diagnostics<'_>) {
    for cycle in Graph::of(&[spec]).cycles(|from, to| from == to) {
        cycle.warn(out);
    }
}

/// The warnings of cycles in which entities of these types spawn each other, each with the number of the
/// spec that it is about. Those within one type are found when its spec is read.
#[must_use]
pub fn spawn_cycles(specs: &[&Spec]) -> Vec<(usize, Diagnostic)> {
    let mut found = Vec::new();
    for cycle in Graph::of(specs).cycles(|from, to| from != to) {
        let mut out = Diagnostics::new(&specs[cycle.spec].source);
        cycle.warn(&mut out);
        found.extend(out.finish().into_iter().map(|diagnostic| (cycle.spec, diagnostic)));
    }
    found
}

/// A cycle, beginning with an action that spawns an entity.
struct Cycle<'s> {
    spec: usize,
    /// The type of the spawned entity, as the action names it.
    spawned: &'s Name,
    /// The actions, as `TYPE.ACTION`, with the first one at the end again.
    path: Vec<String>,
}

impl Cycle<'_> {
    fn warn(&self, out: &mut Diagnostics<'_>) {
        let mut shown = self.path.clone();
        if shown.len() > SHOWN_MAX {
            let last = shown.split_off(self.path.len() - 1);
            shown.truncate(SHOWN_MAX - 2);
            shown.push("..".to_owned());
            shown.extend(last);
        }
        let message = format!("entities are spawned without end: {}", shown.join(" -> "));
        let help = "give one of these actions a guard, or reach it by a `schedule` with a delay; \
                    otherwise the host refuses further spawns (`too_many`)";
        out.warning(self.spawned.span(), message, help);
    }
}

/// The actions without a guard, and which actions each one leads to without a delay.
struct Graph<'s> {
    /// The number of the spec, its name and the action.
    actions: Vec<(usize, &'s str, &'s Action)>,
    next: Vec<Vec<usize>>,
    /// The spawns, as the action, the first action of the spawned entity, and its type.
    spawns: Vec<(usize, usize, &'s Name)>,
}

impl<'s> Graph<'s> {
    fn of(specs: &[&'s Spec]) -> Self {
        let mut actions = Vec::new();
        for (at, spec) in specs.iter().enumerate() {
            let unguarded = spec.actions.values().filter(|action| !action.may_be_refused());
            actions.extend(unguarded.map(|action| (at, spec.name.as_str(), action)));
        }
        let mut graph = Self { next: vec![Vec::new(); actions.len()], actions, spawns: Vec::new() };
        let places = Places::of(specs, &graph.actions);
        for from in 0..graph.actions.len() {
            let (at, _, action) = graph.actions[from];
            graph.next[from].extend(places.after(specs[at], action));
            for spawn in action.spawns() {
                // Any other id names an entity that exists when it is spawned again.
                let is_new = match &spawn.id {
                    SpawnId::Template(template) => template.contains(NEW_ID),
                    SpawnId::Param(param) => !action.params.contains(param),
                };
                let first = spawn.initial_action.as_ref().filter(|_| is_new);
                let to = first.and_then(|first| places.first_action(&spawn.entity_type, first));
                if let Some(to) = to {
                    graph.next[from].push(to);
                    graph.spawns.push((from, to, &spawn.entity_type));
                }
            }
        }
        graph
    }

    /// One cycle in each component that has a spawn between types for which `is_meant`.
    fn cycles(&self, is_meant: fn(usize, usize) -> bool) -> Vec<Cycle<'s>> {
        let components = components(self.next.len(), |node| self.next[node].iter().copied());
        let mut seen = BTreeSet::new();
        let mut cycles = Vec::new();
        for &(from, to, spawned) in &self.spawns {
            let spec = self.actions[from].0;
            if components[from] == components[to]
                && is_meant(spec, self.actions[to].0)
                && seen.insert(components[from])
            {
                let path = self.path(to, from, &components).into_iter();
                let path = std::iter::once(from).chain(path).map(|node| {
                    let (_, entity_type, action) = self.actions[node];
                    format!("{entity_type}.{}", action.name)
                });
                cycles.push(Cycle { spec, spawned, path: path.collect() });
            }
        }
        cycles
    }

    /// The shortest path from `from` to `to` in their component.
    fn path(&self, from: usize, to: usize, components: &[usize]) -> Vec<usize> {
        let mut before: BTreeMap<usize, usize> = BTreeMap::from([(from, from)]);
        let mut open = VecDeque::from([from]);
        while let Some(node) = open.pop_front().filter(|node| *node != to) {
            for &next in self.next[node].iter().filter(|next| components[**next] == components[to])
            {
                before.entry(next).or_insert_with(|| {
                    open.push_back(next);
                    node
                });
            }
        }
        let mut path = vec![to];
        let mut node = to;
        while node != from {
            let Some(&earlier) = before.get(&node) else { break };
            node = earlier;
            path.push(node);
        }
        path.reverse();
        path
    }
}

/// Where actions are in a graph, and which states take them.
struct Places<'s> {
    by_name: BTreeMap<(&'s str, &'s str), usize>,
    /// The first state of each type.
    initial: BTreeMap<&'s str, &'s str>,
    /// The actions, each with a state that takes it.
    taken: BTreeSet<(usize, &'s str)>,
}

impl<'s> Places<'s> {
    fn of(specs: &[&'s Spec], actions: &[(usize, &'s str, &'s Action)]) -> Self {
        let places = actions.iter().enumerate();
        let initial = specs.iter().map(|spec| (spec.name.as_str(), spec.initial.as_str()));
        let by_name =
            places.clone().map(|(node, (_, of, action))| ((*of, action.name.as_str()), node));
        let taken = places
            .flat_map(|(node, (_, _, action))| action.from.iter().map(move |from| (node, &**from)));
        Self { by_name: by_name.collect(), initial: initial.collect(), taken: taken.collect() }
    }

    /// The actions that follow `action` at once: those that it schedules without a delay, and the endings
    /// of its handlers.
    fn after(&self, spec: &Spec, action: &Action) -> Vec<usize> {
        let scheduled = action.effects.iter().filter_map(|effect| match effect {
            Effect::Schedule { action, delay_ms: 0 } => Some(action.as_str()),
            _ => None,
        });
        let started = action.dispatches.iter().filter_map(|name| spec.integrations.get(name));
        let unguarded = started.filter(|integration| integration.guard.is_none());
        let endings = unguarded.flat_map(|one| one.endings().map(|(_, action)| action.as_str()));
        let nodes = scheduled.chain(endings).filter_map(|name| {
            let node = *self.by_name.get(&(spec.name.as_str(), name))?;
            // An action that changes no state is taken in any of several.
            let state = action.to.as_deref();
            state.is_none_or(|state| self.taken.contains(&(node, state))).then_some(node)
        });
        nodes.collect()
    }

    /// The first action of a new entity, if its first state takes it.
    fn first_action(&self, entity_type: &str, action: &str) -> Option<usize> {
        let node = *self.by_name.get(&(entity_type, action))?;
        let initial = *self.initial.get(entity_type)?;
        self.taken.contains(&(node, initial)).then_some(node)
    }
}
