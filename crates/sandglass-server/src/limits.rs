//! What the configuration says of the limits of sessions: in our own terms, and in those of the
//! watchdog and the silence detector whose settings users have.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow, bail};
use sandglass_liveness::session::{Ceilings, LimitSettings, Setting};
use sandglass_liveness::spec::run_limits;
use sandglass_model::Limit;
use sandglass_model::limit::MAX_BUDGET_MS;
use sandglass_source::{Diagnostics, Table, nearest, printable, shortened};

/// The variable that says how long a session may run, in seconds, whatever files say.
const WALL_CLOCK_VARIABLE: &str = "SANDGLASS_SESSION_WALL_CLOCK_SECONDS";
/// The longest time that can be said in seconds.
const SECONDS_MAX: u64 = MAX_BUDGET_MS / 1_000;
/// Most types that have ceilings of their own.
const TYPES_MAX: usize = 1_000;

/// A key of another system, and the limit that it is here.
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
        // Where only some types are named, the others are no sessions by that.
        let says_anything = limits.entries().any(|(key, ..)| key != "of");
        ceilings.of_all = (says_anything || !limits.has("of")).then_some(of_all);
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

/// Refuses ceilings of types that none of `types` is: a name that is misspelled would leave its
/// sessions without one.
///
/// # Errors
/// There is such a ceiling; the nearest type is named.
pub(crate) fn require_known_types<'a>(
    ceilings: &Ceilings,
    types: impl Iterator<Item = &'a str> + Clone,
) -> anyhow::Result<()> {
    let unknown = ceilings.of_type.keys().find(|name| !types.clone().any(|known| known == *name));
    let Some(name) = unknown else { return Ok(()) };
    let nearest = nearest(name, types).map(|near| format!("; did you mean `{near}`?"));
    bail!(
        "the configuration limits sessions of the type `{}`, which no spec declares{}",
        printable(&shortened(name, 60)),
        nearest.unwrap_or_default()
    )
}

/// The environment comes before the file: for sessions of all types.
///
/// # Errors
/// The variable holds no whole number of seconds.
pub(crate) fn from_environment(ceilings: &mut Ceilings) -> anyhow::Result<()> {
    let Some(value) = std::env::var_os(WALL_CLOCK_VARIABLE) else { return Ok(()) };
    let text = value.to_str().context("it is no text").and_then(|text| {
        let shown = || printable(&shortened(text, 60)).into_owned();
        let seconds: u64 = text.trim().parse().map_err(|_| anyhow!("`{}` is none", shown()))?;
        (seconds <= SECONDS_MAX)
            .then_some(seconds)
            .with_context(|| format!("`{}` is too long", shown()))
    });
    let seconds = text.with_context(|| {
        format!("`{WALL_CLOCK_VARIABLE}` must be a whole number of seconds, or 0 for no limit")
    })?;
    let setting = setting(seconds);
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
            // Said twice, in our terms and in these, the stricter holds.
            let said = setting(seconds);
            let stricter = settings.of(*limit).map_or(said, |before| before.stricter(said));
            settings.set(*limit, stricter);
        }
    }
}

/// The tables inside `key`, by their names.
fn named<'t, 's>(
    table: &Table<'t, 's>,
    key: &str,
    label: &str,
    out: &mut Diagnostics<'_>,
) -> BTreeMap<String, Table<'t, 's>> {
    let Some(inside) = table.table(key, label, out) else { return BTreeMap::new() };
    if inside.entries().count() > TYPES_MAX {
        out.error(&inside.span, format!("there may be {TYPES_MAX} types at most"));
    }
    let names: Vec<&'t str> = inside.entries().take(TYPES_MAX).map(|(name, ..)| name).collect();
    let each = names.into_iter().filter_map(|name| {
        let table = inside.table(name, format!("{label} `{name}`"), out)?;
        Some((name.to_owned(), table))
    });
    each.collect()
}
