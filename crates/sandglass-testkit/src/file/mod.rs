//! Reads files of cases (`*.test.toml`).

mod answer;
mod case;
mod expected;
mod function;

use std::path::{Path, PathBuf};

use sandglass_host::Signature;
use sandglass_source::{Diagnostic, Diagnostics, Document, Severity, Table, wrong_type};
use serde_json::Value;

use crate::answer::Call;
use crate::case::Case;
pub(crate) use expected::KEYS;

/// Largest file of cases, in bytes.
pub const SOURCE_MAX_BYTES: usize = 4 << 20;
/// Most cases in one file.
pub const CASES_MAX: usize = 1_000;

/// The contents of a file.
pub(crate) struct CaseFile {
    pub(crate) guest: Option<PathBuf>,
    pub(crate) functions: Vec<Signature>,
    pub(crate) cases: Vec<Case>,
}

/// Reads a file in `folder`. Returns its contents, unless it is invalid, and all findings.
pub(crate) fn read(source: &str, folder: &Path) -> (Option<CaseFile>, Vec<Diagnostic>) {
    let mut out = Diagnostics::new(source);
    let file = Document::parse(source, SOURCE_MAX_BYTES, &mut out)
        .map(|document| read_file(&document.table("the file"), folder, &mut out));
    let diagnostics = out.finish();
    let is_invalid = diagnostics.iter().any(|one| one.severity == Severity::Error);
    (file.filter(|_| !is_invalid), diagnostics)
}

fn read_file(top: &Table<'_, '_>, folder: &Path, out: &mut Diagnostics<'_>) -> CaseFile {
    top.only(&["guest", "function", "defaults", "case"], out);
    let guest = top.text("guest", out).map(|name| {
        let path = folder.join(name.as_str());
        if !path.is_file() {
            let message = format!("there is no file `{}`", path.display());
            out.error_with_help(name.span(), message, "name a manifest or a module; is it built?");
        }
        path
    });
    let defaults = match top.table("defaults", "[defaults]", out) {
        Some(table) => case::defaults(&table, out),
        None => Case::default(),
    };
    let tables = top.tables("case", |number| format!("case {number}"), out);
    if tables.is_empty() {
        let help = "add a [[case]] with `name`, `input` and `expect`";
        out.error_with_help(&(0..0), "the file has no cases", help);
    } else if tables.len() > CASES_MAX {
        out.error(&top.span_of("case"), format!("a file has at most {CASES_MAX} cases"));
    }
    let read = tables.iter().take(CASES_MAX);
    let cases: Vec<Case> = read.map(|table| case::read(table, &defaults, out)).collect();
    for (number, case) in cases.iter().enumerate() {
        if !case.name.is_empty() && cases[..number].iter().any(|other| other.name == case.name) {
            let message = format!("two cases are named `{}`", case.name);
            let span = tables.get(number).map_or(top.span_of("case"), |table| table.span.clone());
            out.error_with_help(&span, message, "give each case a different name");
        }
    }
    let functions = top.tables("function", |number| format!("function {number}"), out);
    let functions: Vec<Signature> =
        functions.iter().filter_map(|table| function::read(table, out)).collect();
    let declared = |name: &str| functions.iter().any(|function| function.full_name() == name);
    for (table, case) in tables.iter().zip(&cases) {
        for answer in &case.answers {
            if let Call::Function { name } = &answer.to
                && !declared(name)
            {
                let message =
                    format!("{} answers for `{name}`, which no [[function]] declares", table.label);
                out.error(&table.span, message);
            }
        }
    }
    CaseFile { guest, functions, cases }
}

/// Reads any value as JSON.
fn any(table: &Table<'_, '_>, key: &str) -> Option<Value> {
    table.value(key).map(|value| sandglass_source::toml_value::to_json(value.get_ref()))
}

/// Reads any value as JSON: that of `key`, or the JSON text of `key_json`, which can contain null.
fn any_or_json(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<Value> {
    let other = format!("{key}_json");
    let Some(text) = table.text(&other, out) else { return any(table, key) };
    if table.has(key) {
        let message = format!("{} has both `{key}` and `{other}`", table.label);
        out.error_with_help(&table.span_of(&other), message, "write one of them");
    }
    let read = serde_json::from_str(&text);
    read.map_err(|why| out.error(text.span(), format!("`{other}` is not valid JSON: {why}"))).ok()
}

/// Reads a list of any values as JSON.
fn list(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<Vec<Value>> {
    let value = table.value(key)?;
    match sandglass_source::toml_value::to_json(value.get_ref()) {
        Value::Array(items) => Some(items),
        _ => {
            out.error(&value.span(), wrong_type(key, &table.label, "a list", value));
            None
        }
    }
}

/// Reads a list of strings.
fn texts(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<Vec<String>> {
    let has = table.has(key);
    has.then(|| table.texts(key, out).iter().map(ToString::to_string).collect())
}

fn text(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<String> {
    table.text(key, out).map(|text| text.to_string())
}
