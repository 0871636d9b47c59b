//! Reads values out of one table of a spec file, and reports every key that is
//! missing, unknown or of the wrong type.

use std::ops::Range;

use sandglass_model::id::{NAME_MAX_BYTES, check_name};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Name;
use super::diagnostic::{Diagnostics, did_you_mean};
use super::duration;

pub(super) type Spot<'t, 's> = &'t Spanned<DeValue<'s>>;

/// One table, how it is called in messages, and where it stands.
#[derive(Clone)]
pub(super) struct Table<'t, 's> {
    pub(super) values: &'t DeTable<'s>,
    pub(super) label: String,
    pub(super) span: Range<usize>,
}

impl<'t, 's> Table<'t, 's> {
    pub(super) fn value(&self, key: &str) -> Option<Spot<'t, 's>> {
        self.values.get(key)
    }

    /// Every entry, as key, place of the key, and value.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'t str, Range<usize>, Spot<'t, 's>)> {
        self.values.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value))
    }

    /// Reports each key that isn't in `known`.
    pub(super) fn only(&self, known: &[&str], out: &mut Diagnostics<'_>) {
        for (key, span, _) in self.entries() {
            if !known.contains(&key) {
                let message = format!("unknown key `{key}` in {}", self.label);
                out.error_with_help(&span, message, did_you_mean(key, known.iter().copied()));
            }
        }
    }

    pub(super) fn text(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<Name> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(Name::new(text, value.span())),
            None => {
                out.error(&value.span(), wrong_type(key, &self.label, "a string", value));
                None
            }
        }
    }

    /// A text that is used as a name: not empty, not too long, printable.
    pub(super) fn name(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<Name> {
        let name = self.text(key, out)?;
        valid_name(name, out)
    }

    pub(super) fn required_name(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<Name> {
        if self.value(key).is_none() {
            self.missing(key, out);
        }
        self.name(key, out)
    }

    pub(super) fn missing(&self, key: &str, out: &mut Diagnostics<'_>) {
        let help = format!("add `{key} = ...`");
        out.error_with_help(&self.span, format!("{} has no `{key}`", self.label), help);
    }

    /// A list of names; a single one stands for a list of one.
    pub(super) fn names(&self, key: &str, out: &mut Diagnostics<'_>) -> Vec<Name> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let items: Vec<Spot<'t, 's>> = match value.get_ref() {
            DeValue::String(_) => vec![value],
            DeValue::Array(items) => items.iter().collect(),
            _ => {
                out.error(&value.span(), wrong_type(key, &self.label, "a list of strings", value));
                return Vec::new();
            }
        };
        let mut names: Vec<Name> = Vec::new();
        for item in items {
            let Some(text) = item.get_ref().as_str() else {
                out.error(&item.span(), wrong_type(key, &self.label, "a list of strings", item));
                continue;
            };
            names.extend(valid_name(Name::new(text, item.span()), out));
        }
        names
    }

    pub(super) fn flag(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<bool> {
        let value = self.value(key)?;
        let flag = match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            DeValue::String(text) => text.parse().ok(),
            _ => None,
        };
        if flag.is_none() {
            out.error(&value.span(), wrong_type(key, &self.label, "true or false", value));
        }
        flag
    }

    /// A duration with its unit, in milliseconds.
    pub(super) fn duration(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
        let value = self.value(key)?;
        let read = match value.get_ref() {
            DeValue::String(text) => duration::from_text(text),
            DeValue::Integer(number) => Err(format!("`{}` has no unit", number.as_str())),
            _ => Err(wrong_type(key, &self.label, "a duration", value)),
        };
        let help = "write a number and a unit, such as \"500ms\", \"900s\" or \"1h30m\"";
        read.map_err(|message| out.error_with_help(&value.span(), message, help)).ok()
    }

    /// A number of seconds, in milliseconds; a string is read as a number.
    pub(super) fn seconds(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
        let help = "write the seconds as a number above zero, such as 300";
        self.seconds_as(duration::from_seconds, help, key, out)
    }

    /// The same, where it may be none at all.
    pub(super) fn delay_seconds(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
        let help = "write the seconds as a number from zero, such as 300";
        self.seconds_as(duration::delay_from_seconds, help, key, out)
    }

    fn seconds_as(
        &self,
        millis: fn(f64) -> Result<u64, String>,
        help: &str,
        key: &str,
        out: &mut Diagnostics<'_>,
    ) -> Option<u64> {
        let value = self.value(key)?;
        let read = match number(value.get_ref()) {
            Some(seconds) => millis(seconds),
            None => Err(wrong_type(key, &self.label, "a number of seconds", value)),
        };
        read.map_err(|message| out.error_with_help(&value.span(), message, help)).ok()
    }
}

/// The number that a value is, or that its text is.
fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok()?.to_string().parse().ok()
        }
        DeValue::Float(number) => number.as_str().parse().ok(),
        DeValue::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

pub(super) fn valid_name(name: Name, out: &mut Diagnostics<'_>) -> Option<Name> {
    match check_name("name", &name, NAME_MAX_BYTES) {
        Ok(()) => Some(name),
        Err(error) => {
            out.error(name.span(), error.to_string());
            None
        }
    }
}

pub(super) fn wrong_type(key: &str, label: &str, wanted: &str, found: Spot<'_, '_>) -> String {
    let kind = found.get_ref().type_str();
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("`{key}` in {label} must be {wanted}, and is {article} {kind}")
}

/// A TOML value as JSON. The nesting is bounded by the parser.
pub(super) fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::from(number.to_string()), Value::from),
        DeValue::Float(number) => number.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Datetime(moment) => Value::from(moment.to_string()),
        DeValue::Array(items) => items.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(table) => {
            let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                let key: &toml::de::DeString<'_> = key.get_ref();
                (key.to_string(), json(value.get_ref()))
            };
            Value::Object(table.iter().map(entry).collect())
        }
    }
}

/// A TOML value as the text that a handler's configuration holds.
pub(super) fn config_text(value: &DeValue<'_>) -> String {
    match json(value) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
