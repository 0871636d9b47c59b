//! Reads the fields of one JSON object, and notes each that is missing, unknown or of
//! the wrong type.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use sandglass_model::Object;
use serde_json::{Map, Value};

use crate::problem::{Problems, at, quoted, under};

/// One object, where it is, and how it is called.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'v> {
    values: &'v Map<String, Value>,
    pub(crate) path: String,
    label: &'static str,
}

impl<'v> Fields<'v> {
    /// Those of `value`, which is called `label` in messages.
    pub(crate) fn of(
        value: &'v Value,
        path: impl Into<String>,
        label: &'static str,
        out: &mut Problems,
    ) -> Option<Self> {
        let path = path.into();
        match value {
            Value::Object(values) => Some(Self { values, path, label }),
            other => {
                out.add(path, format!("{label} must be an object, and is {}", kind(other)));
                None
            }
        }
    }

    /// The pointer to `key`.
    pub(crate) fn under(&self, key: &str) -> String {
        under(&self.path, key)
    }

    pub(crate) fn value(&self, key: &str) -> Option<&'v Value> {
        self.values.get(key)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'v str, &'v Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Notes each key that isn't in `known`.
    pub(crate) fn only(&self, known: &[&str], out: &mut Problems) {
        for key in self.values.keys().filter(|key| !known.contains(&key.as_str())) {
            let hint = out.hint(key, known.iter().copied());
            let what = format!("unknown key {} in {}; {hint}", quoted(key), self.label);
            out.add(self.under(key), what);
        }
    }

    /// The value of a key that has to be there.
    pub(crate) fn required(&self, key: &str, out: &mut Problems) -> Option<&'v Value> {
        let value = self.value(key);
        if value.is_none() {
            out.add(self.path.as_str(), format!("{} has no `{key}`; add it", self.label));
        }
        value
    }

    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
        out: &mut Problems,
    ) -> Option<T> {
        let value = self.value(key)?;
        let found = read(value);
        if found.is_none() {
            let is = kind(value);
            let what = format!("`{key}` of {} must be {wanted}, and is {is}", self.label);
            out.add(self.under(key), what);
        }
        found
    }

    pub(crate) fn text(&self, key: &str, out: &mut Problems) -> Option<&'v str> {
        self.typed(key, "a string", Value::as_str, out)
    }

    pub(crate) fn required_text(&self, key: &str, out: &mut Problems) -> Option<&'v str> {
        self.required(key, out)?;
        self.text(key, out)
    }

    /// A text that is used as a name: 1 to `max` bytes, no control characters.
    pub(crate) fn name(&self, key: &str, max: usize, out: &mut Problems) -> Option<&'v str> {
        let text = self.text(key, out)?;
        self.named(key, text, max, out).then_some(text)
    }

    pub(crate) fn required_name(
        &self,
        key: &str,
        max: usize,
        out: &mut Problems,
    ) -> Option<&'v str> {
        self.required(key, out)?;
        self.name(key, max, out)
    }

    fn named(&self, key: &str, text: &str, max: usize, out: &mut Problems) -> bool {
        let why = if text.is_empty() {
            "is empty; name it".to_owned()
        } else if text.len() > max {
            format!("has {} bytes, and {max} are allowed; shorten it", text.len())
        } else if text.chars().any(char::is_control) {
            "holds a control character; take it out".to_owned()
        } else {
            return true;
        };
        out.add(self.under(key), format!("`{key}` of {} {why}", self.label));
        false
    }

    /// A text for people, of at most `max` bytes.
    pub(crate) fn prose(&self, key: &str, max: usize, out: &mut Problems) -> Option<String> {
        let text = self.text(key, out)?;
        if text.len() <= max {
            return Some(text.to_owned());
        }
        let what = format!("`{key}` has {} bytes, and {max} are allowed; shorten it", text.len());
        out.add(self.under(key), what);
        None
    }

    pub(crate) fn flag(&self, key: &str, out: &mut Problems) -> bool {
        self.typed(key, "true or false", Value::as_bool, out).unwrap_or(false)
    }

    pub(crate) fn number(&self, key: &str, out: &mut Problems) -> Option<f64> {
        self.typed(key, "a number", Value::as_f64, out)
    }

    /// A whole number within `range`; 3.0 is one.
    pub(crate) fn whole(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
        out: &mut Problems,
    ) -> Option<u64> {
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
            let what = format!("`{key}` of {} must be {wanted}, and is {is}", self.label);
            out.add(self.under(key), what);
        }
        found
    }

    pub(crate) fn list(&self, key: &str, out: &mut Problems) -> Option<&'v Vec<Value>> {
        self.typed(key, "a list", Value::as_array, out)
    }

    /// The items of a list that may have `max`, with their pointers.
    pub(crate) fn items(
        &self,
        key: &str,
        max: usize,
        out: &mut Problems,
    ) -> Vec<(String, &'v Value)> {
        let Some(list) = self.list(key, out) else { return Vec::new() };
        let path = self.under(key);
        if list.len() > max {
            let what = format!("`{key}` has {} items, and {max} are allowed", list.len());
            out.add(path, what);
            return Vec::new();
        }
        list.iter().enumerate().map(|(index, value)| (at(&path, index), value)).collect()
    }

    /// The texts of a list that may have `max`.
    pub(crate) fn texts(&self, key: &str, max: usize, out: &mut Problems) -> Vec<&'v str> {
        let mut texts = Vec::new();
        for (path, value) in self.items(key, max, out) {
            match value.as_str() {
                Some(text) => texts.push(text),
                None => out.add(path, format!("it must be a string, and is {}", kind(value))),
            }
        }
        texts
    }

    /// The same, none of which may stand twice.
    pub(crate) fn unique_texts(
        &self,
        key: &str,
        max: usize,
        out: &mut Problems,
    ) -> BTreeSet<&'v str> {
        let texts = self.texts(key, max, out);
        let mut seen = BTreeSet::new();
        for text in texts {
            if !seen.insert(text) {
                out.add(self.under(key), format!("{} stands here twice", quoted(text)));
            }
        }
        seen
    }

    /// A text of at most `max` characters.
    pub(crate) fn characters(&self, key: &str, max: usize, out: &mut Problems) {
        let fits = |text: &str| text.chars().nth(max).is_none();
        self.patterned(key, &format!("at most {max} characters"), fits, out);
    }

    /// Any object.
    pub(crate) fn object(&self, key: &str, out: &mut Problems) -> Option<Object> {
        let map = self.typed(key, "an object", Value::as_object, out)?;
        Some(map.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// The fields of an object, called `label`.
    pub(crate) fn fields(
        &self,
        key: &str,
        label: &'static str,
        out: &mut Problems,
    ) -> Option<Fields<'v>> {
        Fields::of(self.value(key)?, self.under(key), label, out)
    }

    /// Flags by their names.
    pub(crate) fn flags(&self, key: &str, out: &mut Problems) -> BTreeMap<String, bool> {
        let Some(fields) = self.fields(key, "it", out) else { return BTreeMap::new() };
        let flags = fields.entries().map(|(name, _)| (name.to_owned(), fields.flag(name, out)));
        flags.collect()
    }

    /// What one of the `known` words stands for.
    pub(crate) fn word<T: Copy>(
        &self,
        key: &str,
        known: &[(&'static str, T)],
        out: &mut Problems,
    ) -> Option<T> {
        let text = self.text(key, out)?;
        let found = known.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let hint = out.hint(text, known.iter().map(|(word, _)| *word));
            let what = format!("`{key}` of {} can't be {}; {hint}", self.label, quoted(text));
            out.add(self.under(key), what);
        }
        found
    }

    /// Notes a text of `key` that is not one of the `known`.
    pub(crate) fn one_of(&self, key: &str, known: &[&'static str], out: &mut Problems) {
        let known: Vec<(&'static str, ())> = known.iter().map(|word| (*word, ())).collect();
        self.word(key, &known, out);
    }

    /// Notes where the text of `key` isn't what `holds` asks for.
    pub(crate) fn patterned(
        &self,
        key: &str,
        wanted: &str,
        holds: impl FnOnce(&str) -> bool,
        out: &mut Problems,
    ) {
        if let Some(text) = self.value(key).and_then(Value::as_str)
            && !holds(text)
        {
            let what = format!("`{key}` of {} is {}; write {wanted}", self.label, quoted(text));
            out.add(self.under(key), what);
        }
    }
}

/// What kind of value it is, as a message says it.
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

/// The whole number that a value is; 3.0 is one, as JSON Schema has it.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    /// 2^53: up to here each whole number is a float of its own.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, and within what both hold"
    )]
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number)).then_some(number as u64)
    })
}

/// Whether it begins with a lower-case letter and goes on with letters, digits and `extra`
/// characters; upper-case letters count where `upper` says so.
pub(crate) fn is_identifier(text: &str, extra: &[char], upper: Upper) -> bool {
    let mut chars = text.chars();
    let goes_on = |c: char| {
        c.is_ascii_lowercase()
            || c.is_ascii_digit()
            || extra.contains(&c)
            || (matches!(upper, Upper::Allowed) && c.is_ascii_uppercase())
    };
    chars.next().is_some_and(|c| c.is_ascii_lowercase()) && chars.all(goes_on)
}

/// Whether upper-case letters count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upper {
    Allowed,
    Refused,
}
