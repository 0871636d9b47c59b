//! The key that the hosts of a cluster share.

use std::fmt;

use axum::http::HeaderValue;
use sandglass_http::key::{Digest, InvalidKey};
use sandglass_model::HostId;

/// Most keys: the one in use, and the next one or the former one.
const KEYS_MAX: usize = 2;

/// The key that the hosts of a cluster share, or two of them while it is replaced. A host that has it may
/// act for every client, so it must not be an API key of a client.
#[derive(Clone)]
pub struct ClusterKey {
    /// The digests of the keys that are accepted. The first one is sent.
    accepted: Vec<Digest>,
    /// The keys themselves, as values of a header.
    keys: Vec<HeaderValue>,
}

/// A text that contains no cluster key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidClusterKey {
    /// It cannot be a key.
    #[error(transparent)]
    Key(#[from] InvalidKey),
    /// There are too many keys.
    #[error(
        "it has more than {KEYS_MAX} keys; write the key that is sent, and at most one more that is accepted"
    )]
    TooMany,
}

impl ClusterKey {
    /// The key `text`; or two keys, separated by white space: the first is sent to other hosts, and both
    /// are accepted from them.
    ///
    /// # Errors
    /// Errors if the text contains something else.
    pub fn new(text: &str) -> Result<Self, InvalidClusterKey> {
        let keys: Vec<&str> = text.split_ascii_whitespace().collect();
        if keys.len() > KEYS_MAX {
            return Err(InvalidClusterKey::TooMany);
        }
        if keys.is_empty() {
            return Err(InvalidKey.into());
        }
        let accepted: Result<_, InvalidKey> = keys.iter().map(|key| Digest::of_key(key)).collect();
        let header = |key: &&str| {
            let mut header = HeaderValue::from_str(key).map_err(|_| InvalidKey)?;
            header.set_sensitive(true);
            Ok(header)
        };
        let keys: Result<_, InvalidKey> = keys.iter().map(header).collect();
        Ok(Self { accepted: accepted?, keys: keys? })
    }

    /// The value of the header [`CLUSTER_KEY`](super::CLUSTER_KEY) of requests to other hosts.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        self.keys.first().cloned().unwrap_or_else(|| HeaderValue::from_static(""))
    }

    /// The digests of the keys.
    pub(crate) fn digests(&self) -> &[Digest] {
        &self.accepted
    }

    /// What proves to hosts that accept the key which `host` sends that it sends this one. It reveals
    /// nothing about the key to others.
    pub(crate) fn proof(&self, host: HostId) -> String {
        self.keys.first().map(|key| proof(key, host)).unwrap_or_default()
    }

    /// Whether `sent` proves that `host` sends a key that is accepted.
    #[must_use]
    pub fn accepts_proof(&self, host: HostId, sent: &str) -> bool {
        let sent = Digest::of(sent);
        let is_same = |key: &HeaderValue| Digest::of(&proof(key, host)).is_same(&sent);
        self.keys.iter().filter(|key| is_same(key)).count() > 0
    }

    /// Whether `sent` is one of the keys, in constant time.
    pub(super) fn is(&self, sent: &HeaderValue) -> bool {
        let Ok(sent) = sent.to_str().map(Digest::of) else { return false };
        self.accepted.iter().filter(|key| key.is_same(&sent)).count() > 0
    }
}

fn proof(key: &HeaderValue, host: HostId) -> String {
    Digest::of(&format!("{host} {}", key.to_str().unwrap_or_default())).to_hex()
}

impl PartialEq for ClusterKey {
    fn eq(&self, other: &Self) -> bool {
        self.accepted.len() == other.accepted.len()
            && self.accepted.iter().zip(&other.accepted).all(|(one, other)| one.is_same(other))
    }
}

impl Eq for ClusterKey {}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_only_itself_and_is_not_shown() {
        let key = ClusterKey::new("the-hosts-share-this").expect("a key");
        assert!(key.is(&HeaderValue::from_static("the-hosts-share-this")));
        for other in ["", "the-hosts-share-thi", "the-hosts-share-this ", "the-hosts-share-that"] {
            assert!(!key.is(&HeaderValue::from_static(other)), "{other:?}");
        }
        assert!(!key.is(&HeaderValue::from_bytes(b"the-hosts-share-\xff").expect("a value")));
        assert!(!format!("{key:?} {:?}", key.header()).contains("share"));
        assert_eq!(ClusterKey::new("short"), Err(InvalidKey.into()));
        assert_eq!(ClusterKey::new(" \n"), Err(InvalidKey.into()));
    }

    #[test]
    fn of_two_keys_the_first_is_sent_and_both_are_accepted() {
        let key = |text: &str| ClusterKey::new(text).expect("keys");
        let (old, new) = ("the-former-key-of-all", "the-next-key-of-all-hosts");
        let both = key(&format!("{new}\n{old}\n"));
        assert_eq!(both.header(), new);
        assert!([old, new].iter().all(|key| both.is(&HeaderValue::from_str(key).expect("text"))));
        assert_ne!(both, key(new));
        assert_eq!(both, key(&format!(" {new} {old}")));
        // A host that sends an accepted key can prove that, for its own id alone.
        let [host, other] = [HostId::from_bytes([1; 16]), HostId::from_bytes([2; 16])];
        assert!(both.accepts_proof(host, &key(old).proof(host)));
        assert!(both.accepts_proof(host, &both.proof(host)));
        assert!(!key(old).accepts_proof(host, &both.proof(host)));
        assert!(!both.accepts_proof(other, &both.proof(host)));
        assert!(!both.accepts_proof(host, new) && !both.accepts_proof(host, ""));
        let three = format!("{new} {old} a-third-key-of-all-hosts");
        assert_eq!(ClusterKey::new(&three), Err(InvalidClusterKey::TooMany));
        assert_eq!(ClusterKey::new(&format!("{new} short")), Err(InvalidKey.into()));
    }
}
