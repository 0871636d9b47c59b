//! Keys that clients send: their text is compared by digest, in constant time, and never
//! kept.

use std::fmt;

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Shortest key, in bytes: what can't be guessed over a network in any time.
pub const KEY_MIN_BYTES: usize = 16;
/// Longest key, in bytes: what fits a request head beside all else.
pub const KEY_MAX_BYTES: usize = 1_024;

/// The scheme of keys (RFC 6750), and the space behind it.
const SCHEME: &str = "bearer ";

/// The SHA-256 digest of a key.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

/// Why a text can't be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has {KEY_MIN_BYTES} to {KEY_MAX_BYTES} printable characters of ASCII, and no space")]
pub struct InvalidKey;

impl Digest {
    /// The digest of a key that somebody chose.
    ///
    /// # Errors
    /// The text can't be a key.
    pub fn of_key(text: &str) -> Result<Self, InvalidKey> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !(KEY_MIN_BYTES..=KEY_MAX_BYTES).contains(&text.len()) || !printable {
            return Err(InvalidKey);
        }
        Ok(Self::of(text))
    }

    /// The digest of whatever was sent.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Whether both are of the same text, in a time that doesn't depend on it.
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

/// What belongs to the key that was `sent`: it is compared with every key, so that the time
/// tells neither which one fits nor how much of it. The last, where several fit.
pub fn find<'a, T>(sent: &str, keys: impl IntoIterator<Item = (&'a Digest, T)>) -> Option<T> {
    let sent = Digest::of(sent);
    let mut found = None;
    for (digest, of) in keys {
        if digest.is_same(&sent) {
            found = Some(of);
        }
    }
    found
}

/// The key of `Authorization: Bearer KEY`; none where there are several such headers.
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
    fn keys_that_could_be_guessed_or_not_be_sent_are_none() {
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
    fn a_key_is_found_by_its_whole_text_alone() {
        let keys = ["a-key-of-somebody", "a-key-of-somebody-else"].map(Digest::of);
        let found = |text| find(text, keys.iter().zip(0..));
        assert_eq!(found("a-key-of-somebody"), Some(0));
        assert_eq!(found("a-key-of-somebody-else"), Some(1));
        assert_eq!(found("a-key-of-somebod"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn one_authorization_is_a_key_and_two_are_none() {
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
