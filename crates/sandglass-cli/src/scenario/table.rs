//! Reads values out of one table of a scenario, and gathers every key that is
//! missing, unknown or of the wrong type.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use sandglass_liveness::{Diagnostic, Severity};
use sandglass_model::id::NAME_MAX_BYTES;
use sandglass_model::{EntityRef, Object};
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::{WAIT_MAX, toml_value};
use crate::size;
use crate::terminal::{printable, shortened};

/// Most findings that are kept for one file: more than anybody mends in one go.
const FINDINGS_MAX: usize = 100;

/// Most names that a help lists: all kinds of steps.
const NAMED_MAX: usize = 12;
/// Most characters of a value that a message repeats.
const ECHO_MAX_CHARS: usize = 60;
/// Most characters of another's reason that a message repeats: a sentence.
const WHY_MAX_CHARS: usize = 200;

/// Gathers what is wrong in one file.
#[derive(Debug)]
pub(super) struct Findings<'s> {
    source: &'s str,
    found: Vec<Diagnostic>,
}

impl<'s> Findings<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self { source, found: Vec::new() }
    }

    pub(super) fn error(&mut self, span: &Range<usize>, message: impl AsRef<str>) {
        self.push(span, message.as_ref(), None);
    }

    pub(super) fn error_with_help(
        &mut self,
        span: &Range<usize>,
        message: impl AsRef<str>,
        help: impl AsRef<str>,
    ) {
        self.push(span, message.as_ref(), Some(help.as_ref()));
    }

    fn push(&mut self, span: &Range<usize>, message: &str, help: Option<&str>) {
        if self.found.len() < FINDINGS_MAX {
            self.found.push(error_at(self.source, span, message, help));
        }
    }

    /// The line of a place, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        place(self.source, at).0
    }

    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|one| one.span.start);
        self.found
    }
}

/// An error at a place of `source`.
pub(super) fn error_at(
    source: &str,
    span: &Range<usize>,
    message: &str,
    help: Option<&str>,
) -> Diagnostic {
    let (line, column) = place(source, span.start);
    Diagnostic {
        severity: Severity::Error,
        message: printable(message).into_owned(),
        help: help.map(|help| printable(help).into_owned()),
        span: span.clone(),
        line,
        column,
    }
}

fn place(source: &str, at: usize) -> (usize, usize) {
    let at = (0..=at.min(source.len())).rev().find(|at| source.is_char_boundary(*at));
    let before = &source[..at.unwrap_or(0)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// One table, how it is called in messages, and where it stands.
#[derive(Debug)]
pub(super) struct Table<'t, 's> {
    pub(super) values: &'t DeTable<'s>,
    pub(super) label: String,
    pub(super) span: Range<usize>,
}

impl<'t, 's> Table<'t, 's> {
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Where `key` stands, or else the table.
    pub(super) fn span_of(&self, key: &str) -> Range<usize> {
        self.values.get_key_value(key).map_or_else(|| self.span.clone(), |(key, _)| key.span())
    }

    /// Reports each key that isn't in `known`.
    pub(super) fn only(&self, known: &[&str], out: &mut Findings<'_>) {
        for key in self.values.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let message = format!("unknown key `{}` in {}", key.get_ref(), self.label);
            out.error_with_help(&key.span(), message, nearest(key.get_ref(), known));
        }
    }

    /// The value of `key`, where it is there and `read` takes it; what it should
    /// be is told otherwise.
    fn read<T>(
        &self,
        key: &str,
        kind: &str,
        out: &mut Findings<'_>,
        read: impl FnOnce(&'t DeValue<'s>) -> Option<Result<T, String>>,
    ) -> Option<T> {
        let value = self.values.get(key)?;
        match read(value.get_ref()) {
            Some(Ok(value)) => Some(value),
            Some(Err(message)) => {
                out.error(&value.span(), message);
                None
            }
            None => {
                let is = value.get_ref().type_str();
                let message = format!("`{key}` in {} must be {kind}, not a {is}", self.label);
                out.error(&value.span(), message);
                None
            }
        }
    }

    pub(super) fn text(&self, key: &str, out: &mut Findings<'_>) -> Option<String> {
        self.read(key, "a string", out, |value| Some(Ok(value.as_str()?.to_owned())))
    }

    /// The text, where it is one; nothing is reported.
    pub(super) fn peek_text(&self, key: &str) -> Option<&'t str> {
        self.values.get(key)?.get_ref().as_str()
    }

    pub(super) fn required_text(&self, key: &str, out: &mut Findings<'_>) -> Option<String> {
        self.require(key, out);
        self.text(key, out)
    }

    fn require(&self, key: &str, out: &mut Findings<'_>) {
        if !self.has(key) {
            let help = format!("add `{key} = ...`");
            out.error_with_help(&self.span, format!("{} has no `{key}`", self.label), help);
        }
    }

    pub(super) fn entity(&self, key: &str, out: &mut Findings<'_>) -> Option<EntityRef> {
        self.read(key, "an entity, written \"TYPE/ID\"", out, |value| {
            Some(
                value
                    .as_str()?
                    .parse()
                    .map_err(|error: sandglass_model::id::InvalidId| error.to_string()),
            )
        })
    }

    pub(super) fn required_entity(&self, key: &str, out: &mut Findings<'_>) -> Option<EntityRef> {
        self.require(key, out);
        self.entity(key, out)
    }

    pub(super) fn flag(&self, key: &str, out: &mut Findings<'_>) -> Option<bool> {
        self.read(key, "true or false", out, |value| value.as_bool().map(Ok))
    }

    /// A whole number from 0 on.
    pub(super) fn count(&self, key: &str, out: &mut Findings<'_>) -> Option<u64> {
        self.read(key, "a whole number from 0 on", out, |value| {
            Some(Ok(toml_value::integer(value.as_integer()?)?.try_into().ok()?))
        })
    }

    pub(super) fn number(&self, key: &str, out: &mut Findings<'_>) -> Option<f64> {
        self.read(key, "a number", out, |value| toml_value::json(value).as_f64().map(Ok))
    }

    pub(super) fn duration(&self, key: &str, out: &mut Findings<'_>) -> Option<Duration> {
        self.read(key, "a duration such as \"500ms\" or \"2s\"", out, |value| {
            let text = value.as_str()?.trim();
            let shown = shortened(text, ECHO_MAX_CHARS);
            // What is said of a text may hold it, however long that is.
            Some(match humantime::parse_duration(text) {
                Ok(time) if time <= WAIT_MAX => Ok(time),
                Ok(_) => Err(format!("`{shown}` is longer than a day")),
                Err(error) => {
                    let why = error.to_string();
                    let why = shortened(&why, WHY_MAX_CHARS);
                    Err(format!("`{shown}` is no duration ({why})"))
                }
            })
        })
    }

    pub(super) fn size(&self, key: &str, out: &mut Findings<'_>) -> Option<u64> {
        self.read(key, "a size such as \"64MiB\"", out, |value| match value {
            DeValue::Integer(number) => Some(size::parse(number.as_str())),
            _ => Some(size::parse(value.as_str()?)),
        })
    }

    pub(super) fn texts(&self, key: &str, out: &mut Findings<'_>) -> Option<Vec<String>> {
        self.read(key, "a list of strings", out, |value| {
            let texts =
                value.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
            texts.collect::<Option<Vec<_>>>().map(Ok)
        })
    }

    /// A table of texts; numbers and flags stand for their text.
    pub(super) fn text_table(&self, key: &str, out: &mut Findings<'_>) -> BTreeMap<String, String> {
        let text = |value: Value| match value {
            Value::String(text) => Some(text),
            Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
            _ => None,
        };
        let entries = self.object(key, out).into_iter();
        let mut texts = BTreeMap::new();
        for (name, value) in entries {
            match text(value) {
                Some(value) => drop(texts.insert(name, value)),
                None => out.error(&self.span_of(key), format!("`{key}.{name}` must be a string")),
            }
        }
        texts
    }

    pub(super) fn object(&self, key: &str, out: &mut Findings<'_>) -> Object {
        let read = self.read(key, "a table", out, |value| {
            let table = value.as_table()?;
            Some(Ok(toml_value::object(table)))
        });
        read.unwrap_or_default()
    }

    pub(super) fn any(&self, key: &str) -> Option<Value> {
        self.values.get(key).map(|value| toml_value::json(value.get_ref()))
    }

    /// The tables of a list of tables, each called `label N`.
    pub(super) fn tables(
        &self,
        key: &str,
        label: &str,
        out: &mut Findings<'_>,
    ) -> Vec<Table<'t, 's>> {
        let Some(value) = self.values.get(key) else { return Vec::new() };
        let Some(items) = value.get_ref().as_array() else {
            let message = format!("`{key}` must be a list of tables: write [[{key}]]");
            out.error(&value.span(), message);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (number, item) in (1..).zip(items.iter()) {
            match item.get_ref().as_table() {
                Some(values) => tables.push(Table {
                    values,
                    label: format!("{label} {number}"),
                    span: item.span(),
                }),
                None => out.error(&item.span(), format!("{label} {number} must be a table")),
            }
        }
        tables
    }
}

/// A help that names the key that was probably meant, or else some of them.
pub(super) fn nearest(wanted: &str, known: &[&str]) -> String {
    // What is longer than any name takes time to compare, and is none of them.
    let comparable = if wanted.len() > NAME_MAX_BYTES { &[][..] } else { known };
    let near = comparable
        .iter()
        .map(|name| (strsim::jaro_winkler(wanted, name), name))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match near {
        Some((_, name)) => format!("did you mean `{name}`?"),
        None if known.is_empty() => "none is known here".to_owned(),
        None => {
            let more = if known.len() > NAMED_MAX { ", …" } else { "" };
            let some: Vec<&str> = known.iter().copied().take(NAMED_MAX).collect();
            format!("known here: `{}`{more}", some.join("`, `"))
        }
    }
}
