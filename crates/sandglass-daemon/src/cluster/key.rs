//! The key that the hosts of a cluster share.

use std::fmt;

use axum::http::HeaderValue;
use sandglass_http::key::{Digest, InvalidKey};

/// The key that the hosts of a cluster share. A host that has it may act for every client, so it must
/// not be an API key of a client.
#[derive(Clone)]
pub struct ClusterKey {
    digest: Digest,
    header: HeaderValue,
}

impl ClusterKey {
    /// The key `text`.
    ///
    /// # Errors
    /// Errors if the text cannot be a key.
    pub fn new(text: &str) -> Result<Self, InvalidKey> {
        let digest = Digest::of_key(text)?;
        let mut header = HeaderValue::from_str(text).map_err(|_| InvalidKey)?;
        header.set_sensitive(true);
        Ok(Self { digest, header })
    }

    /// The value of the header [`CLUSTER_KEY`](super::CLUSTER_KEY) of requests to other hosts.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Whether `sent` is this key, in constant time.
    pub(super) fn is(&self, sent: &HeaderValue) -> bool {
        sent.to_str().is_ok_and(|text| self.digest.is_same(&Digest::of(text)))
    }
}

impl PartialEq for ClusterKey {
    fn eq(&self, other: &Self) -> bool {
        self.digest.is_same(&other.digest)
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
        assert_eq!(ClusterKey::new("short"), Err(InvalidKey));
    }
}
