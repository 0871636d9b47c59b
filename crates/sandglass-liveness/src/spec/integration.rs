//! Reads an integration, in both spellings: `[[integration]]`, and
//! `[[action.triggers]]` under the action that starts it. `endings.rs` adds the endings that the
//! file leaves out.

use std::collections::BTreeMap;

use sandglass_model::limit::DEFAULT_BUDGET_MS;
use sandglass_model::{Limit, RulesVersion};
use sandglass_source::{Diagnostics, Table, did_you_mean, is_one_slip, toml_value};
use serde_json::Value;
use toml::de::DeValue;

use super::duration::seconds;
use super::guard;
use super::limits::{self, HandlerLimits};
use super::{Counted, Guard, Integration, IntegrationKind, Name, OnCrash, Spec, failure_route};

const KEYS: [&str; 21] = [
    "name",
    "trigger",
    "type",
    "kind",
    "module",
    "deadline",
    "timeout_secs",
    "deadline_param",
    "schedule_to_start_timeout",
    "limits",
    "keep_on_exit",
    "on_crash",
    "turn",
    "continues",
    "on_success",
    "on_failure",
    "failure_routes",
    "on_timeout",
    "on_interrupted",
    "on_cancelled",
    "config",
];

/// Keys that mean something to other runtimes only, and are no configuration of the handler. The second
/// is a key of triggers under an action.
const IGNORED: [&str; 2] = ["llm", "principal"];

/// Further keys of triggers under an action: when they start.
const CONDITIONS: [&str; 2] = ["guard", "to_state"];

/// Where an integration is declared.
#[derive(Clone, Copy)]
pub(super) enum Declared<'a> {
    Alone,
    Under(&'a Name),
}

/// Reads one integration into `spec`, which has all actions of the file. Returns whether it could be
/// read what triggers it.
pub(super) fn read(
    table: &Table<'_, '_>,
    declared: Declared<'_>,
    all: &HandlerLimits,
    spec: &mut Spec,
    out: &mut Diagnostics<'_>,
) -> bool {
    let name = table.required_name("name", out);
    let table = &table.called("integration", name.as_ref());
    let Some((kind, stated_kind)) = kind(table, declared, out) else { return true };
    let has_conditions = spec.rules >= RulesVersion::V3 && matches!(declared, Declared::Under(_));
    let guard = if has_conditions { guard::of_trigger(table, spec, out) } else { None };
    let config = config(table, declared, spec.rules, out);
    check_limits(table, &config, out);
    let own = table.table("limits", format!("limits of {}", table.label), out);
    let own = own.map(|table| limits::of_integration(&table, out)).unwrap_or_default();
    spec.timed_functions.extend(own.timed_functions);
    let stated = budget(table, own.deadline.or(all.deadline), out);
    let trigger = trigger(table, declared, name.as_ref(), out);
    // What is missing was reported. The integration is kept, so that triggers find it.
    let Some(name) = name.or_else(|| trigger.clone()) else { return false };
    let is_trigger_known = trigger.is_some();
    let budget_ms = stated.unwrap_or_else(|| default_budget(spec));
    let host_call_ms = own.host_call.or(all.host_call);
    let mut host_calls_ms = all.host_calls.clone();
    host_calls_ms.extend(own.host_calls);
    limits::check_host_calls(table, &host_calls_ms, host_call_ms, stated, out);
    let schedule_to_start = table.duration("schedule_to_start_timeout", out);
    let schedule_to_start = schedule_to_start.or(own.schedule_to_start).or(all.schedule_to_start);
    let under = match declared {
        Declared::Alone => None,
        Declared::Under(action) => Some(action),
    };
    let integration = Integration {
        name: unique(&name, declared, spec, out),
        trigger: trigger.unwrap_or_else(|| name.clone()),
        others: guard.as_ref().map(Guard::others).unwrap_or_default(),
        guard,
        declared_under: under.cloned(),
        kind,
        module: module(table, (kind, &stated_kind), &name, &config, out),
        config,
        budget_ms,
        budget_defaulted: stated.is_none(),
        budget_param: table.name("deadline_param", out),
        schedule_to_start_ms: schedule_to_start.unwrap_or(budget_ms),
        host_call_ms,
        host_calls_ms,
        keep_on_exit: table.flag("keep_on_exit", out).unwrap_or(false),
        on_crash: on_crash(table, out),
        counted: counted(table, out),
        on_success: table.name("on_success", out),
        on_failure: table.name("on_failure", out),
        failure_routes: failure_route::read(table, under, spec, out),
        on_timeout: table.name("on_timeout", out),
        on_interrupted: table.name("on_interrupted", out),
        on_cancelled: table.name("on_cancelled", out),
    };
    spec.integrations.insert(integration.name.to_string(), integration);
    is_trigger_known
}

/// The default budget, in milliseconds. It is cut to the limits that contain it; a stated budget is
/// checked against them.
fn default_budget(spec: &Spec) -> u64 {
    let outer = spec.limits.as_ref().and_then(|limits| {
        let times = [Limit::InactivityTimeout, Limit::RunTimeout, Limit::ExecutionTimeout];
        times.into_iter().filter_map(|limit| limits.settings.of(limit)?.allowed()).min()
    });
    outer.map_or(DEFAULT_BUDGET_MS, |most| most.min(DEFAULT_BUDGET_MS))
}

/// The trigger that starts the integration: under an action, only that action does. `None` if it
/// cannot be read.
fn trigger(
    table: &Table<'_, '_>,
    declared: Declared<'_>,
    name: Option<&Name>,
    out: &mut Diagnostics<'_>,
) -> Option<Name> {
    let stated = table.name("trigger", out);
    if let (Declared::Under(action), Some(trigger)) = (declared, &stated) {
        let message =
            format!("`trigger` has no place in {}: the action `{action}` triggers it", table.label);
        out.error(trigger.span(), message);
    }
    match declared {
        Declared::Alone if table.has("trigger") => stated,
        Declared::Alone | Declared::Under(_) => name.cloned(),
    }
}

/// Two actions may each declare a trigger of the same name; the second integration is then named
/// after its action, too.
fn unique(name: &Name, declared: Declared<'_>, spec: &Spec, out: &mut Diagnostics<'_>) -> Name {
    if !spec.integrations.contains_key(name.as_str()) {
        return name.clone();
    }
    if let Declared::Under(action) = declared {
        let longer = Name::new(format!("{action}.{name}"), name.span().clone());
        if !spec.integrations.contains_key(longer.as_str()) {
            return longer;
        }
    }
    out.error(name.span(), format!("integration `{name}` is declared twice"));
    name.clone()
}

/// What executes the integration, and the name of that in the file; `None` if this runtime has
/// nothing to do with it.
fn kind(
    table: &Table<'_, '_>,
    declared: Declared<'_>,
    out: &mut Diagnostics<'_>,
) -> Option<(IntegrationKind, Name)> {
    let [stated, also] = ["type", "kind"].map(|key| table.text(key, out));
    let default = if out.is_strict() || table.has("module") { "wasm" } else { "webhook" };
    let stated = stated.or(also).unwrap_or_else(|| Name::new(default, table.span.clone()));
    let is_under = matches!(declared, Declared::Under(_));
    let (kind, message) = match stated.as_str() {
        "wasm" => return Some((IntegrationKind::Wasm, stated)),
        "entity" | "hook" if is_under => {
            let message = format!("{} is of the kind `{stated}` and is not acted on", table.label);
            let help = "ask the other entity from a handler, or send it a signal";
            out.report_default(&table.span, message, help);
            return None;
        }
        "webhook" => (IntegrationKind::Webhook, "is a webhook".to_owned()),
        "adapter" => (IntegrationKind::Adapter, "is an adapter".to_owned()),
        other => (IntegrationKind::Adapter, format!("is of the type `{other}`")),
    };
    let message = format!("{} {message}: it is refused when it is triggered", table.label);
    let help = "an embedder may provide it; to execute a module, write `type = \"wasm\"` and \
                `module = \"MODULE\"`";
    out.report_default(stated.span(), message, help);
    Some((kind, stated))
}

/// The module that executes it, or what stands in its place.
fn module(
    table: &Table<'_, '_>,
    (kind, stated): (IntegrationKind, &Name),
    name: &Name,
    config: &BTreeMap<String, String>,
    out: &mut Diagnostics<'_>,
) -> Name {
    let named = |text: String| Name::new(text, name.span().clone());
    if kind == IntegrationKind::Wasm {
        return table.required_name("module", out).unwrap_or_else(|| named(String::new()));
    }
    let adapter = config.get("adapter").filter(|_| kind == IntegrationKind::Adapter);
    named(format!("{stated}:{}", adapter.map_or(name.as_str(), String::as_str)))
}

/// Checks the limits in the configuration, which the runtime reads from there.
fn check_limits(
    table: &Table<'_, '_>,
    config: &BTreeMap<String, String>,
    out: &mut Diagnostics<'_>,
) {
    for key in ["max_response_bytes", "max_fuel", "max_memory"] {
        let stated = config.get(key).filter(|stated| stated.parse::<u64>().is_err());
        if let Some(stated) = stated {
            let message = format!("`{key}` of {} is `{stated}`, and limits nothing", table.label);
            let at = if table.has(key) { key } else { "config" };
            out.report_default(&table.span_of(at), message, "write a whole number, without a unit");
        }
    }
}

/// Keys that Sandglass does not define, and those of the `config` table, as text. Keys that mean
/// something to other runtimes only, and the conditions of a trigger, are no configuration.
fn config(
    table: &Table<'_, '_>,
    declared: Declared<'_>,
    rules: RulesVersion,
    out: &mut Diagnostics<'_>,
) -> BTreeMap<String, String> {
    let mut config = BTreeMap::new();
    let (ignored, conditions) = match declared {
        _ if rules < RulesVersion::V3 => (&[][..], &[][..]),
        Declared::Alone => (&IGNORED[..1], &[][..]),
        Declared::Under(_) => (&IGNORED[..], &CONDITIONS[..]),
    };
    table.ignore(ignored, out);
    // Under earlier versions of the rules, the failure routes were configuration.
    let is_early = rules < RulesVersion::V3;
    let is_known = |key: &str| KEYS.contains(&key) && !(is_early && key == failure_route::KEY);
    let is_config =
        |key: &str| !is_known(key) && !ignored.contains(&key) && !conditions.contains(&key);
    for (key, span, value) in table.entries().filter(|(key, ..)| is_config(key)) {
        if let Some(near) = nearest_typo(key) {
            let message = format!("`{key}` becomes configuration of the handler");
            out.warning(&span, message, format!("did you mean `{near}`?"));
        }
        config.insert(key.to_owned(), config_text(value.get_ref()));
    }
    let declared = table.table("config", "config", out);
    for (key, _, value) in declared.iter().flat_map(Table::entries) {
        config.insert(key.to_owned(), config_text(value.get_ref()));
    }
    config
}

/// A TOML value as text, as in a handler's configuration.
fn config_text(value: &DeValue<'_>) -> String {
    match toml_value::to_json(value) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// The defined key that an undefined one is probably a misspelling of.
fn nearest_typo(key: &str) -> Option<&'static str> {
    // One typing error; more make it another word.
    KEYS.into_iter().find(|known| key.len() > 4 && is_one_slip(key, known))
}

/// The declared budget, in milliseconds: `deadline`, or `timeout_secs` here or, in older files, in
/// the `config` table. The latter is ordinary configuration of the handler if the budget is
/// declared here. If there is none, the budget that is declared `elsewhere` holds.
fn budget(table: &Table<'_, '_>, elsewhere: Option<u64>, out: &mut Diagnostics<'_>) -> Option<u64> {
    let config = table.value("config").and_then(|config| {
        let values = config.get_ref().as_table()?;
        Some(Table { values, label: format!("config of {}", table.label), span: config.span() })
    });
    let in_config = config.as_ref().and_then(|config| config.value("timeout_secs"));
    let direct: Vec<_> =
        ["deadline", "timeout_secs"].into_iter().filter_map(|key| table.value(key)).collect();
    if let (Some(value), false) = (in_config, direct.is_empty()) {
        let message = format!("`timeout_secs` in the config of {} is no deadline", table.label);
        let help = "the one beside `config` holds; remove this one unless the handler reads it";
        out.warning(&value.span(), message, help);
    }
    if let [_, second] = direct[..] {
        let help = "keep `deadline`; `timeout_secs` is its older spelling";
        let message = format!("{} declares its budget twice", table.label);
        out.error_with_help(&second.span(), message, help);
    }
    let deadline = table.duration("deadline", out);
    let older = seconds(table, "timeout_secs", out);
    let config = config.filter(|_| direct.is_empty());
    let oldest = config.and_then(|config| seconds(&config, "timeout_secs", out));
    if direct.is_empty() && in_config.is_none() && elsewhere.is_none() {
        let seconds = DEFAULT_BUDGET_MS / 1000;
        let message = format!("{} declares no deadline and gets {seconds} s", table.label);
        let help = format!("say how long it may run, such as `deadline = \"{seconds}s\"`");
        out.warning(&table.span, message, help);
    }
    deadline.or(older).or(oldest).or(elsewhere)
}

fn on_crash(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> OnCrash {
    const CHOICES: [&str; 2] = ["interrupt", "rerun"];
    let Some(choice) = table.text("on_crash", out) else { return OnCrash::default() };
    match choice.as_str() {
        "interrupt" => OnCrash::Interrupt,
        "rerun" => OnCrash::Rerun,
        other => {
            let message = format!("`on_crash` cannot be `{other}`");
            out.error_with_help(choice.span(), message, did_you_mean(other, CHOICES));
            OnCrash::default()
        }
    }
}

fn counted(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Counted {
    let [turn, continues] = ["turn", "continues"].map(|key| table.flag(key, out).unwrap_or(false));
    match (turn, continues) {
        (true, true) => {
            let message = format!("{} says both `turn` and `continues`", table.label);
            let help = "keep `turn` where each of its handlers is one more turn of a loop, and \
                        `continues` where they go on with what another one began";
            out.error_with_help(&table.span_of("continues"), message, help);
            Counted::default()
        }
        (true, false) => Counted::Turn,
        (false, true) => Counted::Continuation,
        (false, false) => Counted::Handler,
    }
}
