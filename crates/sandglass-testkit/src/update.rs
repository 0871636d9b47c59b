//! Updates the expectations in a file of cases to what happened.

use std::path::{Path, PathBuf};

use sandglass_model::OutcomeKind;
use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value as Toml, value};

use crate::case::Expected;
use crate::file::KEYS;
use crate::kit::CaseResult;

/// An update of the expectations in a file.
#[derive(Debug)]
pub struct Update {
    path: PathBuf,
    before: String,
    document: DocumentMut,
}

/// Why a file cannot be updated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// It is not valid TOML.
    #[error("`{}` cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: toml_edit::TomlError,
    },
    /// It does not have the expected structure or text.
    #[error("`{}` cannot be updated: {what}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// It cannot be written.
    #[error("`{}` cannot be written: {why}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: std::io::Error,
    },
}

impl Update {
    /// Starts an update of the file at `path`, whose text is `source`.
    ///
    /// # Errors
    /// Errors if it is not valid TOML.
    pub fn new(path: &Path, source: &str) -> Result<Self, UpdateError> {
        let document =
            source.parse().map_err(|why| UpdateError::Unreadable { path: path.to_owned(), why })?;
        Ok(Self { path: path.to_owned(), before: source.to_owned(), document })
    }

    /// Sets the expectations of the case at `index` to what happened: the outcome, and each key that
    /// the case contains. A case without expectations gets the outcome, the result, the host
    /// calls, the dying span and the kind of the error.
    ///
    /// # Errors
    /// Errors if there is no such case.
    pub fn expect(&mut self, index: usize, result: &CaseResult) -> Result<(), UpdateError> {
        let cases = self.document.get_mut("case").and_then(Item::as_array_of_tables_mut);
        let Some(case) = cases.and_then(|cases| cases.get_mut(index)) else {
            let what = format!(
                "there is no [[case]] {}; write each case as a table of its own",
                index + 1
            );
            return Err(UpdateError::Changed { path: self.path.clone(), what });
        };
        let is_new = !case.contains_key("expect");
        let expect = case.entry("expect").or_insert_with(|| Item::Table(Table::new()));
        let Some(expect) = expect.as_table_like_mut() else {
            let what = format!("`expect` of case {} is not a table", index + 1);
            return Err(UpdateError::Changed { path: self.path.clone(), what });
        };
        for (key, written) in written_values(&result.actual) {
            let as_json = format!("{key}_json");
            let is_present = expect.contains_key(key) || expect.contains_key(&as_json);
            let is_updated = match key {
                // Without an outcome, a case expects that the handler completes.
                "outcome" => {
                    is_present || result.actual.outcome != OutcomeKind::Completed || is_new
                }
                "result" | "calls" | "dying_span" | "error_kind" if is_new => true,
                _ => is_present,
            };
            if !is_updated {
                continue;
            }
            let (new, other) = match written {
                Some(Written::Toml(value)) => (Some((key, value)), as_json.as_str()),
                Some(Written::Json(text)) => (Some((as_json.as_str(), text.into())), key),
                None => (None, key),
            };
            expect.remove(other);
            match new {
                Some((key, value)) => set(expect, key, value),
                None => drop(expect.remove(&as_json)),
            }
        }
        Ok(())
    }

    /// Whether the case at `index` has no expectations.
    #[must_use]
    pub fn is_new(&self, index: usize) -> bool {
        let cases = self.document.get("case").and_then(Item::as_array_of_tables);
        let case = cases.and_then(|cases| cases.get(index));
        case.is_some_and(|case| !case.contains_key("expect"))
    }

    /// The updated text of the file.
    #[must_use]
    pub fn after(&self) -> String {
        let text = self.document.to_string();
        // Keeps the line endings of the file.
        if self.before.contains("\r\n") {
            text.replace("\r\n", "\n").replace('\n', "\r\n")
        } else {
            text
        }
    }

    /// The update as a unified diff; empty if nothing changes.
    #[must_use]
    pub fn diff(&self) -> String {
        let after = self.after();
        let diff = similar::TextDiff::from_lines(self.before.as_str(), after.as_str());
        let name = self.path.display().to_string();
        diff.unified_diff().context_radius(3).header(&name, &name).to_string()
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// Errors if the file was changed meanwhile, or cannot be written.
    pub fn write(&self) -> Result<(), UpdateError> {
        let unwritable = |why| UpdateError::Unwritable { path: self.path.clone(), why };
        let now = std::fs::read_to_string(&self.path).map_err(unwritable)?;
        if now != self.before {
            let what = "it was changed by another program meanwhile".to_owned();
            return Err(UpdateError::Changed { path: self.path.clone(), what });
        }
        // Replaces the target of a link, not the link, and keeps its permissions.
        let path = self.path.canonicalize().map_err(unwritable)?;
        let mut temporary = path.clone().into_os_string();
        temporary.push(".new");
        std::fs::write(&temporary, self.after()).map_err(unwritable)?;
        let permissions = path.metadata().map_err(unwritable)?.permissions();
        std::fs::set_permissions(&temporary, permissions).map_err(unwritable)?;
        std::fs::rename(&temporary, &path).map_err(unwritable)
    }
}

/// Sets `key` of a table. An existing key keeps its position and the comments around its value.
fn set(table: &mut dyn TableLike, key: &str, new: Toml) {
    let mut item = value(new);
    let decor = table.get(key).and_then(Item::as_value).map(|before| before.decor().clone());
    if let (Some(decor), Some(value)) = (decor, item.as_value_mut()) {
        *value.decor_mut() = decor;
    }
    table.insert(key, item);
}

/// The form in which a value is written.
enum Written {
    Toml(Toml),
    /// The JSON text of a value that TOML cannot express, because it contains null.
    Json(String),
}

/// The values of `actual` by the keys of a file; the limits on time are left out, because they are the
/// author's choice.
fn written_values(actual: &Expected) -> impl Iterator<Item = (&'static str, Option<Written>)> {
    let text =
        |text: &Option<String>| text.as_ref().map(|text| Written::Toml(text.as_str().into()));
    let texts = |texts: &Option<Vec<String>>| {
        let texts = texts.as_ref()?.iter().map(String::as_str).collect();
        Some(Written::Toml(Toml::Array(texts)))
    };
    let json = |value: &Option<Value>| {
        let value = value.as_ref().filter(|value| !value.is_null())?;
        Some(to_toml(value).map_or_else(|| Written::Json(value.to_string()), Written::Toml))
    };
    let list = |list: &Option<Vec<Value>>| {
        // A list that contains null is not updated.
        to_toml(&Value::Array(list.clone()?)).map(Written::Toml)
    };
    let all = [
        Some(Written::Toml(actual.outcome.as_str().into())),
        text(&actual.action),
        json(&actual.params),
        json(&actual.result),
        text(&actual.error_kind),
        text(&actual.error),
        text(&actual.dying_span),
        texts(&actual.calls),
        texts(&actual.requests),
        list(&actual.bodies),
        list(&actual.asks),
        list(&actual.signals),
        list(&actual.progress),
        text(&actual.status),
    ];
    KEYS.into_iter().zip(all)
}

/// Converts JSON to TOML; `None` if it contains null, which TOML does not have.
fn to_toml(json: &Value) -> Option<Toml> {
    Some(match json {
        Value::Null => return None,
        Value::Bool(flag) => Toml::from(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Toml::from(whole),
            None => Toml::from(number.as_f64()?),
        },
        Value::String(text) => Toml::from(text.as_str()),
        Value::Array(items) => Toml::Array(items.iter().map(to_toml).collect::<Option<Array>>()?),
        Value::Object(fields) => {
            let mut table = InlineTable::new();
            for (name, field) in fields {
                table.insert(name, to_toml(field)?);
            }
            Toml::InlineTable(table)
        }
    })
}
