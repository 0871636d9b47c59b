//! Reads invariants: what holds after each transition. A transition that would break one is refused.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use sandglass_model::Object;
use sandglass_source::{Diagnostics, Table, nearest};
use serde_json::Value;

use super::states::States;
use super::{Guard, Name, Scope, Spec, check, guard};
use crate::entity::Fields;

/// Most invariants of an automaton: each is evaluated for each transition.
pub const INVARIANTS_MAX: usize = 256;

/// The condition that a state takes no action.
const NO_FURTHER: &str = "no_further_transitions";

/// What holds after each transition.
#[derive(Clone, Debug)]
pub struct Invariant {
    /// Its name.
    pub name: Name,
    /// What holds, in every state.
    pub condition: Guard,
    /// What to tell a caller whose action would break it.
    pub message: Option<String>,
}

/// Reads `[[invariant]]` and `[[field_invariant]]`, after the actions.
pub(super) fn read(root: &Table<'_, '_>, spec: &mut Spec, out: &mut Diagnostics<'_>) {
    let reader = Reader::of(spec);
    let mut invariants = Vec::new();
    for table in root.tables("invariant", |_| "[[invariant]]".to_owned(), out) {
        if invariants.len() <= INVARIANTS_MAX {
            table.only(&["name", "when", "assert", "message", "hint"], out);
            invariants.extend(reader.invariant(&table, out));
        }
    }
    for table in root.tables("field_invariant", |_| "[[field_invariant]]".to_owned(), out) {
        if invariants.len() <= INVARIANTS_MAX {
            table.only(&["name", "when", "require", "assert", "message", "hint"], out);
            invariants.extend(field_invariant(&table, spec, out));
        }
    }
    if let Some(one_more) = invariants.get(INVARIANTS_MAX) {
        let message = format!("an automaton may have {INVARIANTS_MAX} invariants at most");
        out.error(one_more.name.span(), message);
    }
    spec.invariants = invariants;
}

/// Reads `[[invariant]]`, with what does not change between them.
struct Reader<'s> {
    spec: &'s Spec,
    states: States<'s>,
    /// The variables of a new entity.
    variables: Object,
    /// The first action that each state takes.
    leaving: OnceCell<BTreeMap<&'s str, &'s Name>>,
}

impl<'s> Reader<'s> {
    fn of(spec: &'s Spec) -> Self {
        let (states, variables) = (States::of(&spec.states), spec.initial_variables());
        Self { spec, states, variables, leaving: OnceCell::new() }
    }

    fn invariant(&self, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Invariant> {
        let name = table.required_name("name", out);
        let table = table.called("invariant", name.as_ref());
        let when = table.names("when", out);
        for state in &when {
            check::known_state(&self.states, state, out);
        }
        let assert = table.required_text("assert", out)?;
        let asserted = match function(&assert) {
            (NO_FURTHER, None) => {
                when.iter().for_each(|state| self.check_ended(state, &table, out));
                return None;
            }
            ("never", Some(state)) => {
                check::known_state(&self.states, &Name::new(state, assert.span().clone()), out);
                Guard::Not(Box::new(Guard::state_in([Value::from(state)].into_iter())))
            }
            ("ordering", Some(_)) => {
                let help = "the entity's earlier states are not kept; set a variable in the first \
                            state, and assert it in the second";
                let message = format!("{} is not checked", table.label);
                out.report_default(assert.span(), message, help);
                return None;
            }
            (name, None) if nearest(name, [NO_FURTHER]).is_some() => {
                let help = format!("did you mean `{NO_FURTHER}`?");
                out.error_with_help(assert.span(), format!("`{name}` is no condition"), help);
                return None;
            }
            _ => {
                let asserted = guard::text(&assert, "assert", self.spec, out)?;
                guard::check_states(&asserted, assert.span(), self.spec, out);
                asserted
            }
        };
        guard::check_own(&asserted, assert.span(), out);
        let condition = if when.is_empty() {
            asserted
        } else {
            let states = when.iter().map(|state| Value::from(state.as_str()));
            Guard::implies(Guard::state_in(states), asserted)
        };
        let condition = guard::bounded(condition, assert.span(), self.spec, out)?;
        let invariant = Invariant { name: name?, condition, message: message(&table, out) };
        let fields = Fields::default();
        let first = Scope {
            id: None,
            state: &self.spec.initial,
            variables: &self.variables,
            fields: &fields,
            observed: &[],
        };
        if !invariant.condition.holds(first) {
            let help = "it is checked after each transition, and not when an entity is created";
            out.warning(assert.span(), format!("a new entity breaks {}", table.label), help);
        }
        Some(invariant)
    }

    /// Checks that no action leaves `state`.
    fn check_ended(&self, state: &Name, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
        let leaving = self.leaving.get_or_init(|| {
            let mut leaving = BTreeMap::new();
            for action in self.spec.actions.values() {
                for from in &action.from {
                    leaving.entry(from.as_str()).or_insert(&action.name);
                }
            }
            leaving
        });
        if let Some(action) = leaving.get(state.as_str()) {
            let message = format!(
                "{}: state `{state}` takes `{action}`, so it has further transitions",
                table.label
            );
            let help = format!("take `{state}` out of `from` of the action, or out of `when`");
            out.report_default(state.span(), message, help);
        }
    }
}

/// The name and argument of `NAME(ARGUMENT)`; a text that is no such call is all name.
fn function(assert: &str) -> (&str, Option<&str>) {
    let assert = assert.trim();
    let call = assert.strip_suffix(')').and_then(|call| call.split_once('('));
    let is_one = |argument: &str| !argument.contains(['(', ')', ' ']) || argument.contains(',');
    match call.filter(|(_, argument)| is_one(argument)) {
        Some((name, argument)) => (name.trim(), Some(argument.trim())),
        None => (assert, None),
    }
}

fn field_invariant(
    table: &Table<'_, '_>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Invariant> {
    let name = table.required_name("name", out);
    let table = table.called("field invariant", name.as_ref());
    let condition = |key: &str, out: &mut Diagnostics<'_>| {
        table.require(key, out);
        let value = table.value(key)?;
        match value.get_ref().as_str() {
            Some(written) => guard::fields(&Name::new(written, value.span()), key, spec, out),
            None => guard::predicate(value, &format!("`{key}` of {}", table.label), 0, out),
        }
    };
    let condition = if table.has("assert") {
        condition("assert", out)?
    } else {
        let (when, require) = (condition("when", out), condition("require", out));
        Guard::implies(when?, require?)
    };
    guard::check_own(&condition, &table.span, out);
    guard::check_states(&condition, &table.span, spec, out);
    let condition = guard::bounded(condition, &table.span, spec, out)?;
    Some(Invariant { name: name?, condition, message: message(&table, out) })
}

fn message(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<String> {
    table.text("message", out).map(|text| text.to_string())
}
