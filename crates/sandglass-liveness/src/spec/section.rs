//! Reads the sections of a spec file. Mistakes within one section are reported here; `check.rs` checks
//! the sections against each other.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{Object, RulesVersion, SpecDigest};
use sandglass_source::{
    Diagnostics, Document, Spot, Table, did_you_mean, items_of, nearest, toml_value, valid_name,
    without_repeated_keys, wrong_type,
};
use serde_json::Value;
use toml::de::DeValue;

use super::duration::seconds;
use super::integration::{self, Declared};
use super::states::States;
use super::{
    ACTIONS_MAX, Action, Effect, Guard, INTEGRATIONS_MAX, Name, Parsed, SOURCE_MAX_BYTES,
    STATES_MAX, Spec, StateTimeout, Strictness, Unread, VARIABLES_MAX, Variable, VariableKind,
    check, effect, guard, invariant, limits, lint, refusable,
};

const SECTIONS: [&str; 8] = [
    "automaton",
    "limits",
    "state",
    "action",
    "integration",
    "state_timeout",
    "invariant",
    "field_invariant",
];

/// Most pairs of a state and an action in a spec whose actions may be taken from every state: each pair is
/// kept, and a file need not name any.
const FROM_ALL_MAX: usize = 20_000;

/// What a `[[state]]` declares, in messages.
const VARIABLE: &str = "variable";

pub(super) fn parse(source: &str, strictness: Strictness) -> Parsed {
    let mut out = Diagnostics::new(source);
    let spec = read(source, RulesVersion::CURRENT, Some(strictness), &mut out);
    if let Some(spec) = &spec {
        refusable::check(spec, &mut out);
        if !out.has_errors() {
            lint::lint(spec, &mut out);
        }
    }
    parsed(spec, out)
}

pub(super) fn parse_recorded(source: &str, rules: RulesVersion) -> Parsed {
    let mut out = Diagnostics::new(source);
    let spec = read(source, rules, None, &mut out);
    parsed(spec, out)
}

fn parsed(spec: Option<Spec>, out: Diagnostics<'_>) -> Parsed {
    let spec = spec.filter(|_| !out.has_errors());
    Parsed { spec, diagnostics: out.finish() }
}

/// Reads and checks a spec; one that was recorded has no `strictness`.
fn read(
    source: &str,
    rules: RulesVersion,
    strictness: Option<Strictness>,
    out: &mut Diagnostics<'_>,
) -> Option<Spec> {
    let repaired =
        if source.len() > SOURCE_MAX_BYTES { None } else { without_repeated_keys(source) };
    let (text, repeated) = repaired.unzip();
    let (text, quoted) = effect::without_quotes(text.as_deref().unwrap_or(source));
    let document = Document::parse(&text, SOURCE_MAX_BYTES, out)?;
    let root = document.table("the file");
    out.set_strict(match strictness {
        None => false,
        Some(Strictness::Strict) => true,
        Some(Strictness::AsDeclared) => declares_strict(&root),
    });
    for key in repeated.unwrap_or_default() {
        let name = source.get(key.clone()).unwrap_or_default();
        let message = format!("`{name}` is declared twice in one table; the last one holds");
        out.report_default(&key, message, "remove the others");
    }
    for effects in quoted {
        out.report_default(&effects, "a list of effects is quoted", "remove the quotes");
    }
    if rules >= RulesVersion::V3 {
        check_counts(&root, out)?;
    }
    let mut spec = automaton(&root, rules, out)?;
    root.only(&SECTIONS, out);
    let are_triggers_known = sections(&root, &mut spec, out);
    check::check(&mut spec, are_triggers_known, out);
    // Only these checks need it.
    spec.unread = Unread::default();
    Some(spec)
}

/// Reports a section with too many entries. None of them is checked then, because that would take long.
fn check_counts(root: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<()> {
    let under_actions = root.value("action").into_iter().flat_map(items_of).flat_map(|action| {
        let action = action.get_ref().as_table();
        action.and_then(|action| action.get("triggers")).into_iter().flat_map(items_of)
    });
    let items = |section: &str| root.value(section).into_iter().flat_map(items_of);
    for (what, most, one_more) in [
        ("variables", VARIABLES_MAX, items("state").nth(VARIABLES_MAX)),
        ("actions", ACTIONS_MAX, items("action").nth(ACTIONS_MAX)),
        (
            "integrations",
            INTEGRATIONS_MAX,
            items("integration").chain(under_actions).nth(INTEGRATIONS_MAX),
        ),
    ] {
        if let Some(one_more) = one_more {
            out.error(&one_more.span(), format!("an automaton may have {most} {what} at most"));
            return None;
        }
    }
    Some(())
}

/// Whether the file has `strict = true`.
fn declares_strict(root: &Table<'_, '_>) -> bool {
    let automaton = root.value("automaton").and_then(|automaton| automaton.get_ref().as_table());
    let strict = automaton.and_then(|automaton| automaton.get("strict"));
    strict.is_some_and(|strict| match strict.get_ref() {
        DeValue::Boolean(strict) => *strict,
        // As any flag, it may be text.
        strict => strict.as_str() == Some("true"),
    })
}

fn automaton(root: &Table<'_, '_>, rules: RulesVersion, out: &mut Diagnostics<'_>) -> Option<Spec> {
    const KEYS: [&str; 7] = [
        "name",
        "states",
        "initial",
        "terminal",
        "allow_indefinite_states",
        "conversation",
        "strict",
    ];
    if root.misspelled("automaton").is_some() {
        root.require("automaton", out);
    } else if !root.has("automaton") {
        let help = "start it with [automaton], `name`, `states` and `initial`";
        out.error_with_help(&(0..0), "the file has no [automaton]", help);
    }
    let table = root.table("automaton", "[automaton]", out)?;
    table.only(&KEYS, out);
    table.flag("strict", out);
    let name = table.required_name("name", out);
    if let Some(name) = name.as_ref().filter(|name| name.contains('/')) {
        let help = "entities are written TYPE/ID";
        out.error_with_help(name.span(), "an automaton's name may hold no `/`", help);
    }
    let states = states(&table, out);
    let initial = table.required_name("initial", out);
    let terminal = table.names("terminal", out);
    let indefinite = table.names("allow_indefinite_states", out);
    let known = States::of(&states);
    for name in initial.iter().chain(&terminal).chain(&indefinite) {
        check::known_state(&known, name, out);
    }
    // What is missing was reported, so this spec is checked only to find further mistakes.
    let nothing = || Name::new("", table.span.clone());
    Some(Spec {
        digest: SpecDigest::of(out.source(), rules),
        rules,
        source: out.source().to_owned(),
        is_strict: declares_strict(root),
        name: name.unwrap_or_else(nothing),
        initial: initial.or_else(|| states.first().cloned()).unwrap_or_else(nothing),
        states,
        terminal: set_of(&terminal),
        indefinite: set_of(&indefinite),
        variables: BTreeMap::new(),
        conversation: table.name("conversation", out),
        actions: BTreeMap::new(),
        invariants: Vec::new(),
        integrations: BTreeMap::new(),
        timeouts: BTreeMap::new(),
        limits: None,
        timed_functions: Vec::new(),
        unread: Unread::default(),
    })
}

fn states(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<Name> {
    if let Some(value) = table.value("states")
        && value.get_ref().as_str().is_some_and(|text| text.contains(','))
    {
        let help = "write each state as a text of its own: [\"A\", \"B\"]";
        out.error_with_help(&value.span(), "`states` in [automaton] is one text", help);
        return Vec::new();
    }
    let states = table.names("states", out);
    table.require("states", out);
    if table.value("states").is_some_and(is_empty_list) {
        out.error(&table.span, "an automaton has one state at least");
    } else if states.len() > STATES_MAX {
        out.error(&table.span, format!("an automaton may have {STATES_MAX} states at most"));
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    for state in &states {
        if !seen.insert(state.as_str()) {
            let message = format!("state `{state}` is declared twice");
            out.error_with_help(state.span(), message, "remove one of the two");
        }
    }
    states
}

fn is_empty_list(value: Spot<'_, '_>) -> bool {
    matches!(value.get_ref(), DeValue::Array(items) if items.is_empty())
}

fn set_of(names: &[Name]) -> BTreeSet<String> {
    names.iter().map(|name| name.as_str().to_owned()).collect()
}

/// Reads all sections but the first. Returns whether it is known what triggers each integration.
fn sections(root: &Table<'_, '_>, spec: &mut Spec, out: &mut Diagnostics<'_>) -> bool {
    for table in root.tables("state", called("[[state]]"), out) {
        if let Some(variable) = variable(&table, &mut spec.unread, out) {
            declare(VARIABLE, variable.name.clone(), variable, &mut spec.variables, out);
        }
    }
    let limits = root.table("limits", "[limits]", out).map(|table| limits::read(&table, out));
    let (limits, all) = limits.unzip();
    spec.limits = limits;
    let all = all.unwrap_or_default();
    spec.timed_functions.extend_from_slice(&all.timed_functions);
    let mut triggers = Vec::new();
    let actions = root.tables("action", called("[[action]]"), out);
    let effects: Vec<Vec<Effect>> = actions.iter().map(|table| effects(table, out)).collect();
    let changed = effects.iter().flatten().filter_map(Effect::changes);
    spec.unread.changed = changed.map(|(variable, _)| variable.to_string()).collect();
    for (table, effects) in actions.into_iter().zip(effects) {
        let action = action(&table, effects, spec, out);
        spec.unread.has_action |= action.is_none();
        if let Some(action) = action {
            let are_params_unread = match table.value("params") {
                Some(value) => items_of(value).len() > action.params.len(),
                None => table.misspelled("params").is_some(),
            };
            if are_params_unread {
                spec.unread.params.insert(action.name.to_string());
            }
            let under = table.tables("triggers", called("[[action.triggers]]"), out);
            triggers.push((action.name.clone(), under));
            declare("action", action.name.clone(), action, &mut spec.actions, out);
        }
    }
    let mut are_triggers_known = true;
    for table in root.tables("integration", called("[[integration]]"), out) {
        are_triggers_known &= integration::read(&table, Declared::Alone, &all, spec, out);
    }
    for (action, table) in
        triggers.iter().flat_map(|(name, all)| all.iter().map(move |one| (name, one)))
    {
        are_triggers_known &= integration::read(table, Declared::Under(action), &all, spec, out);
    }
    invariant::read(root, spec, out);
    for table in root.tables("state_timeout", called("[[state_timeout]]"), out) {
        if let Some(timeout) = state_timeout(&table, out) {
            let state = timeout.state.clone();
            declare("timer of state", state, timeout, &mut spec.timeouts, out);
        }
    }
    are_triggers_known
}

/// All tables of a section have one label, and are distinguished by their names.
fn called(label: &str) -> impl Fn(usize) -> String {
    move |_| label.to_owned()
}

fn declare<T>(
    what: &str,
    name: Name,
    declared: T,
    among: &mut BTreeMap<String, T>,
    out: &mut Diagnostics<'_>,
) {
    let mut key = name.to_string();
    if among.contains_key(&key) && what == VARIABLE {
        let message = format!("{what} `{name}` is declared twice; the last one holds");
        out.report_default(name.span(), message, "remove the other one");
    } else if among.contains_key(&key) {
        let message = format!("{what} `{name}` is declared twice");
        out.error_with_help(name.span(), message, "rename or remove one of the two");
        // Kept with the first one, so that the mistakes of both are found.
        key = format!("{name} at byte {}", name.span().start);
    }
    among.insert(key, declared);
}

fn variable(
    table: &Table<'_, '_>,
    unread: &mut Unread,
    out: &mut Diagnostics<'_>,
) -> Option<Variable> {
    table.only(&["name", "type", "initial"], out);
    let name = table.required_name("name", out);
    let table = table.called(VARIABLE, name.as_ref());
    unread.has_variable |= name.is_none();
    let Some(kind_name) = table.required_text("type", out) else {
        unread.variables.extend(name.map(|name| name.to_string()));
        return None;
    };
    // The state itself, as some files declare it.
    if kind_name.as_str() == "status" && name.as_deref() == Some("status") {
        return None;
    }
    let kind = VariableKind::named(&kind_name).unwrap_or_else(|| {
        let near = nearest(&kind_name, VariableKind::NAMES).and_then(VariableKind::named);
        let kind = near.unwrap_or(VariableKind::String);
        let help = did_you_mean(&kind_name, VariableKind::NAMES);
        let message = format!("no variable is of type `{kind_name}`, so it is a {}", kind.as_str());
        out.report_default(kind_name.span(), message, help);
        kind
    });
    let initial =
        table.value("initial").map_or_else(|| kind.zero(), |value| kind.initial(value, out));
    Some(Variable { name: name?, kind, initial })
}

/// The effects of an action. They are read first, because they show which names are variables.
fn effects(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<Effect> {
    let name = table.value("name").and_then(|name| name.get_ref().as_str());
    let name = name.map(|name| Name::new(name, table.span.clone()));
    effect::read(&table.called("action", name.as_ref()), out)
}

fn action(
    table: &Table<'_, '_>,
    effects: Vec<Effect>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Action> {
    const KEYS: [&str; 9] =
        ["name", "kind", "from", "to", "params", "guard", "effect", "hint", "triggers"];
    table.only(&KEYS, out);
    let name = table.required_name("name", out);
    let table = table.called("action", name.as_ref());
    let kind = table.text("kind", out).map(|kind| kind.to_string());
    let guard = guard::read(&table, spec, out);
    let read = Action {
        from: from(&table, kind.as_deref(), spec, out),
        kind,
        to: table.name("to", out),
        params: params(&table, spec, out),
        others: guard.as_ref().map(Guard::others).unwrap_or_default(),
        guard,
        effects,
        dispatches: Vec::new(),
        hint: table.text("hint", out).map(|hint| hint.to_string()),
        name: name?,
    };
    Some(read)
}

/// The states that take an action. One that names none is taken from every state, unless it is an
/// output of the entity, which nothing takes.
fn from(
    action: &Table<'_, '_>,
    kind: Option<&str>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Vec<Name> {
    let from = action.names("from", out);
    // Earlier versions of the rules read an empty list as no state.
    let is_stated = action.has("from") && spec.rules < RulesVersion::V3;
    if !from.is_empty() || is_stated || kind == Some("output") {
        return from;
    }
    if spec.states.len().saturating_mul(spec.actions.len()) > FROM_ALL_MAX {
        let message =
            format!("{} has no `from`, and there are too many states for that", action.label);
        out.error_with_help(&action.span, message, "add `from = [\"STATE\"]`");
        return from;
    }
    let message = format!("{} has no `from`: it is taken from every state", action.label);
    out.report_default(&action.span, message, "add `from = [\"STATE\"]`");
    let states = spec.states.iter().filter(|state| !spec.is_terminal(state));
    states.map(|state| Name::new(state.as_str(), action.span.clone())).collect()
}

/// The names of an action's parameters: strings, or tables with a `name`. A `type` must fit the variable
/// of that name; other keys of these tables are not checked.
fn params(table: &Table<'_, '_>, spec: &Spec, out: &mut Diagnostics<'_>) -> Vec<Name> {
    let Some(value) = table.value("params") else { return Vec::new() };
    let mut names = Vec::new();
    for item in items_of(value) {
        match item.get_ref() {
            DeValue::String(text) if text.contains(',') => {
                let message = format!("a parameter of {} has a comma in its name", table.label);
                let help = "write each parameter as a text of its own: [\"a\", \"b\"]";
                out.report_default(&item.span(), message, help);
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                names.extend(parts.map(|part| Name::new(part, item.span())));
            }
            DeValue::String(text) => {
                names.extend(valid_name(Name::new(text.as_ref(), item.span()), out));
            }
            DeValue::Table(values) => {
                let label = format!("a parameter of {}", table.label);
                let table = Table { values, label, span: item.span() };
                if let Some(name) = table.required_name("name", out) {
                    check_type(&table, &name, spec, out);
                    names.push(name);
                }
            }
            _ => {
                let message = wrong_type("params", &table.label, "a list of names", item);
                out.error(&item.span(), message);
            }
        }
    }
    names
}

/// Warns of a parameter whose declared type never fits the variable of its name.
fn check_type(table: &Table<'_, '_>, name: &Name, spec: &Spec, out: &mut Diagnostics<'_>) {
    let of_param = table.text("type", out).and_then(|kind| VariableKind::named(&kind));
    let of_variable = spec.variables.get(name.as_str()).map(|variable| variable.kind);
    if let (Some(param), Some(variable)) = (of_param, of_variable)
        && variable.hold(&param.zero()).is_none()
    {
        let (param, variable) = (param.as_str(), variable.as_str());
        let message =
            format!("parameter `{name}` is a {param}, and variable `{name}` is a {variable}");
        let help = "give both one type, or the parameter another name";
        out.report_default(name.span(), message, help);
    }
}

fn state_timeout(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<StateTimeout> {
    const KEYS: [&str; 7] =
        ["state", "after_seconds", "on_timeout", "reset_on", "max_occurrences", "params", "args"];
    table.only(&KEYS, out);
    let state = table.required_name("state", out);
    table.require("after_seconds", out);
    // A wrong time or a missing action was reported; the state still counts as having a timer.
    let after_ms = seconds(table, "after_seconds", out).unwrap_or(1);
    let on_timeout = table.required_name("on_timeout", out);
    let on_timeout = on_timeout.unwrap_or_else(|| Name::new("", table.span.clone()));
    let reset_on = table.names("reset_on", out);
    let max_occurrences = max_occurrences(table, out);
    let params = timeout_params(table, out);
    Some(StateTimeout { state: state?, after_ms, on_timeout, reset_on, max_occurrences, params })
}

fn max_occurrences(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<u32> {
    let value = table.value("max_occurrences")?;
    let number: Option<u32> = match toml_value::to_json(value.get_ref()) {
        Value::Number(number) => number.as_u64().and_then(|number| number.try_into().ok()),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let number = number.filter(|number| *number > 0);
    if number.is_none() {
        let help = "leave it out if the timer may fire always";
        out.error_with_help(&value.span(), "`max_occurrences` must be a whole number from 1", help);
    }
    number
}

fn timeout_params(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Object {
    let value = match (table.value("params"), table.value("args")) {
        (Some(_), Some(args)) => {
            out.error(&args.span(), "`args` is another name of `params`; give one of them");
            return Object::new();
        }
        (Some(value), None) | (None, Some(value)) => value,
        (None, None) => return Object::new(),
    };
    match toml_value::to_json(value.get_ref()) {
        Value::Object(params) => params.into_iter().collect(),
        _ => {
            out.error(&value.span(), wrong_type("params", &table.label, "a table", value));
            Object::new()
        }
    }
}
