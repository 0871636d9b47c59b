//! How variables of the environment are read: strictly, and with a note of each that is
//! set and has no effect.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest time that may be asked for, in milliseconds: a day, which no clock's arithmetic
/// minds.
const MILLIS_MAX: u64 = 24 * 60 * 60 * 1000;

/// That an environment variable holds what can't be used. It never shows the
/// value of a header, which may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {why}")]
pub struct InvalidSetting {
    /// The variable.
    pub variable: &'static str,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

/// That an environment variable asks for something, and nothing is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IgnoredSetting {
    pub(super) variable: &'static str,
    pub(super) why: String,
}

/// An environment. An empty variable counts as one that isn't set, as
/// OpenTelemetry says.
pub(super) struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    ignored: RefCell<Vec<IgnoredSetting>>,
}

impl<'a> Environment<'a> {
    pub(super) fn new(variable: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { variable, ignored: RefCell::default() }
    }

    /// What was ignored, in the order in which it was read.
    pub(super) fn into_ignored(self) -> Vec<IgnoredSetting> {
        self.ignored.into_inner()
    }

    pub(super) fn get(&self, variable: &'static str) -> Option<String> {
        (self.variable)(variable).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// A value of few, which are told apart by neither case: in small letters.
    pub(super) fn choice(&self, variable: &'static str) -> Option<String> {
        self.get(variable).map(|text| text.to_ascii_lowercase())
    }

    /// Several of them, separated by commas; each once, in their order.
    pub(super) fn choices(&self, variable: &'static str) -> Vec<String> {
        let mut choices = Vec::new();
        for choice in self.choice(variable).unwrap_or_default().split(',').map(str::trim) {
            if !choice.is_empty() && !choices.iter().any(|held| held == choice) {
                choices.push(choice.to_owned());
            }
        }
        choices
    }

    /// Whether it is `true`: anything else means no, as OpenTelemetry says of its booleans.
    pub(super) fn flag(&self, variable: &'static str) -> bool {
        match self.choice(variable).as_deref() {
            Some("true") => true,
            None | Some("false") => false,
            Some(other) => {
                self.ignore(
                    variable,
                    other,
                    "it is neither true nor false, and so taken for false",
                );
                false
            }
        }
    }

    /// A whole number within `range`, where it is set.
    pub(super) fn number<T>(
        &self,
        variable: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, InvalidSetting>
    where
        T: std::str::FromStr + PartialOrd + std::fmt::Display,
    {
        let Some(text) = self.get(variable) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let advice =
                    format!("use a whole number from {} to {}", range.start(), range.end());
                Err(invalid(variable, &text, &advice))
            }
        }
    }

    /// Milliseconds, of which there must be some: neither waiting without a pause nor
    /// waiting for ever is offered.
    pub(super) fn millis(
        &self,
        variable: &'static str,
    ) -> Result<Option<Duration>, InvalidSetting> {
        let millis = self.number(variable, 1..=MILLIS_MAX).map_err(|mut error| {
            error.why += " (milliseconds)";
            error
        })?;
        Ok(millis.map(Duration::from_millis))
    }

    /// Notes that `variable` asks in vain.
    pub(super) fn ignore(&self, variable: &'static str, text: &str, why: &str) {
        let why = format!("`{}` has no effect: {why}", shown(text));
        self.ignored.borrow_mut().push(IgnoredSetting { variable, why });
    }

    /// The same of one whose value may be a secret.
    pub(super) fn ignore_unshown(&self, variable: &'static str, why: &str) {
        let why = format!("it has no effect: {why}");
        self.ignored.borrow_mut().push(IgnoredSetting { variable, why });
    }
}

pub(super) fn invalid(variable: &'static str, text: &str, advice: &str) -> InvalidSetting {
    InvalidSetting { variable, why: format!("`{}` can't be used: {advice}", shown(text)) }
}

fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}
