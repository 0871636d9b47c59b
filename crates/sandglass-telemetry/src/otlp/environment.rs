//! Reads environment variables strictly, and collects those that are set without effect.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::shown::escape;

/// Longest time in a variable, in milliseconds: a day, which cannot overflow any clock.
const MILLIS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The value of an environment variable is invalid. The error never contains the value of a header, which
/// may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {why}")]
pub struct InvalidSetting {
    /// The variable.
    pub variable: &'static str,
    /// What is wrong, and what would be right.
    pub why: String,
}

/// An environment variable is set without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IgnoredSetting {
    pub(super) variable: &'static str,
    pub(super) why: String,
}

/// An environment. An empty variable counts as unset, as OpenTelemetry requires.
pub(super) struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    ignored: RefCell<Vec<IgnoredSetting>>,
}

impl<'a> Environment<'a> {
    pub(super) fn new(variable: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { variable, ignored: RefCell::default() }
    }

    /// The ignored variables, in the order in which they were read.
    pub(super) fn into_ignored(self) -> Vec<IgnoredSetting> {
        self.ignored.into_inner()
    }

    pub(super) fn get(&self, variable: &'static str) -> Option<String> {
        (self.variable)(variable).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// A value that is compared without case, in lower case.
    pub(super) fn choice(&self, variable: &'static str) -> Option<String> {
        self.get(variable).map(|text| text.to_ascii_lowercase())
    }

    /// A list of such values, separated by commas, without duplicates.
    pub(super) fn choices(&self, variable: &'static str) -> Vec<String> {
        let mut choices = Vec::new();
        for choice in self.choice(variable).unwrap_or_default().split(',').map(str::trim) {
            if !choice.is_empty() && !choices.iter().any(|other| other == choice) {
                choices.push(choice.to_owned());
            }
        }
        choices
    }

    /// Whether it is `true`. Any other value means false, as OpenTelemetry requires.
    pub(super) fn flag(&self, variable: &'static str) -> bool {
        match self.choice(variable).as_deref() {
            Some("true") => true,
            None | Some("false") => false,
            Some(other) => {
                self.ignore(variable, other, "it is neither true nor false, which counts as false");
                false
            }
        }
    }

    /// A whole number within `range`, if set.
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

    /// A positive number of milliseconds. Zero, which could mean no delay or no limit, is refused.
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

    /// Notes that `variable` has no effect.
    pub(super) fn ignore(&self, variable: &'static str, text: &str, why: &str) {
        let why = format!("`{}` has no effect: {why}", escape(text));
        self.ignored.borrow_mut().push(IgnoredSetting { variable, why });
    }

    /// As [`Environment::ignore`], for a value that may be a secret.
    pub(super) fn ignore_secret(&self, variable: &'static str, why: &str) {
        let why = format!("it has no effect: {why}");
        self.ignored.borrow_mut().push(IgnoredSetting { variable, why });
    }
}

pub(super) fn invalid(variable: &'static str, text: &str, advice: &str) -> InvalidSetting {
    InvalidSetting { variable, why: format!("`{}` is invalid: {advice}", escape(text)) }
}
