//! Reads the fields of one JSON object, and reports each that is missing, unknown or of the wrong
//! type.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use sandglass_model::Object;
use serde_json::{Map, Value};

use crate::problem::{Problems, at, quoted, under};

/// The fields of one object, with its place and what messages call it.
#[derive(Debug)]
pub(crate) struct Fields<'v> {
    values: &'v Map<String, Value>,
    pub(crate) path: String,
    label: &'static str,
    pub(crate) out: &'v Problems,
    /// The keys that were looked up.
    known: RefCell<Vec<&'v str>>,
}

impl<'v> Fields<'v> {
    /// The fields of `value`, which messages call `label`; `None` if it is not an object.
    pub(crate) fn of(
        value: &'v Value,
        path: impl Into<String>,
        label: &'static str,
        out: &'v Problems,
    ) -> Option<Self> {
        let path = path.into();
        match value {
            Value::Object(values) => {
                Some(Self { values, path, label, out, known: RefCell::default() })
            }
            other => {
                out.add(path, format!("{label} must be an object, and is {}", kind(other)));
                None
            }
        }
    }

    /// Reads an object whose only keys are those that `read` looks up, and reports all others.
    pub(crate) fn closed<T>(
        value: &'v Value,
        path: impl Into<String>,
        label: &'static str,
        out: &'v Problems,
        read: impl FnOnce(&Self) -> T,
    ) -> Option<T> {
        let fields = Self::of(value, path, label, out)?;
        let before = out.len();
        let found = read(&fields);
        // A misspelled key often explains why another one is missing, so it is reported first.
        let inside = out.split_off(before);
        fields.only(&fields.known.borrow());
        out.append(inside);
        Some(found)
    }

    /// The pointer to `key`.
    pub(crate) fn under(&self, key: &str) -> String {
        under(&self.path, key)
    }

    /// Reports a problem with the value of `key`.
    pub(crate) fn report(&self, key: &str, what: impl AsRef<str>) {
        self.out.add(self.under(key), what);
    }

    pub(crate) fn value(&self, key: &'v str) -> Option<&'v Value> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&key) {
            known.push(key);
        }
        self.values.get(key)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'v str, &'v Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Reports each key that is not in `known`.
    pub(crate) fn only(&self, known: &[&str]) {
        for key in self.values.keys().filter(|key| !known.contains(&key.as_str())) {
            let hint = self.out.hint(key, known.iter().copied());
            self.report(key, format!("unknown key {} in {}; {hint}", quoted(key), self.label));
        }
    }

    /// The value of a key that must exist.
    pub(crate) fn required(&self, key: &'v str) -> Option<&'v Value> {
        let value = self.value(key);
        if value.is_none() {
            self.out.add(self.path.as_str(), format!("{} has no `{key}`; add it", self.label));
        }
        value
    }

    fn typed<T>(
        &self,
        key: &'v str,
        wanted: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let found = read(value);
        if found.is_none() {
            let is = kind(value);
            self.report(key, format!("`{key}` of {} must be {wanted}, and is {is}", self.label));
        }
        found
    }

    pub(crate) fn text(&self, key: &'v str) -> Option<&'v str> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn required_text(&self, key: &'v str) -> Option<&'v str> {
        self.required(key)?;
        self.text(key)
    }

    /// A text that is used as a name: 1 to `max` bytes, no control characters.
    pub(crate) fn name(&self, key: &'v str, max: usize) -> Option<&'v str> {
        let text = self.text(key)?;
        let why = if text.is_empty() {
            "is empty; name it".to_owned()
        } else if text.len() > max {
            format!("has {} bytes, and {max} are allowed; shorten it", text.len())
        } else if text.chars().any(char::is_control) {
            "contains a control character; remove it".to_owned()
        } else {
            return Some(text);
        };
        self.report(key, format!("`{key}` of {} {why}", self.label));
        None
    }

    pub(crate) fn required_name(&self, key: &'v str, max: usize) -> Option<&'v str> {
        self.required(key)?;
        self.name(key, max)
    }

    /// A required name of the form that `pattern` describes.
    pub(crate) fn required_identifier(
        &self,
        key: &'v str,
        max: usize,
        pattern: &Pattern,
    ) -> Option<&'v str> {
        let name = self.required_name(key, max);
        self.patterned(key, pattern.form, |text| pattern.matches(text));
        name
    }

    /// A text for people, of at most `max` bytes.
    pub(crate) fn prose(&self, key: &'v str, max: usize) -> Option<String> {
        let text = self.text(key)?;
        if text.len() <= max {
            return Some(text.to_owned());
        }
        let bytes = text.len();
        self.report(key, format!("`{key}` has {bytes} bytes, and {max} are allowed; shorten it"));
        None
    }

    pub(crate) fn flag(&self, key: &'v str) -> bool {
        self.typed(key, "true or false", Value::as_bool).unwrap_or(false)
    }

    pub(crate) fn required_number(&self, key: &'v str) -> Option<f64> {
        self.required(key)?;
        self.typed(key, "a number", Value::as_f64)
    }

    /// A whole number within `range`; 3.0 is one.
    pub(crate) fn whole(&self, key: &'v str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.value(key)?;
        let found = whole(value).filter(|number| range.contains(number));
        if found.is_none() {
            let (least, most) = range.into_inner();
            let wanted = match most {
                u64::MAX => format!("a whole number from {least} on"),
                most => format!("a whole number from {least} to {most}"),
            };
            let is = match value {
                Value::Number(number) => number.to_string(),
                other => kind(other).to_owned(),
            };
            self.report(key, format!("`{key}` of {} must be {wanted}, and is {is}", self.label));
        }
        found
    }

    pub(crate) fn list(&self, key: &'v str) -> Option<&'v Vec<Value>> {
        self.typed(key, "a list", Value::as_array)
    }

    /// The items of a list that may have `max`, with their pointers.
    pub(crate) fn items(&self, key: &'v str, max: usize) -> Vec<(String, &'v Value)> {
        let Some(list) = self.list(key) else { return Vec::new() };
        if list.len() > max {
            self.report(key, format!("`{key}` has {} items, and {max} are allowed", list.len()));
            return Vec::new();
        }
        let path = self.under(key);
        list.iter().enumerate().map(|(index, value)| (at(&path, index), value)).collect()
    }

    /// The texts of a list that may have `max`.
    pub(crate) fn texts(&self, key: &'v str, max: usize) -> Vec<&'v str> {
        let mut texts = Vec::new();
        for (path, value) in self.items(key, max) {
            match value.as_str() {
                Some(text) => texts.push(text),
                None => self.out.add(path, format!("it must be a string, and is {}", kind(value))),
            }
        }
        texts
    }

    /// The texts of a list that may have `max` and no duplicates.
    pub(crate) fn unique_texts(&self, key: &'v str, max: usize) -> BTreeSet<&'v str> {
        let mut seen = BTreeSet::new();
        for text in self.texts(key, max) {
            if !seen.insert(text) {
                self.report(key, format!("{} is listed twice", quoted(text)));
            }
        }
        seen
    }

    /// The entries of an object that may have `max`, with their names and pointers.
    pub(crate) fn named(&self, key: &'v str, max: usize) -> Vec<(&'v str, String, &'v Value)> {
        let Some(values) = self.typed(key, "an object", Value::as_object) else {
            return Vec::new();
        };
        if values.len() > max {
            self.report(
                key,
                format!("`{key}` has {} entries, and {max} are allowed", values.len()),
            );
            return Vec::new();
        }
        let path = self.under(key);
        values.iter().map(|(name, value)| (name.as_str(), under(&path, name), value)).collect()
    }

    /// Reports a text of more than `max` characters.
    pub(crate) fn characters(&self, key: &'v str, max: usize) {
        let fits = |text: &str| text.chars().nth(max).is_none();
        self.patterned(key, &format!("at most {max} characters"), fits);
    }

    /// Any object.
    pub(crate) fn object(&self, key: &'v str) -> Option<Object> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Some(map.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// The fields of an object that may have any keys.
    pub(crate) fn open_child(&self, key: &'v str, label: &'static str) -> Option<Self> {
        Fields::of(self.value(key)?, self.under(key), label, self.out)
    }

    /// Reads an object whose only keys are those that `read` looks up.
    pub(crate) fn child<T>(
        &self,
        key: &'v str,
        label: &'static str,
        read: impl FnOnce(&Self) -> T,
    ) -> Option<T> {
        Fields::closed(self.value(key)?, self.under(key), label, self.out, read)
    }

    /// Flags by their names.
    pub(crate) fn flags(&self, key: &'v str) -> BTreeMap<String, bool> {
        let Some(fields) = self.open_child(key, "it") else { return BTreeMap::new() };
        fields.entries().map(|(name, _)| (name.to_owned(), fields.flag(name))).collect()
    }

    /// The meaning of a text that must be one of the `known` words.
    pub(crate) fn word<T: Copy>(&self, key: &'v str, known: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = known.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let hint = self.out.hint(text, known.iter().map(|(word, _)| *word));
            let text = quoted(text);
            self.report(key, format!("`{key}` of {} can't be {text}; {hint}", self.label));
        }
        found
    }

    pub(crate) fn required_word<T: Copy>(
        &self,
        key: &'v str,
        known: &[(&'static str, T)],
    ) -> Option<T> {
        self.required(key)?;
        self.word(key, known)
    }

    /// Reports a text of `key` that is not one of the `known` words.
    pub(crate) fn one_of(&self, key: &'v str, known: &[&'static str]) {
        let known: Vec<(&'static str, ())> = known.iter().map(|word| (*word, ())).collect();
        self.word(key, &known);
    }

    /// Reports a text of `key` that does not have the form `wanted`, by `is_valid`.
    pub(crate) fn patterned(
        &self,
        key: &'v str,
        wanted: &str,
        is_valid: impl FnOnce(&str) -> bool,
    ) {
        if let Some(text) = self.value(key).and_then(Value::as_str)
            && !is_valid(text)
        {
            let text = quoted(text);
            self.report(key, format!("`{key}` of {} is {text}; write {wanted}", self.label));
        }
    }
}

/// What messages call a value of this kind.
pub(crate) const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The whole number that a value is; 3.0 is one, as in JSON Schema.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    /// 2^53: up to here, a float represents each whole number exactly.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, and in the range of both types"
    )]
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number)).then_some(number as u64)
    })
}

/// Whether a key of an object can be a name: 1 to `max` bytes, no control characters.
pub(crate) fn is_name(name: &str, max: usize) -> bool {
    (1..=max).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// The form of identifiers: a lower-case letter, then letters and digits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    /// The form in words.
    pub(crate) form: &'static str,
    /// Other characters that are allowed after the first.
    pub(crate) extra: &'static str,
    /// Whether upper-case letters are allowed after the first.
    pub(crate) has_upper: bool,
}

impl Pattern {
    pub(crate) fn matches(&self, text: &str) -> bool {
        let is_allowed = |c: char| {
            c.is_ascii_lowercase()
                || c.is_ascii_digit()
                || self.extra.contains(c)
                || (self.has_upper && c.is_ascii_uppercase())
        };
        let mut chars = text.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase()) && chars.all(is_allowed)
    }
}
