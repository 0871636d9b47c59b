//! Secrets in recordings: a recording contains the name of a secret in place of its value, and a replay
//! needs the values again.

use std::borrow::Cow;
use std::collections::BTreeMap;

use memchr::memmem;

use crate::secret::{REDACTED_FROM_BYTES, Redactor, Secret, in_json};

/// A part of recorded bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Plain(&'a [u8]),
    /// A secret of `len` bytes.
    Secret {
        name: &'a str,
        len: usize,
        form: Form,
    },
}

/// How a secret appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Value,
    /// As it is inside of a text in JSON, as in a context, if that differs.
    Json,
}

impl Form {
    /// `secret` in this form.
    pub fn of(self, secret: &str) -> Cow<'_, str> {
        match self {
            Self::Value => secret.into(),
            Self::Json => in_json(secret),
        }
    }
}

/// The secrets that a run has seen.
#[derive(Debug, Default)]
pub struct SeenSecrets {
    /// Longest first, so that a secret that contains another one is replaced as a whole.
    held: Vec<SeenSecret>,
    redactor: Redactor,
}

/// A secret in one of its forms.
#[derive(Debug)]
struct SeenSecret {
    name: String,
    form: Form,
    /// The secret in this form.
    text: Secret,
    /// The length of its value.
    len: usize,
}

impl SeenSecrets {
    /// No secrets yet; those that are added are hidden by `redactor`.
    pub fn new(redactor: Redactor) -> Self {
        Self { held: Vec::new(), redactor }
    }

    /// Adds a secret of the run, which is hidden from people from now on.
    pub fn add(&mut self, name: &str, secret: &Secret) {
        self.redactor.hide(secret);
        if secret.expose().is_empty() || self.held.iter().any(|held| held.name == name) {
            return;
        }
        let mut hold = |form: Form| {
            let text = Secret::new(form.of(secret.expose()));
            let len = secret.expose().len();
            self.held.push(SeenSecret { name: name.to_owned(), form, text, len });
        };
        hold(Form::Value);
        if in_json(secret.expose()) != secret.expose() {
            hold(Form::Json);
        }
        self.held.sort_by_key(|held| std::cmp::Reverse(held.text.expose().len()));
    }

    /// Splits `bytes` into pieces, at least one. A very short secret may occur by chance, so it counts as
    /// one only if it is the whole of `bytes`.
    pub fn split<'a>(&'a self, bytes: &'a [u8]) -> Vec<Piece<'a>> {
        let mut pieces = vec![Piece::Plain(bytes)];
        for SeenSecret { name, form, text, len } in &self.held {
            let value = text.expose().as_bytes();
            let secret = || Piece::Secret { name, len: *len, form: *form };
            pieces = pieces
                .into_iter()
                .flat_map(|piece| match piece {
                    Piece::Plain(plain) if plain == value => vec![secret()],
                    Piece::Plain(plain) if value.len() >= REDACTED_FROM_BYTES => {
                        cut(plain, value, secret)
                    }
                    other => vec![other],
                })
                .collect();
        }
        pieces
    }

    /// Whether `bytes` contain a secret, in any of its forms.
    pub fn shows_in(&self, bytes: &[u8]) -> bool {
        !self.held.is_empty() && self.redactor.finds(bytes)
    }

    /// Returns `text`, which `is_whole` or the start of a longer one, without the secrets.
    pub fn redacted(&self, text: String, is_whole: bool) -> String {
        if is_whole { self.redactor.text(text) } else { self.redactor.start_of_text(text) }
    }
}

fn cut<'a>(plain: &'a [u8], value: &[u8], secret: impl Fn() -> Piece<'a>) -> Vec<Piece<'a>> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    for at in memmem::find_iter(plain, value) {
        if at > from {
            pieces.push(Piece::Plain(&plain[from..at]));
        }
        pieces.push(secret());
        from = at + value.len();
    }
    if from < plain.len() || pieces.is_empty() {
        pieces.push(Piece::Plain(&plain[from..]));
    }
    pieces
}

/// The values of secrets for a replay.
#[derive(Clone, Debug, Default)]
pub struct GivenSecrets(pub BTreeMap<String, Secret>);

impl GivenSecrets {
    /// Returns the secret called `name`, of `len` bytes.
    ///
    /// # Errors
    /// It is missing, or has another length; the text states that.
    pub fn find(&self, name: &str, len: u64) -> Result<&str, String> {
        match self.0.get(name) {
            None => Err(format!("the secret `{name}` isn't given")),
            Some(secret) if secret.expose().len() as u64 != len => {
                Err(format!("the secret `{name}` has another length than the one of the run"))
            }
            Some(secret) => Ok(secret.expose()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_replace_secrets() {
        let mut seen = SeenSecrets::default();
        seen.add("KEY", &Secret::new("hunter22"));
        seen.add("PIN", &Secret::new("12"));
        let key = || Piece::Secret { name: "KEY", len: 8, form: Form::Value };
        assert_eq!(seen.split(b"hunter22"), [key()]);
        assert_eq!(
            seen.split(b"a hunter22hunter22 b"),
            [Piece::Plain(b"a "), key(), key(), Piece::Plain(b" b")]
        );
        assert_eq!(seen.split(b""), [Piece::Plain(b"")]);
        let pin = Piece::Secret { name: "PIN", len: 2, form: Form::Value };
        assert_eq!(seen.split(b"12"), [pin]);
        assert_eq!(seen.split(b"1 12"), [Piece::Plain(b"1 12")], "that may be chance");
    }

    #[test]
    fn names_replace_secrets_in_json_too() {
        let mut seen = SeenSecrets::default();
        seen.add("PEM", &Secret::new("BEGIN\nkey\n"));
        let pem = |form| Piece::Secret { name: "PEM", len: 10, form };
        assert_eq!(seen.split(b"BEGIN\nkey\n"), [pem(Form::Value)]);
        assert_eq!(
            seen.split(br#"{"k":"BEGIN\nkey\n"}"#),
            [Piece::Plain(br#"{"k":""#), pem(Form::Json), Piece::Plain(br#""}"#)]
        );
        assert_eq!(Form::Json.of("BEGIN\nkey\n"), r"BEGIN\nkey\n");
    }

    #[test]
    fn a_missing_or_different_secret_is_reported() {
        let given = GivenSecrets([("KEY".to_owned(), Secret::new("abcd"))].into());
        assert_eq!(given.find("KEY", 4), Ok("abcd"));
        assert!(given.find("KEY", 5).expect_err("another one").contains("another length"));
        assert!(given.find("PIN", 2).expect_err("absent").contains("isn't given"));
    }
}
