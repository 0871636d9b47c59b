//! The idempotency keys that an entity remembers: enough to recognize a request that is sent again, in
//! constant space.

use std::collections::VecDeque;
use std::sync::Arc;

use sandglass_model::{Idempotency, KeyDigest, RequestDigest, Sequence};
use serde::{Deserialize, Serialize};

/// Idempotency keys that each entity remembers, at 56 bytes each. A request with an older one is a new
/// request.
pub const KEYS_MAX: usize = 64;

/// The last [`KEYS_MAX`] keys, oldest first; shared, because entities are copied with each decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Keys(Arc<VecDeque<Used>>);

/// A key that was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Used {
    key: KeyDigest,
    /// The request that used it.
    pub(crate) request: RequestDigest,
    /// The sequence after the transition of that request.
    pub(crate) sequence: Sequence,
}

impl Keys {
    pub(super) fn push(&mut self, idempotency: &Idempotency, sequence: Sequence) {
        let (key, request) = (idempotency.key.digest(), idempotency.request);
        let keys = Arc::make_mut(&mut self.0);
        if keys.len() >= KEYS_MAX {
            keys.pop_front();
        }
        keys.push_back(Used { key, request, sequence });
    }

    pub(super) fn find(&self, key: KeyDigest) -> Option<&Used> {
        self.0.iter().find(|used| used.key == key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
