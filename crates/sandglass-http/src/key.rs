//! API keys: only their digests are kept, and they are compared in constant time.

use std::fmt;

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Shortest key, in bytes: too long to be guessed over a network.
pub const KEY_MIN_BYTES: usize = 16;
/// Longest key, in bytes: fits into a request head together with other headers.
pub const KEY_MAX_BYTES: usize = 1_024;

/// The authorization scheme of keys (RFC 6750), and the space after it.
const SCHEME: &str = "bearer ";

/// The SHA-256 digest of a key.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

/// A text that cannot be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has {KEY_MIN_BYTES} to {KEY_MAX_BYTES} printable ASCII characters, and no space")]
pub struct InvalidKey;

impl Digest {
    /// The digest of a configured key.
    ///
    /// # Errors
    /// Errors if the text cannot be a key.
    pub fn of_key(text: &str) -> Result<Self, InvalidKey> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !(KEY_MIN_BYTES..=KEY_MAX_BYTES).contains(&text.len()) || !printable {
            return Err(InvalidKey);
        }
        Ok(Self::of(text))
    }

    /// The digest of any text, such as one that a client sent.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// The digest, as 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether both are digests of the same text, in constant time.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digest").finish_non_exhaustive()
    }
}

/// The value that belongs to the key `sent`; the last one if several match. It is compared with every
/// key, so that the time reveals neither which one matches nor how much of it.
pub fn find<'a, T>(sent: &str, keys: impl IntoIterator<Item = (&'a Digest, T)>) -> Option<T> {
    let sent = Digest::of(sent);
    let mut found = None;
    for (digest, value) in keys {
        if digest.is_same(&sent) {
            found = Some(value);
        }
    }
    found
}

/// The key of `Authorization: Bearer KEY`; `None` if there are several such headers.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let one = sent.next().filter(|_| sent.next().is_none())?;
    let (scheme, key) = one.to_str().ok()?.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_guessable_or_cannot_be_sent_are_refused() {
        for bad in
            ["", "short", &"k".repeat(KEY_MAX_BYTES + 1), "sixteen letters\n", "ääääääääääääääää"]
        {
            assert_eq!(Digest::of_key(bad).expect_err("no key"), InvalidKey, "{bad:?}");
        }
        for good in ["k".repeat(KEY_MIN_BYTES), "k".repeat(KEY_MAX_BYTES)] {
            assert!(Digest::of_key(&good).is_ok());
        }
    }

    #[test]
    fn a_key_is_found_only_by_its_whole_text() {
        let keys = ["a-key-of-another", "a-key-of-another-client"].map(Digest::of);
        let found = |text| find(text, keys.iter().zip(0..));
        assert_eq!(found("a-key-of-another"), Some(0));
        assert_eq!(found("a-key-of-another-client"), Some(1));
        assert_eq!(found("a-key-of-anothe"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn a_key_is_read_from_exactly_one_authorization_header() {
        let with = |values: &[&str]| -> HeaderMap {
            let header = |value: &&str| (header::AUTHORIZATION, value.parse().expect("a value"));
            values.iter().map(header).collect()
        };
        assert_eq!(bearer(&with(&["Bearer  abc "])), Some("abc"));
        assert_eq!(bearer(&with(&["bEARER abc"])), Some("abc"));
        for bad in [&["Bearer"] as &[&str], &["Basic abc"], &[], &["Bearer abc", "Bearer abc"]] {
            assert_eq!(bearer(&with(bad)), None, "{bad:?}");
        }
    }
}
