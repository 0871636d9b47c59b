//! Secrets: where they come from, and how their values are removed from everything that people and
//! disks see.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use memchr::memmem;
use serde_json::Value;

use crate::capability::log::truncate;
use crate::measured::Measured;
use crate::origin::CallOrigin;
use crate::sync::lock;

/// The replacement of a secret in a text.
pub(crate) const REDACTED: &str = "[redacted]";

/// Shortest secret that is removed from texts, in bytes. Shorter ones occur by chance, and removing
/// them would garble unrelated text.
pub const REDACTED_FROM_BYTES: usize = 4;

/// A secret's value. It prints as `[redacted]`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The start of the names of the variables that [`Secret::granted`] reads. A manifest can therefore
    /// not request the value of any other variable.
    pub const VARIABLE_PREFIX: &str = "SANDGLASS_SECRET_";

    /// A secret of this value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value of an environment variable; `None` if it is not set or not UTF-8.
    #[must_use]
    pub fn from_environment(variable: &str) -> Option<Self> {
        std::env::var(variable).ok().map(Self)
    }

    /// Returns the value of the secret `name` that a manifest grants, which is in the environment
    /// variable `SANDGLASS_SECRET_` + `name`.
    ///
    /// # Errors
    /// Errors if the variable is not set; the message states what to do.
    pub fn granted(name: &str) -> Result<Self, String> {
        let variable = format!("{}{name}", Self::VARIABLE_PREFIX);
        Self::from_environment(&variable)
            .ok_or_else(|| format!("set the environment variable `{variable}`"))
    }

    /// The value.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

/// The form of a secret inside of a text in JSON.
pub(crate) fn in_json(secret: &str) -> Cow<'_, str> {
    if !secret.contains(|c: char| c < ' ' || c == '"' || c == '\\') {
        return secret.into();
    }
    let quoted = Value::from(secret).to_string();
    quoted[1..quoted.len() - 1].to_owned().into()
}

fn in_lower_case(secret: &str) -> Cow<'_, str> {
    if secret.is_ascii() && !secret.contains(|c: char| c.is_ascii_uppercase()) {
        return secret.into();
    }
    secret.to_lowercase().into()
}

/// A future that a capability returns.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where secrets come from.
pub trait Secrets: Send + Sync + fmt::Debug {
    /// Returns the secret called `name` for a call from `origin`; `None` if there is none, or if the
    /// integration is not granted it.
    fn secret<'a>(&'a self, name: &'a str, origin: CallOrigin<'a>) -> Answer<'a, Option<Secret>>;
}

/// A fixed set of secrets; the empty one denies all.
#[derive(Clone, Debug, Default)]
pub struct FixedSecrets(BTreeMap<String, Secret>);

impl FromIterator<(String, Secret)> for FixedSecrets {
    fn from_iter<I: IntoIterator<Item = (String, Secret)>>(secrets: I) -> Self {
        Self(secrets.into_iter().collect())
    }
}

impl Secrets for FixedSecrets {
    fn secret<'a>(&'a self, name: &'a str, _: CallOrigin<'a>) -> Answer<'a, Option<Secret>> {
        Box::pin(std::future::ready(self.0.get(name).cloned()))
    }
}

/// Those secrets of another provider that an integration was granted by name.
#[derive(Clone, Debug)]
pub struct GrantedSecrets {
    names: BTreeSet<String>,
    from: Arc<dyn Secrets>,
}

impl GrantedSecrets {
    /// Returns those secrets of `from` whose names are in `names`.
    #[must_use]
    pub fn new(names: BTreeSet<String>, from: Arc<dyn Secrets>) -> Self {
        Self { names, from }
    }
}

impl Secrets for GrantedSecrets {
    fn secret<'a>(&'a self, name: &'a str, origin: CallOrigin<'a>) -> Answer<'a, Option<Secret>> {
        if self.names.contains(name) {
            self.from.secret(name, origin)
        } else {
            Box::pin(std::future::ready(None))
        }
    }
}

/// Removes the secrets that a run was given from everything that it says. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Redactor(Arc<HiddenSecrets>);

#[derive(Debug, Default)]
struct HiddenSecrets {
    secrets: Mutex<Vec<Secret>>,
    /// Their size in bytes. Each host call reads it, without the lock.
    bytes: AtomicU64,
}

impl Measured for Redactor {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

impl Redactor {
    /// Hides `secret` from now on.
    pub fn hide(&self, secret: &Secret) {
        let mut held = self.held();
        // Logs are written by line, so each line of a key is a secret of its own. So are the forms
        // of a text in JSON and in URLs.
        let value = secret.expose();
        let lines = value.lines().map(Cow::Borrowed);
        for form in lines.chain([value.into(), in_lower_case(value), in_json(value)]) {
            if form.len() >= REDACTED_FROM_BYTES && !held.iter().any(|held| held.0 == form) {
                let bytes = size_of::<Secret>() + form.len();
                self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                held.push(Secret(form.into_owned()));
            }
        }
        // Longest first: a secret that contains another one is removed as a whole.
        held.sort_by_key(|held| std::cmp::Reverse(held.expose().len()));
    }

    fn held(&self) -> MutexGuard<'_, Vec<Secret>> {
        lock(&self.0.secrets)
    }

    /// Returns `text` without the secrets.
    pub fn text(&self, text: String) -> String {
        self.held().iter().fold(text, |text, secret| {
            if text.contains(secret.expose()) {
                text.replace(secret.expose(), REDACTED)
            } else {
                text
            }
        })
    }

    /// Returns `start`, the start of a longer text, without the secrets. Its end may be a part of a secret,
    /// in which others may have been replaced, so as much is removed there as the longest can become.
    pub fn start_of_text(&self, start: String) -> String {
        let longest = self.held().first().map_or(0, |secret| secret.expose().len());
        let mut start = self.text(start);
        let kept = start.len().saturating_sub(longest * REDACTED.len() / REDACTED_FROM_BYTES);
        truncate(&mut start, kept);
        start
    }

    /// Whether `bytes` contain a secret, in one of its forms.
    pub fn finds(&self, bytes: &[u8]) -> bool {
        let held = self.held();
        held.iter().any(|secret| memmem::find(bytes, secret.expose().as_bytes()).is_some())
    }

    /// Returns `value` without the secrets.
    pub fn json(&self, value: Value) -> Value {
        if self.held().is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.into_iter().map(|item| self.json(item)).collect(),
            Value::Number(number) => {
                let digits = number.to_string();
                let redacted = self.text(digits.clone());
                if redacted == digits { Value::Number(number) } else { Value::String(redacted) }
            }
            Value::Object(fields) => {
                fields.into_iter().map(|(key, item)| (self.text(key), self.json(item))).collect()
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_taken_out_of_texts_keys_and_values() {
        let redactor = Redactor::default();
        redactor.hide(&Secret::new("abcd"));
        redactor.hide(&Secret::new("xabcdx"));
        redactor.hide(&Secret::new("no"));
        assert_eq!(redactor.text("1 xabcdx 2 abcd no".to_owned()), "1 [redacted] 2 [redacted] no");
        assert_eq!(
            redactor.json(json!({"abcd": ["key=abcd", 4]})),
            json!({"[redacted]": ["key=[redacted]", 4]})
        );
    }

    #[test]
    fn a_key_of_several_lines_and_a_number_are_taken_out_too() {
        let redactor = Redactor::default();
        redactor.hide(&Secret::new("-----BEGIN\nMIIEvQ\n"));
        redactor.hide(&Secret::new("987654"));
        assert_eq!(redactor.text("got MIIEvQ".to_owned()), "got [redacted]");
        assert_eq!(
            redactor.json(json!({"n": 987654, "m": 12})),
            json!({"n": "[redacted]", "m": 12})
        );
    }

    #[test]
    fn the_start_of_a_text_shows_no_part_of_a_secret() {
        let (redactor, secret) = (Redactor::default(), "hunter22hush99");
        redactor.hide(&Secret::new(secret));
        redactor.hide(&Secret::new("er22"));
        // The first one is replaced by less, so the start of the second one moves to the front.
        let text = format!("{secret} and {secret}");
        for cut in 0..=text.len() {
            let start = redactor.start_of_text(text[..cut].to_owned());
            assert!(format!("{REDACTED} and ").starts_with(&start), "{cut}: {start}");
        }
        assert_eq!(Redactor::default().start_of_text("plain".to_owned()), "plain");
    }

    #[test]
    fn the_forms_that_json_and_urls_give_a_secret_are_taken_out_too() {
        let redactor = Redactor::default();
        redactor.hide(&Secret::new("Pass\"Word"));
        assert_eq!(redactor.text(r#"a pass"word b"#.to_owned()), "a [redacted] b");
        assert_eq!(redactor.text(r#"{"k":"Pass\"Word"}"#.to_owned()), r#"{"k":"[redacted]"}"#);
    }

    #[test]
    fn the_form_in_json_is_that_of_the_serializer() {
        for c in (0..=0x7f).map(char::from).chain(['é', '\u{2028}', '⏳']) {
            let (secret, quoted) = (format!("a{c}B"), Value::from(format!("a{c}B")).to_string());
            assert_eq!(format!("\"{}\"", in_json(&secret)), quoted);
            assert_eq!(in_lower_case(&secret), secret.to_lowercase());
        }
        assert_eq!(in_lower_case("ab-7"), "ab-7");
    }

    #[test]
    fn a_secret_prints_as_nothing() {
        assert_eq!(format!("{:?}", Secret::new("hunter22")), "[redacted]");
    }
}
