//! Permissions: keys, their owners, and what each owner may do. Only digests of keys are kept.

use std::fmt;

use axum::http::{HeaderMap, Uri};
use sandglass_http::{Holder, key, require_same_site};

use crate::cluster::ClusterKey;
use crate::error::{Code, Error};

pub use sandglass_http::key::{InvalidKey, KEY_MAX_BYTES, KEY_MIN_BYTES};

/// What the owner of a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Read entities, dispatches, modules, metrics and events.
    Read,
    /// Create entities, request actions and send signals.
    Act,
    /// Cancel and retry dispatches, and cancel and resume sessions.
    Operate,
    /// Upload new versions of modules.
    Deploy,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Self; 4] = [Self::Read, Self::Act, Self::Operate, Self::Deploy];

    /// The name in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Act => "act",
            Self::Operate => "operate",
            Self::Deploy => "deploy",
        }
    }
}

/// A key and its owner.
#[derive(Clone)]
pub struct Key {
    digest: key::Digest,
    principal: Principal,
}

impl Key {
    /// The key `text` of `owner`, with all permissions for every tenant.
    ///
    /// # Errors
    /// Errors if the text cannot be a key.
    pub fn new(owner: impl Into<String>, text: &str) -> Result<Self, InvalidKey> {
        let digest = key::Digest::of_key(text)?;
        let may = Permission::ALL.to_vec();
        let principal = Principal { owner: owner.into(), tenant: None, may };
        Ok(Self { digest, principal })
    }

    /// The name of the owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.principal.owner
    }

    /// Whether both have the same text, so that one of them would never be found.
    #[must_use]
    pub fn is_same_text(&self, other: &Self) -> bool {
        self.digest.is_same(&other.digest)
    }

    /// Restricts the key to entities of `tenant`.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.principal.tenant = Some(tenant.into());
        self
    }

    /// Restricts the key to these permissions.
    #[must_use]
    pub fn may(mut self, may: impl IntoIterator<Item = Permission>) -> Self {
        self.principal.may = may.into_iter().collect();
        self
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.principal).finish()
    }
}

/// The sender of a request, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) owner: String,
    /// The only tenant whose entities it may see; `None` for all.
    pub(crate) tenant: Option<String>,
    may: Vec<Permission>,
}

impl Principal {
    /// A client of a loopback address that needs no key.
    pub(crate) fn local() -> Self {
        let may = Permission::ALL.to_vec();
        Self { owner: "local".to_owned(), tenant: None, may }
    }

    pub(crate) const fn new(owner: String, tenant: Option<String>, may: Vec<Permission>) -> Self {
        Self { owner, tenant, may }
    }

    /// Another host of the cluster, on its own behalf. It may do nothing to entities.
    pub(crate) fn peer() -> Self {
        Self::new("cluster".to_owned(), None, Vec::new())
    }

    /// Another host of the cluster, which shows what it reads to clients that may read everything.
    pub(crate) fn reading_peer() -> Self {
        Self::new("cluster".to_owned(), None, vec![Permission::Read])
    }

    /// What it may do.
    pub(crate) fn may(&self) -> &[Permission] {
        &self.may
    }

    pub(crate) fn require(&self, permission: Permission) -> Result<(), Error> {
        if self.may.contains(&permission) {
            return Ok(());
        }
        let (owner, what) = (&self.owner, permission.as_str());
        Err(Error::new(
            Code::Forbidden,
            format!("the key of `{owner}` may not `{what}`; use a key whose `may` lists it"),
        ))
    }

    /// Refuses a key of a single tenant: the request concerns all tenants.
    pub(crate) fn require_all_tenants(&self) -> Result<(), Error> {
        match &self.tenant {
            None => Ok(()),
            Some(tenant) => Err(self.other_tenant(tenant)),
        }
    }

    /// The error of a request that concerns more than the tenant of the key.
    pub(crate) fn other_tenant(&self, own: &str) -> Error {
        let owner = &self.owner;
        Error::new(Code::Forbidden, format!("the key of `{owner}` is for tenant `{own}` only"))
    }

    /// The name under which it holds slots that clients share: that of its tenant, or else of its
    /// owner. A key that may operate on all tenants can use the reserve, too.
    pub(crate) fn holder(&self) -> Holder {
        match &self.tenant {
            Some(tenant) => Holder::Client(format!("tenant {tenant}").into()),
            None if self.may.contains(&Permission::Operate) => Holder::Operator,
            None => Holder::Client(format!("owner {}", self.owner).into()),
        }
    }
}

/// The keys of an interface. Without keys, every client that can connect may use it.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

impl Keys {
    /// Whether no key is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The owner of a key that is also `cluster_key`, or one of its two keys.
    #[must_use]
    pub fn owner_of(&self, cluster_key: &ClusterKey) -> Option<&str> {
        let is_same =
            |key: &&Key| cluster_key.digests().iter().any(|digest| digest.is_same(&key.digest));
        self.0.iter().find(is_same).map(Key::owner)
    }

    /// The sender of a request with these headers.
    pub(crate) fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<Principal, Error> {
        if self.is_empty() {
            require_same_site(uri, headers)?;
            return Ok(Principal::local());
        }
        let keys = self.0.iter().map(|key| (&key.digest, &key.principal));
        let owner = key::bearer(headers).and_then(|sent| key::find(sent, keys));
        owner.cloned().ok_or_else(|| {
            Error::new(Code::Unauthorized, "send a key, as `Authorization: Bearer KEY`")
        })
    }
}

impl FromIterator<Key> for Keys {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (axum::http::HeaderName::from_static(name), value.parse().expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_key_is_admitted_as_its_owner_with_its_permissions() {
        let long = "k".repeat(KEY_MIN_BYTES);
        let keys: Keys = [
            Key::new("ann", &long).expect("long enough"),
            Key::new("bob", "bob's-key-is-longer").expect("long enough").may([Permission::Read]),
        ]
        .into_iter()
        .collect();
        let admit =
            |value: &str| keys.admit(&Uri::default(), &headers(&[("authorization", value)]));
        assert_eq!(admit(&format!("Bearer {long}")).expect("a key").owner, "ann");
        let bob = admit("bearer bob's-key-is-longer").expect("a key");
        assert!(bob.require(Permission::Read).is_ok() && bob.require(Permission::Act).is_err());
        for bad in
            ["", "Bearer", "Bearer ", "Basic abc", &long, "Bearer é", &format!("Bearer {long}k")]
        {
            assert!(admit(bad).is_err(), "{bad:?}");
        }
        let twice = format!("Bearer {long}");
        let mut twice_sent = headers(&[("authorization", &twice)]);
        twice_sent.append("authorization", twice.parse().expect("a value"));
        assert!(keys.admit(&Uri::default(), &twice_sent).is_err());
        assert!(keys.admit(&Uri::default(), &HeaderMap::new()).is_err());
    }

    #[test]
    fn keys_that_are_guessable_or_cannot_be_sent_are_refused() {
        for bad in
            ["", "short", &"k".repeat(KEY_MAX_BYTES + 1), "sixteen letters\n", "ääääääääääääääää"]
        {
            assert_eq!(Key::new("ann", bad).expect_err("no key"), InvalidKey, "{bad:?}");
        }
        let key = Key::new("ann", "a-secret-of-anns").expect("long enough");
        assert!(!format!("{key:?}").contains("secret"));
    }

    #[test]
    fn without_keys_only_pages_of_this_machine_are_admitted() {
        let keys = Keys::default();
        let admitted = |pairs: &[(&'static str, &str)]| {
            keys.admit(&Uri::from_static("/v1"), &headers(pairs)).map_err(|error| error.code())
        };
        let local = ("host", "localhost:7341");
        assert_eq!(admitted(&[local]).map(|principal| principal.owner), Ok("local".to_owned()));
        assert_eq!(admitted(&[("host", "evil.example")]), Err(Code::CrossSite));
    }
}
