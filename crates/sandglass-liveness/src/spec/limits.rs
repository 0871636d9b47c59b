//! Reads the limits of an automaton and its integrations, and checks that each is inside the one
//! that contains it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use sandglass_model::Limit;
use sandglass_source::{
    Diagnostics, Table, did_you_mean, duration, no_unit, toml_value, valid_name, wrong_type,
};
use toml::de::DeValue;

use super::{Limits, Name, Spec};
use crate::session::{LimitSettings, Setting};

/// Most host functions of one integration that have a limit of their own.
const HOST_CALLS_MAX: usize = 256;
/// Most names of signals in one list.
const SIGNALS_MAX: usize = 64;
/// Most runs that follow each other automatically: more would be a loop.
const RETRIES_MAX: u64 = 100;

/// The limits of handlers and their host calls, of an automaton or an integration.
#[derive(Clone, Debug, Default)]
pub(super) struct HandlerLimits {
    pub(super) deadline: Option<u64>,
    pub(super) schedule_to_start: Option<u64>,
    pub(super) host_call: Option<u64>,
    pub(super) host_calls: BTreeMap<String, u64>,
    /// The names in it, and their places in the file.
    pub(super) timed_functions: Vec<Name>,
}

const OF_HANDLERS: [&str; 4] =
    ["deadline", "schedule_to_start_timeout", "host_call_timeout", "host_call"];

const OF_SESSIONS: [&str; 6] =
    ["stuck_after", "material", "synthetic", "retry", "stop_with_parent", "stop_at_shutdown"];

/// Reads `[limits]` of an automaton, with the limits for all its handlers.
pub(super) fn read(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> (Limits, HandlerLimits) {
    let (settings, places) = settings(table, &[&OF_HANDLERS[..], &OF_SESSIONS].concat(), out);
    let material = table.value("material").map(|_| names(table, "material", out));
    let limits = Limits {
        settings,
        places,
        material: material.unwrap_or_else(|| vec!["progress".to_owned()]),
        synthetic: names(table, "synthetic", out).into(),
        stop_with_parent: table.flag("stop_with_parent", out).unwrap_or(false),
        stop_at_shutdown: table.flag("stop_at_shutdown", out).unwrap_or(true),
        retries: retries(table, out),
    };
    (limits, of_handlers(table, out))
}

/// Reads the limits of a run from `table`, which may contain only them and the keys `also`: the
/// ceiling of a host.
pub fn run_limits(
    table: &Table<'_, '_>,
    also: &[&str],
    out: &mut Diagnostics<'_>,
) -> LimitSettings {
    settings(table, &[&["stuck_after"], also].concat(), out).0
}

/// Reads the limits of a run from `table`, which may contain only them and the keys `also`, with
/// their places in the file.
fn settings(
    table: &Table<'_, '_>,
    also: &[&str],
    out: &mut Diagnostics<'_>,
) -> (LimitSettings, BTreeMap<Limit, Range<usize>>) {
    let mut known: Vec<&str> = LimitSettings::RUN_LIMITS.map(Limit::as_str).to_vec();
    known.extend(also);
    table.only_strictly(&known, out);
    let (mut settings, mut places) = (LimitSettings::default(), BTreeMap::new());
    for limit in LimitSettings::RUN_LIMITS {
        let key = limit.as_str();
        let setting = match limit.meter() {
            sandglass_model::Meter::Elapsed => time_or_off(table, key, out),
            sandglass_model::Meter::Count => {
                table.count(key, 0..=u64::from(u32::MAX), out).map(Setting::of)
            }
        };
        if let Some(setting) = setting {
            settings.set(limit, setting);
            places.insert(limit, table.span_of(key));
        }
    }
    settings.stuck_after = time_or_off(table, "stuck_after", out);
    (settings, places)
}

/// Reads the limits of handlers from `table`: `[limits]` of an automaton, or an integration.
pub(super) fn of_handlers(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> HandlerLimits {
    let (mut host_calls, mut timed_functions) = (BTreeMap::new(), Vec::new());
    if let Some(calls) = table.table("host_call", "[limits.host_call]", out) {
        if calls.entries().count() > HOST_CALLS_MAX {
            out.error(&calls.span, format!("there may be {HOST_CALLS_MAX} of them at most"));
        }
        for (function, span, _) in calls.entries().take(HOST_CALLS_MAX) {
            let Some(name) = valid_name(Name::new(function, span), out) else { continue };
            timed_functions.push(name);
            if let Some(millis) = calls.duration(function, out) {
                host_calls.insert(function.to_owned(), millis);
            }
        }
    }
    HandlerLimits {
        deadline: table.duration("deadline", out),
        schedule_to_start: table.duration("schedule_to_start_timeout", out),
        host_call: table.duration("host_call_timeout", out),
        host_calls,
        timed_functions,
    }
}

/// The limits of one integration. Only `table` itself is about handlers.
pub(super) fn of_integration(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> HandlerLimits {
    table.only_strictly(&OF_HANDLERS, out);
    of_handlers(table, out)
}

/// A time with its unit; zero (`0`, `"0s"`) turns the limit off.
fn time_or_off(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<Setting> {
    let value = table.value(key)?;
    let message = match value.get_ref() {
        DeValue::Integer(number) if toml_value::integer(number) == Some(0) => {
            return Some(Setting::of(0));
        }
        DeValue::Integer(number) => format!("`{key}`: {}", no_unit(number.as_str())),
        // The reason also states what to write.
        DeValue::String(text) => {
            let read = duration::from_text_or_zero(text);
            let read = read.map_err(|why| out.error(&value.span(), format!("`{key}`: {why}")));
            return read.ok().map(Setting::of);
        }
        _ => wrong_type(key, &table.label, "a duration", value),
    };
    let help = "write a number and a unit, such as \"900s\" or \"4h\", or 0 for none";
    out.error_with_help(&value.span(), message, help);
    None
}

fn names(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Vec<String> {
    let names = table.names(key, out);
    if names.len() > SIGNALS_MAX {
        out.error(&table.span_of(key), format!("`{key}` may have {SIGNALS_MAX} names at most"));
    }
    names.iter().take(SIGNALS_MAX).map(Name::to_string).collect()
}

/// How often a run that a limit stopped is followed by another one automatically.
fn retries(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> BTreeMap<Limit, u64> {
    let mut retries = BTreeMap::new();
    let Some(table) = table.table("retry", "[limits.retry]", out) else { return retries };
    for (key, span, _) in table.entries() {
        let stops = |limit: &Limit| limit.stops_runs();
        match Limit::named(key).filter(stops) {
            Some(limit) => {
                if let Some(count) = table.count(key, 0..=RETRIES_MAX, out) {
                    retries.insert(limit, count);
                }
            }
            None => {
                let names = LimitSettings::RUN_LIMITS.into_iter().filter(stops).map(Limit::as_str);
                let message = format!("`{key}` in [limits.retry] is no limit that stops a run");
                out.error_with_help(&span, message, did_you_mean(key, names));
            }
        }
    }
    retries
}

/// A limit that a spec states, with its place.
#[derive(Clone)]
struct Stated {
    what: String,
    millis: u64,
    at: Range<usize>,
}

/// Checks that each stated limit that stops something is inside those that contain it: host call <
/// inactivity < run < session, and host call < handler < run. A handler may live longer than the
/// inactivity limit, because its host calls are activity.
pub(super) fn check(spec: &Spec, out: &mut Diagnostics<'_>) {
    let Some(limits) = &spec.limits else { return };
    let stated = |limit: Limit| {
        let millis = limits.settings.of(limit)?.allowed()?;
        let at = limits.places.get(&limit)?.clone();
        Some(Stated { what: format!("`{limit}`"), millis, at })
    };
    let (mut calls, mut longest) = (Vec::new(), Vec::new());
    for integration in spec.integrations.values() {
        let label = format!("integration `{}`", integration.name);
        let at = integration.name.span();
        let own = host_calls(&label, &integration.host_calls_ms, integration.host_call_ms, at);
        // If an integration states its deadline, its calls are inside that.
        if integration.budget_defaulted {
            longest.extend(own.clone());
        } else {
            let what = format!("`deadline` of {label}");
            longest.push(Stated { what, millis: integration.budget_ms, at: at.clone() });
        }
        calls.extend(own);
    }
    let silence = stated(Limit::InactivityTimeout);
    let progress = stated(Limit::ProgressTimeout);
    let run = stated(Limit::RunTimeout);
    let session = stated(Limit::ExecutionTimeout);
    let mut inside = |outer: &Option<Stated>, inner: &[&[Stated]]| {
        let Some(outer) = outer else { return };
        inner.iter().copied().flatten().for_each(|inner| nests(inner, outer, out));
    };
    inside(&silence, &[&calls]);
    // A busy handler may execute for longer than it may be without progress.
    inside(&run, &[&longest, silence.as_slice(), progress.as_slice()]);
    inside(&session, &[&longest, silence.as_slice(), run.as_slice(), progress.as_slice()]);
}

fn nests(inner: &Stated, outer: &Stated, out: &mut Diagnostics<'_>) {
    if inner.millis < outer.millis {
        return;
    }
    let [inner_time, outer_time] = [inner, outer].map(|one| Duration::from_millis(one.millis));
    let message = format!(
        "{} ({inner_time:?}) must be shorter than {} ({outer_time:?}), which holds it",
        inner.what, outer.what
    );
    let help = "whichever is longer would never be reached: make one longer or the other shorter";
    out.error_with_help(&inner.at, message, help);
}

/// Checks that the host calls of `integration` are inside its budget.
pub(super) fn check_host_calls(
    integration: &Table<'_, '_>,
    each: &BTreeMap<String, u64>,
    all: Option<u64>,
    budget: Option<u64>,
    out: &mut Diagnostics<'_>,
) {
    let Some(millis) = budget else { return };
    let (label, at) = (&integration.label, integration.span_of("limits"));
    let outer = Stated { what: format!("`deadline` of {label}"), millis, at: at.clone() };
    host_calls(label, each, all, &at).iter().for_each(|inner| nests(inner, &outer, out));
}

/// The limits on the host calls of one integration.
fn host_calls(
    label: &str,
    each: &BTreeMap<String, u64>,
    all: Option<u64>,
    at: &Range<usize>,
) -> Vec<Stated> {
    let all = all.map(|millis| ("host_call_timeout", millis));
    let each = each.iter().map(|(function, millis)| (function.as_str(), *millis));
    let stated = |(function, millis)| {
        let what = format!("the time limit `{function}` of {label}");
        Stated { what, millis, at: at.clone() }
    };
    each.chain(all).map(stated).collect()
}
