//! Writes what came into a file of cases, in the place of what was expected.

use std::path::{Path, PathBuf};

use sandglass_model::OutcomeKind;
use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value as Toml, value};

use crate::case::Expected;
use crate::file::KEYS;
use crate::kit::Ran;

/// A file of cases whose expectations change.
#[derive(Debug)]
pub struct Update {
    path: PathBuf,
    before: String,
    document: DocumentMut,
}

/// Why a file can't be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// It is no TOML any more.
    #[error("`{}` can't be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: toml_edit::TomlError,
    },
    /// Something in it is not where it was.
    #[error("`{}` can't be updated: {what}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What has changed.
        what: String,
    },
    /// It can't be written.
    #[error("`{}` can't be written: {why}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: std::io::Error,
    },
}

impl Update {
    /// Begins to change the file at `path`, which holds `source`.
    ///
    /// # Errors
    /// It is no TOML.
    pub fn of(path: &Path, source: &str) -> Result<Self, UpdateError> {
        let document =
            source.parse().map_err(|why| UpdateError::Unreadable { path: path.to_owned(), why })?;
        Ok(Self { path: path.to_owned(), before: source.to_owned(), document })
    }

    /// Expects of the case at `place` what came: of what it says, and always the outcome. A
    /// case that expects nothing yet is given the outcome, the result, the host calls and
    /// what it died in.
    ///
    /// # Errors
    /// There is no such case.
    pub fn expect(&mut self, place: usize, ran: &Ran) -> Result<(), UpdateError> {
        let cases = self.document.get_mut("case").and_then(Item::as_array_of_tables_mut);
        let Some(case) = cases.and_then(|cases| cases.get_mut(place)) else {
            let what = format!(
                "there is no [[case]] {}: cases must stand in tables of their own",
                place + 1
            );
            return Err(UpdateError::Changed { path: self.path.clone(), what });
        };
        let is_new = !case.contains_key("expect");
        let expect = case.entry("expect").or_insert_with(|| Item::Table(Table::new()));
        let Some(expect) = expect.as_table_like_mut() else {
            let what = format!("`expect` of case {} is no table", place + 1);
            return Err(UpdateError::Changed { path: self.path.clone(), what });
        };
        for (key, found) in found(&ran.found) {
            let as_json = format!("{key}_json");
            let is_said = expect.contains_key(key) || expect.contains_key(&as_json);
            let wanted = match key {
                // It completes, unless it is said.
                "outcome" => is_said || ran.found.outcome != OutcomeKind::Completed || is_new,
                "result" | "calls" | "dying_span" | "error_kind" if is_new => true,
                _ => is_said,
            };
            if !wanted {
                continue;
            }
            let (now, other) = match found {
                Some(Found::Toml(found)) => (Some((key, found)), as_json.as_str()),
                Some(Found::Json(text)) => (Some((as_json.as_str(), text.into())), key),
                None => (None, key),
            };
            expect.remove(other);
            match now {
                Some((key, found)) => put(expect, key, found),
                None => drop(expect.remove(&as_json)),
            }
        }
        Ok(())
    }

    /// Whether the case at `place` expects nothing yet.
    #[must_use]
    pub fn is_new(&self, place: usize) -> bool {
        let cases = self.document.get("case").and_then(Item::as_array_of_tables);
        let case = cases.and_then(|cases| cases.get(place));
        case.is_some_and(|case| !case.contains_key("expect"))
    }

    /// The file as it would be.
    #[must_use]
    pub fn after(&self) -> String {
        let text = self.document.to_string();
        // As the file has them.
        if self.before.contains("\r\n") {
            text.replace("\r\n", "\n").replace('\n', "\r\n")
        } else {
            text
        }
    }

    /// What changes, line by line: `-` goes and `+` comes. Nothing where nothing changes.
    #[must_use]
    pub fn shown(&self) -> String {
        let after = self.after();
        let diff = similar::TextDiff::from_lines(self.before.as_str(), after.as_str());
        let name = self.path.display().to_string();
        diff.unified_diff().context_radius(3).header(&name, &name).to_string()
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// It isn't what it was any more, or can't be written.
    pub fn write(&self) -> Result<(), UpdateError> {
        let unwritable = |why| UpdateError::Unwritable { path: self.path.clone(), why };
        let now = std::fs::read_to_string(&self.path).map_err(unwritable)?;
        if now != self.before {
            let what = "somebody has written it meanwhile".to_owned();
            return Err(UpdateError::Changed { path: self.path.clone(), what });
        }
        // Where a link leads, and with the rights that it has there.
        let path = self.path.canonicalize().map_err(unwritable)?;
        let mut beside = path.clone().into_os_string();
        beside.push(".new");
        std::fs::write(&beside, self.after()).map_err(unwritable)?;
        let rights = path.metadata().map_err(unwritable)?.permissions();
        std::fs::set_permissions(&beside, rights).map_err(unwritable)?;
        std::fs::rename(&beside, &path).map_err(unwritable)
    }
}

/// Puts a value into a table, in its place and with what stands around it where there is one.
fn put(table: &mut dyn TableLike, key: &str, found: Toml) {
    let mut item = value(found);
    let around = table.get(key).and_then(Item::as_value).map(|before| before.decor().clone());
    if let (Some(around), Some(value)) = (around, item.as_value_mut()) {
        *value.decor_mut() = around;
    }
    table.insert(key, item);
}

/// A value as it is written.
enum Found {
    Toml(Toml),
    /// The JSON text of one that TOML can't say.
    Json(String),
}

/// What came, by the keys of a file.
fn found(found: &Expected) -> impl Iterator<Item = (&'static str, Option<Found>)> {
    let text = |text: &Option<String>| text.as_ref().map(|text| Found::Toml(text.as_str().into()));
    let texts = |texts: &Option<Vec<String>>| {
        let texts = texts.as_ref()?.iter().map(String::as_str).collect();
        Some(Found::Toml(Toml::Array(texts)))
    };
    let json = |value: &Option<Value>| {
        let value = value.as_ref().filter(|value| !value.is_null())?;
        Some(toml(value).map_or_else(|| Found::Json(value.to_string()), Found::Toml))
    };
    let list = |list: &Option<Vec<Value>>| {
        // One with null in it stays as it was.
        toml(&Value::Array(list.clone()?)).map(Found::Toml)
    };
    let all = [
        Some(Found::Toml(found.outcome.as_str().into())),
        text(&found.action),
        json(&found.params),
        json(&found.result),
        text(&found.error_kind),
        text(&found.error),
        text(&found.dying_span),
        texts(&found.calls),
        texts(&found.requests),
        list(&found.bodies),
        list(&found.asks),
        list(&found.progress),
        text(&found.status),
    ];
    // Bounds of time are the author's.
    KEYS.into_iter().zip(all)
}

/// JSON as TOML; none where there is null in it, for which TOML has nothing.
fn toml(json: &Value) -> Option<Toml> {
    Some(match json {
        Value::Null => return None,
        Value::Bool(flag) => Toml::from(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Toml::from(whole),
            None => Toml::from(number.as_f64()?),
        },
        Value::String(text) => Toml::from(text.as_str()),
        Value::Array(items) => Toml::Array(items.iter().map(toml).collect::<Option<Array>>()?),
        Value::Object(fields) => {
            let mut table = InlineTable::new();
            for (name, field) in fields {
                table.insert(name, toml(field)?);
            }
            Toml::InlineTable(table)
        }
    })
}
