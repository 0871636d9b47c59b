//! The limits of sessions in the configuration: in the terms of Sandglass, and in those of two other
//! systems, a watchdog and a silence detector, whose settings operators already have.

use std::collections::BTreeMap;

use sandglass_liveness::session::{Ceilings, LimitSettings, Setting};
use sandglass_liveness::spec::run_limits;
use sandglass_model::Limit;
use sandglass_model::limit::MAX_BUDGET_MS;
use sandglass_source::{Diagnostics, Table, nearest, printable, shortened};

use crate::error::{Error, Result};

/// The variable with the longest run of a session, in seconds. It takes precedence over files.
const WALL_CLOCK_VARIABLE: &str = "SANDGLASS_SESSION_WALL_CLOCK_SECONDS";
/// The longest time that can be set in seconds.
const SECONDS_MAX: u64 = MAX_BUDGET_MS / 1_000;
/// Most types with ceilings of their own.
const TYPES_MAX: usize = 1_000;

/// A key of another system, and the limit that it sets.
type Alias = (&'static str, Limit);

const WATCHDOG: [Alias; 1] = [("session_wall_clock_seconds", Limit::RunTimeout)];
const SILENCE: [Alias; 2] = [
    ("silence_threshold_seconds", Limit::InactivityWarn),
    ("kill_threshold_seconds", Limit::InactivityTimeout),
];

/// Reads `[limits]`, `[runtime_controls]` and `[sdk_timeouts]`.
pub(crate) fn read(root: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Ceilings {
    let mut ceilings = Ceilings::default();
    if let Some(limits) = root.table("limits", "[limits]", out) {
        let of_all = run_limits(&limits, &["of"], out);
        // If the section only names types, the entities of other types are no sessions because of it.
        let has_limits = limits.entries().any(|(key, ..)| key != "of");
        ceilings.of_all = (has_limits || !limits.has("of")).then_some(of_all);
        for (name, table) in named(&limits, "of", "[limits.of]", out) {
            let settings = run_limits(&table, &[], out);
            ceilings.of_type.insert(name, settings);
        }
    }
    let of_watchdog = ("runtime_controls", "goals", &WATCHDOG[..]);
    let of_silence = ("sdk_timeouts", "campaigns", &SILENCE[..]);
    for (section, nested, aliases) in [of_watchdog, of_silence] {
        let label = format!("[{section}]");
        let Some(table) = root.table(section, &*label, out) else { continue };
        let mut known: Vec<&str> = aliases.iter().map(|(key, _)| *key).collect();
        known.push(nested);
        table.only(&known, out);
        if aliases.iter().any(|(key, _)| table.has(key)) {
            seconds(&table, aliases, ceilings.of_all.get_or_insert_default(), out);
        }
        for (name, table) in named(&table, nested, &format!("[{section}.{nested}]"), out) {
            table.only(&known[..aliases.len()], out);
            let settings = ceilings.of_type.entry(name).or_default();
            seconds(&table, aliases, settings, out);
        }
    }
    ceilings
}

/// Errors if `ceilings` limits a type that is not in `types`: sessions of the type that was meant
/// would have no ceiling.
pub(crate) fn require_known_types<'a>(
    ceilings: &Ceilings,
    types: impl Iterator<Item = &'a str> + Clone,
) -> Result<()> {
    let unknown = ceilings.of_type.keys().find(|name| !types.clone().any(|known| known == *name));
    let Some(name) = unknown else { return Ok(()) };
    let nearest = nearest(name, types).map(|near| format!("; did you mean `{near}`?"));
    Err(Error::Unusable(format!(
        "the configuration limits sessions of the type `{}`, which no spec declares{}",
        printable(&shortened(name, 60)),
        nearest.unwrap_or_default()
    )))
}

/// Takes the limit from the environment, for sessions of all types. It takes precedence over the file.
pub(crate) fn from_environment(ceilings: &mut Ceilings) -> Result<()> {
    let Some(value) = std::env::var_os(WALL_CLOCK_VARIABLE) else { return Ok(()) };
    let parsed = value.to_str().ok_or_else(|| "it is not UTF-8".to_owned()).and_then(|text| {
        let shown = || printable(&shortened(text, 60)).into_owned();
        match text.trim().parse() {
            Ok(seconds) if seconds <= SECONDS_MAX => Ok(seconds),
            Ok(_) => Err(format!("`{}` is too large", shown())),
            Err(_) => Err(format!("`{}` is not", shown())),
        }
    });
    let setting = setting(parsed.map_err(|why| {
        Error::Unusable(format!(
            "`{WALL_CLOCK_VARIABLE}` must be a whole number of seconds, or 0 for no limit: {why}"
        ))
    })?);
    ceilings.of_all.get_or_insert_default().run_timeout = Some(setting);
    ceilings.of_type.values_mut().for_each(|settings| settings.run_timeout = Some(setting));
    Ok(())
}

const fn setting(seconds: u64) -> Setting {
    match seconds {
        0 => Setting::Off,
        seconds => Setting::At(seconds.saturating_mul(1_000)),
    }
}

fn seconds(
    table: &Table<'_, '_>,
    aliases: &[Alias],
    settings: &mut LimitSettings,
    out: &mut Diagnostics<'_>,
) {
    for (key, limit) in aliases {
        if let Some(seconds) = table.count(key, 0..=SECONDS_MAX, out) {
            // If `[limits]` sets the limit too, the stricter setting applies.
            let new = setting(seconds);
            let stricter = settings.of(*limit).map_or(new, |before| before.stricter(new));
            settings.set(*limit, stricter);
        }
    }
}

/// The tables inside `key`, by the types of entities that they are for.
fn named<'t, 's>(
    table: &Table<'t, 's>,
    key: &str,
    label: &str,
    out: &mut Diagnostics<'_>,
) -> BTreeMap<String, Table<'t, 's>> {
    let Some(inside) = table.table(key, label, out) else { return BTreeMap::new() };
    if inside.entries().count() > TYPES_MAX {
        out.error(&inside.span, format!("there may be at most {TYPES_MAX} types"));
    }
    let names: Vec<&'t str> = inside.entries().take(TYPES_MAX).map(|(name, ..)| name).collect();
    let each = names.into_iter().filter_map(|name| {
        let table = inside.table(name, format!("{label} `{name}`"), out)?;
        Some((name.to_owned(), table))
    });
    each.collect()
}
