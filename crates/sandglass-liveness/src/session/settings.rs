//! Settings of a run's limits from all sides (the spec, the request that starts or resumes the run,
//! the host), and the limits that follow from them.

use std::collections::BTreeMap;

use sandglass_model::{Limit, Meter, Object, RunLimits};
use sandglass_source::{did_you_mean, duration, printable, shortened};
use serde_json::Value;

use crate::spec::Spec;

/// Default of [`Limit::InactivityWarn`], in milliseconds.
pub(crate) const INACTIVITY_WARN_MS: u64 = 600_000;
/// Default of [`Limit::RunTimeout`], in milliseconds: 4 hours.
pub(crate) const RUN_TIMEOUT_MS: u64 = 14_400_000;
/// Default of [`Limit::AbortTimeout`], in milliseconds.
pub(crate) const ABORT_TIMEOUT_MS: u64 = 10_000;
/// Default of [`Limit::RepeatThreshold`].
pub(crate) const REPEAT_THRESHOLD: u64 = 2;
/// Default of the longest inactivity of a session with work in flight until it is marked STUCK, in
/// milliseconds.
pub(crate) const STUCK_AFTER_MS: u64 = 300_000;

/// Most characters of a key or value that an error repeats.
const SHOWN_MAX_CHARS: usize = 60;

/// The setting of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The limit is off.
    Off,
    /// Milliseconds or a count, above zero.
    At(u64),
}

impl Setting {
    /// The setting that users write as this many milliseconds or as this count: zero is off.
    #[must_use]
    pub const fn of(most: u64) -> Self {
        if most == 0 { Self::Off } else { Self::At(most) }
    }

    /// What it allows; `None` if it is off.
    #[must_use]
    pub const fn allowed(self) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::At(most) => Some(most),
        }
    }

    /// The setting that allows less.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        smaller(self.allowed(), other.allowed()).map_or(Self::Off, Self::At)
    }
}

/// Settings of a run's limits. Each may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitSettings {
    /// [`Limit::InactivityWarn`].
    pub inactivity_warn: Option<Setting>,
    /// [`Limit::InactivityTimeout`].
    pub inactivity_timeout: Option<Setting>,
    /// [`Limit::ProgressTimeout`].
    pub progress_timeout: Option<Setting>,
    /// [`Limit::RunTimeout`].
    pub run_timeout: Option<Setting>,
    /// [`Limit::ExecutionTimeout`].
    pub execution_timeout: Option<Setting>,
    /// [`Limit::AbortTimeout`].
    pub abort_timeout: Option<Setting>,
    /// [`Limit::MaxLoopIterations`].
    pub max_loop_iterations: Option<Setting>,
    /// [`Limit::MaxHandlerRuns`].
    pub max_handler_runs: Option<Setting>,
    /// [`Limit::RepeatThreshold`].
    pub repeat_threshold: Option<Setting>,
    /// From when on an inactive session is marked STUCK.
    pub stuck_after: Option<Setting>,
}

impl LimitSettings {
    /// The limits that can be set for a run: all but those of handlers and host calls.
    pub const RUN_LIMITS: [Limit; 9] = [
        Limit::InactivityWarn,
        Limit::InactivityTimeout,
        Limit::ProgressTimeout,
        Limit::RunTimeout,
        Limit::ExecutionTimeout,
        Limit::AbortTimeout,
        Limit::MaxLoopIterations,
        Limit::MaxHandlerRuns,
        Limit::RepeatThreshold,
    ];

    /// The setting of `limit`; `None` if it is missing or not a limit of runs.
    #[must_use]
    pub fn of(mut self, limit: Limit) -> Option<Setting> {
        self.field(limit).and_then(|field| *field)
    }

    /// Sets `limit`; returns false if it is not a limit of runs.
    pub fn set(&mut self, limit: Limit, setting: Setting) -> bool {
        let field = self.field(limit);
        field.map(|field| *field = Some(setting)).is_some()
    }

    const fn field(&mut self, limit: Limit) -> Option<&mut Option<Setting>> {
        Some(match limit {
            Limit::InactivityWarn => &mut self.inactivity_warn,
            Limit::InactivityTimeout => &mut self.inactivity_timeout,
            Limit::ProgressTimeout => &mut self.progress_timeout,
            Limit::RunTimeout => &mut self.run_timeout,
            Limit::ExecutionTimeout => &mut self.execution_timeout,
            Limit::AbortTimeout => &mut self.abort_timeout,
            Limit::MaxLoopIterations => &mut self.max_loop_iterations,
            Limit::MaxHandlerRuns => &mut self.max_handler_runs,
            Limit::RepeatThreshold => &mut self.repeat_threshold,
            Limit::HostCallTimeout | Limit::ScheduleToStartTimeout | Limit::Deadline => {
                return None;
            }
        })
    }

    /// These settings; `other` fills in those that are missing.
    #[must_use]
    pub fn or(mut self, other: &Self) -> Self {
        for limit in Self::RUN_LIMITS {
            if let Some(field) = self.field(limit) {
                *field = field.or(other.of(limit));
            }
        }
        self.stuck_after = self.stuck_after.or(other.stuck_after);
        self
    }

    /// The request for a run after one with the limits `last`: limits that count over all runs of a
    /// session keep their values unless the request sets them.
    #[must_use]
    pub fn going_on_from(self, last: &RunLimits) -> Self {
        let execution_timeout =
            self.execution_timeout.or(last.execution_timeout_ms.map(Setting::At));
        Self { execution_timeout, ..self }
    }

    /// The limits of a run. `self` is what the spec sets, `asked` what the request sets, and
    /// `ceiling` the most that the host allows. The request precedes the spec; of that and the
    /// ceiling, the smaller value holds. If both are missing, the ceiling holds, and without one
    /// the default. A limit that must be inside another one is cut to it.
    #[must_use]
    pub fn effective(&self, asked: &Self, ceiling: &Self) -> RunLimits {
        let of = |limit: Limit, default: Setting| {
            let ceiling = ceiling.of(limit);
            let said = asked.of(limit).or(self.of(limit)).or(ceiling).unwrap_or(default);
            smaller(said.allowed(), ceiling.and_then(Setting::allowed))
        };
        let off = |limit: Limit| of(limit, Setting::Off);
        let execution_timeout_ms = off(Limit::ExecutionTimeout);
        let run_timeout_ms =
            within(of(Limit::RunTimeout, Setting::At(RUN_TIMEOUT_MS)), execution_timeout_ms);
        let inactivity_warn_ms = of(Limit::InactivityWarn, Setting::At(INACTIVITY_WARN_MS));
        let stuck_after = asked.stuck_after.or(self.stuck_after).or(ceiling.stuck_after);
        let stuck_after = stuck_after.and_then(Setting::allowed);
        // A request cannot extend the grace of a stop: that would undo the limit that was breached.
        let grace_ms = |setting: Setting| setting.allowed().unwrap_or(0);
        let given = self.abort_timeout.or(ceiling.abort_timeout);
        let given_ms = given.map_or(ABORT_TIMEOUT_MS, grace_ms);
        let most_ms = ceiling.abort_timeout.map_or(given_ms, |most| given_ms.min(grace_ms(most)));
        let abort_timeout_ms =
            asked.abort_timeout.map_or(most_ms, |asked| grace_ms(asked).min(most_ms));
        let stuck_default = inactivity_warn_ms.map_or(STUCK_AFTER_MS, |ms| ms.min(STUCK_AFTER_MS));
        RunLimits {
            inactivity_warn_ms,
            inactivity_timeout_ms: within(off(Limit::InactivityTimeout), run_timeout_ms),
            progress_timeout_ms: within(off(Limit::ProgressTimeout), run_timeout_ms),
            run_timeout_ms,
            execution_timeout_ms,
            abort_timeout_ms,
            max_loop_iterations: off(Limit::MaxLoopIterations),
            max_handler_runs: off(Limit::MaxHandlerRuns),
            repeat_threshold: of(Limit::RepeatThreshold, Setting::At(REPEAT_THRESHOLD)),
            stuck_after_ms: stuck_after.unwrap_or(stuck_default),
        }
    }
}

/// The most that a host allows the runs of its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// For all types. If any is set, all entities are sessions, even if their spec has no limits.
    pub of_all: Option<LimitSettings>,
    /// For single types; these precede those for all types.
    pub of_type: BTreeMap<String, LimitSettings>,
}

impl Ceilings {
    /// Whether entities that obey `spec` are sessions.
    #[must_use]
    pub fn makes_sessions(&self, spec: &Spec) -> bool {
        let is_named = self.of_type.contains_key(spec.name.as_str());
        spec.limits.is_some() || self.of_all.is_some() || is_named
    }

    /// The limits of a run of a session that obeys `spec`, if the request sets `asked`.
    #[must_use]
    pub fn effective(&self, spec: &Spec, asked: &LimitSettings) -> RunLimits {
        let said = spec.limits.as_ref().map(|limits| limits.settings).unwrap_or_default();
        let of_all = self.of_all.unwrap_or_default();
        let of_type = self.of_type.get(spec.name.as_str()).copied().unwrap_or_default();
        let ceiling = of_type.or(&of_all);
        said.effective(asked, &ceiling)
    }
}

/// The limits of a run without any settings.
#[must_use]
pub fn default_limits() -> RunLimits {
    let unsaid = LimitSettings::default();
    unsaid.effective(&unsaid, &unsaid)
}

/// A request's invalid setting of a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` can't be {value}: {why}")]
pub struct BadLimit {
    /// The key, cut and without control characters.
    pub key: String,
    /// The value, cut and without control characters.
    pub value: String,
    /// What is wrong with it, and what to do.
    pub why: String,
}

impl LimitSettings {
    /// Reads the settings of a request: times such as `"90s"`, or 0 for off; counts as numbers.
    ///
    /// # Errors
    /// The first key that is not a limit of runs, or has an invalid value.
    pub fn of_request(said: &Object) -> Result<Self, BadLimit> {
        let mut settings = Self::default();
        for (key, value) in said {
            let bad = |why: String| {
                let shown = |text: &str| printable(&shortened(text, SHOWN_MAX_CHARS)).into_owned();
                BadLimit { key: shown(key), value: shown(&value.to_string()), why }
            };
            let limit = Limit::named(key).filter(|limit| Self::RUN_LIMITS.contains(limit));
            match limit {
                Some(limit) => {
                    let setting = match limit.meter() {
                        Meter::Elapsed => time(value),
                        Meter::Count => count(value),
                    };
                    settings.set(limit, setting.map_err(bad)?);
                }
                None if key == "stuck_after" => {
                    settings.stuck_after = Some(time(value).map_err(bad)?);
                }
                None => {
                    let names = Self::RUN_LIMITS.into_iter().map(Limit::as_str);
                    let help = did_you_mean(key, names).text();
                    return Err(bad(format!("it is no limit of a run; {help}")));
                }
            }
        }
        Ok(settings)
    }
}

fn time(value: &Value) -> Result<Setting, String> {
    let millis = match value {
        Value::String(text) => duration::from_text_or_zero(text)?,
        Value::Number(number) if number.as_u64() == Some(0) => 0,
        _ => return Err("write a text such as \"90s\" or \"4h\", or 0 for none".to_owned()),
    };
    Ok(Setting::of(millis))
}

fn count(value: &Value) -> Result<Setting, String> {
    let most = value.as_u64().filter(|most| *most <= u64::from(u32::MAX));
    most.map(Setting::of).ok_or_else(|| format!("write a whole number from 0 to {}", u32::MAX))
}

fn smaller(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Cuts a limit to the one that contains it. A limit that is off stays off.
fn within(inner: Option<u64>, outer: Option<u64>) -> Option<u64> {
    inner.map(|inner| outer.map_or(inner, |outer| inner.min(outer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(of: &[(Limit, Setting)]) -> LimitSettings {
        let mut settings = LimitSettings::default();
        of.iter().for_each(|(limit, setting)| assert!(settings.set(*limit, *setting)));
        settings
    }

    #[test]
    fn the_defaults_hold_without_settings() {
        let expected = RunLimits {
            inactivity_warn_ms: Some(600_000),
            inactivity_timeout_ms: None,
            progress_timeout_ms: None,
            run_timeout_ms: Some(14_400_000),
            execution_timeout_ms: None,
            abort_timeout_ms: 10_000,
            max_loop_iterations: None,
            max_handler_runs: None,
            repeat_threshold: Some(2),
            stuck_after_ms: 300_000,
        };
        assert_eq!(default_limits(), expected);
    }

    #[test]
    fn the_smaller_of_setting_and_ceiling_holds() {
        let none = LimitSettings::default();
        let run = |setting| settings(&[(Limit::RunTimeout, setting)]);
        for (spec, asked, ceiling, expected) in [
            (run(Setting::At(5)), none, none, Some(5)),
            (run(Setting::At(5)), run(Setting::At(7)), none, Some(7)),
            (run(Setting::At(5)), run(Setting::At(7)), run(Setting::At(6)), Some(6)),
            (run(Setting::Off), none, none, None),
            (run(Setting::Off), none, run(Setting::At(6)), Some(6)),
            (run(Setting::At(5)), none, run(Setting::Off), Some(5)),
            (none, none, run(Setting::At(6)), Some(6)),
            (none, none, run(Setting::At(20_000_000)), Some(20_000_000)),
            (none, none, run(Setting::Off), None),
        ] {
            let found = spec.effective(&asked, &ceiling).run_timeout_ms;
            assert_eq!(found, expected, "{spec:?} {asked:?} {ceiling:?}");
        }
    }

    #[test]
    fn an_inner_limit_is_cut_to_the_outer_one_but_not_set_by_it() {
        let none = LimitSettings::default();
        let spec = settings(&[
            (Limit::InactivityTimeout, Setting::At(100)),
            (Limit::ExecutionTimeout, Setting::At(50)),
        ]);
        let found = spec.effective(&none, &none);
        assert_eq!(found.run_timeout_ms, Some(50));
        assert_eq!(found.inactivity_timeout_ms, Some(50));
        assert_eq!(found.progress_timeout_ms, None);
        assert_eq!(found.inactivity_warn_ms, Some(INACTIVITY_WARN_MS), "warnings never clash");
    }

    #[test]
    fn a_request_states_times_with_units_and_counts_as_numbers() {
        let said =
            |text: &str| LimitSettings::of_request(&serde_json::from_str(text).expect("an object"));
        let found = said(r#"{"run_timeout": "2h", "max_handler_runs": 7, "inactivity_warn": 0}"#);
        let expected = settings(&[
            (Limit::RunTimeout, Setting::At(7_200_000)),
            (Limit::MaxHandlerRuns, Setting::At(7)),
            (Limit::InactivityWarn, Setting::Off),
        ]);
        assert_eq!(found, Ok(expected));
        for (text, expected) in [
            (r#"{"run_timout": "2h"}"#, "`run_timout` can't be \"2h\": it is no limit of a run"),
            (r#"{"deadline": "2h"}"#, "`deadline` can't be"),
            (r#"{"run_timeout": 7200}"#, "`run_timeout` can't be 7200: write a text"),
            (r#"{"run_timeout": -1}"#, "`run_timeout` can't be -1"),
            (r#"{"run_timeout": "-1s"}"#, "`run_timeout` can't be \"-1s\""),
            (
                r#"{"max_loop_iterations": 1.5}"#,
                "`max_loop_iterations` can't be 1.5: write a whole",
            ),
            (r#"{"max_loop_iterations": -3}"#, "`max_loop_iterations` can't be -3"),
        ] {
            let error = said(text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_session_that_is_warned_of_early_is_marked_stuck_by_then() {
        let none = LimitSettings::default();
        let spec = settings(&[(Limit::InactivityWarn, Setting::At(1_000))]);
        assert_eq!(spec.effective(&none, &none).stuck_after_ms, 1_000);
        let off = settings(&[(Limit::InactivityWarn, Setting::Off)]);
        assert_eq!(off.effective(&none, &none).stuck_after_ms, STUCK_AFTER_MS);
    }

    #[test]
    fn a_request_cannot_extend_the_grace() {
        let none = LimitSettings::default();
        let of = |ms| LimitSettings { abort_timeout: Some(Setting::At(ms)), ..none };
        for (spec, asked, ceiling, found) in [
            (none, of(366 * 86_400_000), none, ABORT_TIMEOUT_MS),
            (none, of(50), none, 50),
            (of(30_000), of(60_000), none, 30_000),
            (of(30_000), none, of(20_000), 20_000),
            (none, none, of(20_000), 20_000),
            (of(30_000), of(25_000), of(20_000), 20_000),
        ] {
            let abort_timeout_ms = spec.effective(&asked, &ceiling).abort_timeout_ms;
            assert_eq!(abort_timeout_ms, found, "{spec:?} {asked:?} {ceiling:?}");
        }
    }

    #[test]
    fn settings_of_a_type_precede_those_of_all_types_key_by_key() {
        let none = LimitSettings::default();
        let all = LimitSettings { run_timeout: Some(Setting::At(50_000)), ..none };
        let of_type = LimitSettings { max_handler_runs: Some(Setting::At(3)), ..none };
        let both = of_type.or(&all);
        assert_eq!(
            (both.run_timeout, both.max_handler_runs),
            (all.run_timeout, of_type.max_handler_runs)
        );
        let own = LimitSettings { run_timeout: Some(Setting::At(90_000)), ..none };
        assert_eq!(own.or(&all).run_timeout, own.run_timeout);
        for limit in LimitSettings::RUN_LIMITS {
            let mut one = none;
            assert!(one.set(limit, Setting::At(7)));
            assert_eq!(none.or(&one), one, "{limit}");
        }
        assert_eq!(Setting::Off.stricter(Setting::At(3)), Setting::At(3));
        assert_eq!(Setting::At(5).stricter(Setting::At(3)), Setting::At(3));
        assert_eq!(Setting::Off.stricter(Setting::Off), Setting::Off);
    }
}
