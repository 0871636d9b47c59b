//! Reads the values of one table of a file, and reports keys that are missing, unknown or of the wrong
//! type.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use sandglass_model::Object;
use sandglass_model::id::{NAME_MAX_BYTES, check_name};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{is_misspelling, unknown_key};
use crate::{Diagnostics, Name, duration, size, toml_value};

/// Shortest start of a key that is probably meant as that key.
const KEY_START_MIN_LEN: usize = 4;

/// A value with its place in the file.
pub type Spot<'t, 's> = &'t Spanned<DeValue<'s>>;

/// One table, with its name in messages and its place in the file.
#[derive(Clone, Debug)]
pub struct Table<'t, 's> {
    /// The values by key.
    pub values: &'t DeTable<'s>,
    /// The name in messages.
    pub label: String,
    /// The place, in bytes of the source.
    pub span: Range<usize>,
}

impl<'t, 's> Table<'t, 's> {
    /// The table with the kind and name of what it declares as its name in messages, if it has a
    /// name.
    #[must_use]
    pub fn called(&self, kind: &str, name: Option<&Name>) -> Self {
        let mut called = self.clone();
        if let Some(name) = name {
            called.label = format!("{kind} `{name}`");
        }
        called
    }

    /// The value of `key`, if there is one.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<Spot<'t, 's>> {
        self.values.get(key)
    }

    /// Whether there is a value of `key`.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The place of `key`, or else that of the table.
    #[must_use]
    pub fn span_of(&self, key: &str) -> Range<usize> {
        self.values.get_key_value(key).map_or_else(|| self.span.clone(), |(key, _)| key.span())
    }

    /// The entries: key, place of the key, and value.
    pub fn entries(&self) -> impl Iterator<Item = (&'t str, Range<usize>, Spot<'t, 's>)> {
        self.values.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value))
    }

    /// Reports each key that is not in `known`. In a file that is not strict, they are one warning.
    pub fn only(&self, known: &[&str], out: &mut Diagnostics<'_>) {
        for (key, span, _) in self.entries() {
            if !known.contains(&key) {
                out.report_unknown_key(key, &span, &self.label, known);
            }
        }
    }

    /// Reports those of `keys` that the table has as unknown.
    pub fn ignore(&self, keys: &[&str], out: &mut Diagnostics<'_>) {
        for (key, span, _) in self.entries().filter(|(key, ..)| keys.contains(key)) {
            out.report_unknown_key(key, &span, &self.label, &[]);
        }
    }

    /// As [`Table::only`], but unknown keys are errors in any file.
    pub fn only_strictly(&self, known: &[&str], out: &mut Diagnostics<'_>) {
        let is_strict = out.is_strict();
        out.set_strict(true);
        self.only(known, out);
        out.set_strict(is_strict);
    }

    /// Reads a text.
    pub fn text(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<Name> {
        let value = self.value(key)?;
        self.text_in(key, value, "a string", out)
    }

    /// The text of `value`, which `key` has or contains.
    fn text_in(
        &self,
        key: &str,
        value: Spot<'_, '_>,
        wanted: &str,
        out: &mut Diagnostics<'_>,
    ) -> Option<Name> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            out.error(&value.span(), wrong_type(key, &self.label, wanted, value));
        }
        text.map(|text| Name::new(text, value.span()))
    }

    /// Reads a text that is used as a name: not empty, not too long, printable.
    pub fn name(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<Name> {
        let name = self.text(key, out)?;
        valid_name(name, out)
    }

    /// Reads a required name.
    pub fn required_name(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<Name> {
        self.require(key, out);
        self.name(key, out)
    }

    /// Reads a required text.
    pub fn required_text(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<Name> {
        self.require(key, out);
        self.text(key, out)
    }

    /// Reports an error if there is no `key`, at the key that is probably a misspelling of it if there
    /// is one.
    pub fn require(&self, key: &str, out: &mut Diagnostics<'_>) {
        if self.has(key) {
            return;
        }
        let (span, message, help) = match self.misspelled(key) {
            Some((found, span)) => {
                (span, unknown_key(found, &self.label), format!("did you mean `{key}`?"))
            }
            None => {
                let message = format!("{} has no `{key}`", self.label);
                (self.span.clone(), message, format!("add `{key} = ...`"))
            }
        };
        out.error_with_help(&span, message, help);
    }

    /// The key that is probably meant as `key`, or that is the start of it, and its place.
    #[must_use]
    pub fn misspelled(&self, key: &str) -> Option<(&'t str, Range<usize>)> {
        let is_start = |found: &str| found.len() >= KEY_START_MIN_LEN && key.starts_with(found);
        let is_meant = |found: &str| is_misspelling(found, key) || is_start(found);
        let found = self.entries().find(|(found, ..)| is_meant(found));
        found.map(|(found, span, _)| (found, span))
    }

    /// Reads a list of names; a single name counts as a list of one.
    pub fn names(&self, key: &str, out: &mut Diagnostics<'_>) -> Vec<Name> {
        let texts = self.texts(key, out);
        texts.into_iter().filter_map(|text| valid_name(text, out)).collect()
    }

    /// Reads a list of texts; a single text counts as a list of one.
    pub fn texts(&self, key: &str, out: &mut Diagnostics<'_>) -> Vec<Name> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let items = items_of(value).into_iter();
        items.filter_map(|item| self.text_in(key, item, "a list of strings", out)).collect()
    }

    /// Reads a boolean, or a text `true` or `false`.
    pub fn flag(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<bool> {
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

    /// Reads a duration with its unit, in milliseconds: 1 to
    /// [`MAX_BUDGET_MS`](sandglass_model::limit::MAX_BUDGET_MS).
    pub fn duration(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
        self.duration_as(key, duration::from_text, out)
    }

    /// Reads a duration with its unit, within `range`.
    pub fn duration_within(
        &self,
        key: &str,
        range: RangeInclusive<Duration>,
        out: &mut Diagnostics<'_>,
    ) -> Option<Duration> {
        self.duration_as(key, |text| duration::within(text, &range), out)
    }

    fn duration_as<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
        out: &mut Diagnostics<'_>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let message = match value.get_ref() {
            // The reason also states what to write.
            DeValue::String(text) => {
                let read = read(text);
                return read
                    .map_err(|why| out.error(&value.span(), format!("`{key}`: {why}")))
                    .ok();
            }
            DeValue::Integer(number) => format!("`{key}`: {}", no_unit(number.as_str())),
            _ => wrong_type(key, &self.label, "a duration", value),
        };
        let help = "write a number and a unit, such as \"500ms\", \"900s\" or \"1h30m\"";
        out.error_with_help(&value.span(), message, help);
        None
    }

    /// Reads a size in bytes, above zero; a plain number is one of bytes.
    pub fn size(&self, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
        let value = self.value(key)?;
        let read = match value.get_ref() {
            DeValue::String(text) => size::parse(text),
            DeValue::Integer(number) => toml_value::integer(number)
                .map_or_else(|| size::parse(number.as_str()), size::positive),
            _ => {
                let message = wrong_type(key, &self.label, "a size", value);
                let help = "write a number and a unit, such as \"64MiB\" or \"500kB\"";
                out.error_with_help(&value.span(), message, help);
                return None;
            }
        };
        // The reason also states what to write.
        read.map_err(|message| out.error(&value.span(), message)).ok()
    }

    /// Reads a whole number within `range`.
    pub fn count(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
        out: &mut Diagnostics<'_>,
    ) -> Option<u64> {
        let value = self.value(key)?;
        let number = value.get_ref().as_integer().and_then(toml_value::integer);
        let count = number.and_then(|number| u64::try_from(number).ok());
        let count = count.filter(|count| range.contains(count));
        if count.is_none() {
            let wanted = match (*range.start(), *range.end()) {
                (least, u64::MAX) => format!("a whole number from {least} on"),
                (least, most) => format!("a whole number from {least} to {most}"),
            };
            let found = match value.get_ref() {
                DeValue::Integer(number) => Some(number.as_str()),
                DeValue::Float(number) => Some(number.as_str()),
                _ => None,
            };
            let message = match found {
                Some(found) => {
                    format!("`{key}` in {} must be {wanted}, and is `{found}`", self.label)
                }
                None => wrong_type(key, &self.label, &wanted, value),
            };
            out.error(&value.span(), message);
        }
        count
    }

    /// Reads the table of `key`, called `label` in messages.
    pub fn table(
        &self,
        key: &str,
        label: impl Into<String>,
        out: &mut Diagnostics<'_>,
    ) -> Option<Table<'t, 's>> {
        let value = self.value(key)?;
        match value.get_ref().as_table() {
            Some(values) => Some(Table { values, label: label.into(), span: value.span() }),
            None => {
                out.error(&value.span(), wrong_type(key, &self.label, "a table", value));
                None
            }
        }
    }

    /// Reads an array of tables, of which table n (from 1) is called `label(n)`; a single table counts as
    /// an array of one.
    pub fn tables(
        &self,
        key: &str,
        label: impl Fn(usize) -> String,
        out: &mut Diagnostics<'_>,
    ) -> Vec<Table<'t, 's>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let mut tables = Vec::new();
        for (number, item) in (1..).zip(items_of(value)) {
            match item.get_ref().as_table() {
                Some(values) => {
                    tables.push(Table { values, label: label(number), span: item.span() })
                }
                None => {
                    let message = wrong_type(key, &self.label, "an array of tables", item);
                    let help = format!("write it as [[{}]]", self.path_of(key));
                    out.error_with_help(&item.span(), message, help);
                }
            }
        }
        tables
    }

    /// The heading of the table `key` in this table, without its brackets.
    fn path_of(&self, key: &str) -> String {
        let own = self.label.strip_prefix('[').and_then(|label| label.strip_suffix(']'));
        own.map_or_else(|| key.to_owned(), |own| format!("{own}.{key}"))
    }

    /// Reads a table of texts; numbers and booleans count as texts.
    pub fn texts_by_name(&self, key: &str, out: &mut Diagnostics<'_>) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for (name, value) in self.object(key, out) {
            match value {
                Value::String(text) => drop(texts.insert(name, text)),
                Value::Number(_) | Value::Bool(_) => drop(texts.insert(name, value.to_string())),
                _ => out.error(&self.span_of(key), format!("`{key}.{name}` must be a string")),
            }
        }
        texts
    }

    /// Reads a table of any values, as JSON.
    pub fn object(&self, key: &str, out: &mut Diagnostics<'_>) -> Object {
        self.table(key, key, out)
            .map(|table| toml_value::to_object(table.values))
            .unwrap_or_default()
    }
}

/// The items of a list; a single value counts as a list of one.
#[must_use]
pub fn items_of<'t, 's>(value: Spot<'t, 's>) -> Vec<Spot<'t, 's>> {
    match value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![value],
    }
}

/// Checks that a text can be used as a name: not empty, not too long, printable.
pub fn valid_name(name: Name, out: &mut Diagnostics<'_>) -> Option<Name> {
    match check_name("name", &name, NAME_MAX_BYTES) {
        Ok(()) => Some(name),
        Err(error) => {
            out.error(name.span(), error.to_string());
            None
        }
    }
}

/// Formats the error of a number in place of a duration.
#[must_use]
pub fn no_unit(number: &str) -> String {
    if number.starts_with('-') {
        format!("`{number}` is negative")
    } else {
        format!("`{number}` has no unit")
    }
}

/// Formats the error of a value that is not what is `wanted`.
#[must_use]
pub fn wrong_type(key: &str, label: &str, wanted: &str, found: Spot<'_, '_>) -> String {
    let kind = found.get_ref().type_str();
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("`{key}` in {label} must be {wanted}, and is {article} {kind}")
}
