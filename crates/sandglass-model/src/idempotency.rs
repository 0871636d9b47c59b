//! Keys by which an entity recognizes a request that is sent again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Object;
use crate::id::{InvalidId, KeyDigest, RequestDigest, Sequence, check_name, stored_as_text};

/// Longest key, in bytes: as common clients allow, and short enough for a header.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 255;

/// A key that a client chooses for a request, so that the request is done once even if it is sent more
/// than once: 1 to [`IDEMPOTENCY_KEY_MAX_BYTES`] visible characters of ASCII, without spaces. It is one
/// word, because most requests have none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(Arc<String>);

impl IdempotencyKey {
    /// The key as the client sent it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its digest, by which an entity remembers it.
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        let digest = Sha256::digest(self.0.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        KeyDigest::from_bytes(bytes)
    }
}

impl std::fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for IdempotencyKey {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        const WHAT: &str = "idempotency key";
        check_name(WHAT, text, IDEMPOTENCY_KEY_MAX_BYTES)?;
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let why = "its characters must be visible ones of ASCII";
            return Err(InvalidId::new(WHAT, text, why));
        }
        Ok(Self(Arc::new(text.to_owned())))
    }
}

stored_as_text!(IdempotencyKey);

/// The key of a request, as the record of its transition states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// The key.
    pub key: IdempotencyKey,
    /// The sequence that the request expected; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Sequence>,
    /// The digest of the key and of all else that makes the request: another request with the same key
    /// has another digest.
    pub request: RequestDigest,
}

impl Idempotency {
    /// What is recorded of a request with `key` for `action`.
    #[must_use]
    pub fn of(
        key: IdempotencyKey,
        expected: Option<Sequence>,
        action: &str,
        params: &Object,
    ) -> Self {
        // Plain data with text keys always has a JSON form.
        let request = serde_json::to_vec(&(&key, expected, action, params)).unwrap_or_default();
        let request = RequestDigest::from_bytes(Sha256::digest(request).into());
        Self { key, expected, request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_visible_ascii_of_at_most_255_characters() {
        let longest = "k".repeat(255);
        for good in ["a", "8e03978e-40d5-43dd-bc93-6894a57f9324", "!~", "\"quoted\\", &longest] {
            let key: IdempotencyKey = good.parse().expect("valid");
            assert_eq!((key.as_str(), &*key.to_string()), (good, good));
            let text = serde_json::to_string(&key).expect("plain data");
            assert_eq!(serde_json::from_str::<IdempotencyKey>(&text).expect("as it was"), key);
        }
        let long = "k".repeat(256);
        for bad in ["", " ", "a b", "a\tb", "a\u{7f}", "é", "a\n", &long] {
            let error = bad.parse::<IdempotencyKey>().expect_err(bad).to_string();
            assert!(error.contains("idempotency key"), "{error}");
            assert!(serde_json::from_value::<IdempotencyKey>(bad.into()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_part_of_a_request_changes_its_digest_and_the_order_of_its_parameters_does_not() {
        let key = |text: &str| text.parse::<IdempotencyKey>().expect("valid");
        let params = |text: &str| serde_json::from_str::<Object>(text).expect("an object");
        let two = params(r#"{"a": {"x": 1, "y": 2}, "b": 2}"#);
        let one = Idempotency::of(key("k"), None, "Touch", &two);
        let turned = params(r#"{"b": 2, "a": {"y": 2, "x": 1}}"#);
        assert_eq!(Idempotency::of(key("k"), None, "Touch", &turned), one);
        for (key, expected, action, params) in [
            (key("l"), None, "Touch", &two),
            (key("k"), Some(Sequence(0)), "Touch", &two),
            (key("k"), None, "Tuch", &two),
            (key("k"), None, "Touch", &params(r#"{"a": {"x": 1}, "b": 2}"#)),
        ] {
            let other = Idempotency::of(key, expected, action, params);
            assert_ne!(other.request, one.request, "{other:?}");
        }
    }
}
