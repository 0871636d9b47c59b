//! Who may ask for what: keys, their owners, and what each owner may do. It keeps no
//! key, only its digest.

use std::fmt;

use axum::http::{HeaderMap, Uri};
use sandglass_http::{Holder, key, require_same_site};
use sandglass_telemetry::metrics::CancelTarget;

use crate::Daemon;
use crate::error::{Code, Error};

pub use sandglass_http::key::{InvalidKey, KEY_MAX_BYTES, KEY_MIN_BYTES};

/// What the owner of a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Look at entities, dispatches, modules and metrics, and read events.
    Read,
    /// Create entities and have them take actions.
    Act,
    /// Cancel and retry dispatches, and cancel and resume sessions.
    Operate,
    /// Put new versions of modules.
    Deploy,
}

impl Permission {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Act, Self::Operate, Self::Deploy];

    /// The name as settings write it.
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
    /// The key `text` of `owner`, who may do everything for every tenant.
    ///
    /// # Errors
    /// The text can't be a key.
    pub fn new(owner: impl Into<String>, text: &str) -> Result<Self, InvalidKey> {
        let digest = key::Digest::of_key(text)?;
        let may = Permission::ALL.to_vec();
        let principal = Principal { owner: owner.into(), tenant: None, may };
        Ok(Self { digest, principal })
    }

    /// Whose it is.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.principal.owner
    }

    /// Whether both have the same text: one of them would never be found.
    #[must_use]
    pub fn is_same_text(&self, other: &Self) -> bool {
        self.digest.is_same(&other.digest)
    }

    /// Only for entities of this tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.principal.tenant = Some(tenant.into());
        self
    }

    /// Only for this.
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

/// Who asks, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) owner: String,
    /// The one tenant whose entities they may see; none for all.
    pub(crate) tenant: Option<String>,
    may: Vec<Permission>,
}

impl Principal {
    /// Whoever reaches a loopback address that needs no key.
    pub(crate) fn local() -> Self {
        let may = Permission::ALL.to_vec();
        Self { owner: "local".to_owned(), tenant: None, may }
    }

    pub(crate) fn require(&self, permission: Permission) -> Result<(), Error> {
        if self.may.contains(&permission) {
            return Ok(());
        }
        let (owner, what) = (&self.owner, permission.as_str());
        Err(Error::new(
            Code::Forbidden,
            format!("the key of `{owner}` may not `{what}`; that takes a key whose `may` lists it"),
        ))
    }

    /// Under which name it holds what clients share: that of its tenant, else of its owner. A key
    /// that may operate on all tenants has the reserve, too.
    pub(crate) fn holder(&self) -> Holder {
        match &self.tenant {
            Some(tenant) => Holder::Client(format!("tenant {tenant}").into()),
            None if self.may.contains(&Permission::Operate) => Holder::Operator,
            None => Holder::Client(format!("owner {}", self.owner).into()),
        }
    }

    /// Whether it may cancel that; where it may not, that is counted.
    pub(crate) fn require_to_cancel(&self, of: CancelTarget, daemon: &Daemon) -> Result<(), Error> {
        let metrics = &daemon.handlers().host().telemetry().metrics;
        self.require(Permission::Operate).inspect_err(|_| metrics.cancel_refused(of))
    }

    /// What concerns every tenant is for those who may see all of them.
    pub(crate) fn require_all_tenants(&self) -> Result<(), Error> {
        match &self.tenant {
            None => Ok(()),
            Some(tenant) => Err(Error::new(
                Code::Forbidden,
                format!("the key of `{}` is for tenant `{tenant}` alone", self.owner),
            )),
        }
    }
}

/// The keys that open the interface; with none, it is open to whoever reaches it.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

impl Keys {
    /// Whether no key is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Who sends a request with these headers.
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
    fn a_key_opens_for_its_owner_alone() {
        let long = "k".repeat(KEY_MIN_BYTES);
        let keys: Keys = [
            Key::new("ann", &long).expect("long enough"),
            Key::new("bob", "bob's-key-is-longer").expect("long enough").may([Permission::Read]),
        ]
        .into_iter()
        .collect();
        let asked =
            |value: &str| keys.admit(&Uri::default(), &headers(&[("authorization", value)]));
        assert_eq!(asked(&format!("Bearer {long}")).expect("a key").owner, "ann");
        let bob = asked("bearer bob's-key-is-longer").expect("a key");
        assert!(bob.require(Permission::Read).is_ok() && bob.require(Permission::Act).is_err());
        for bad in
            ["", "Bearer", "Bearer ", "Basic abc", &long, "Bearer é", &format!("Bearer {long}k")]
        {
            assert!(asked(bad).is_err(), "{bad:?}");
        }
        let twice = format!("Bearer {long}");
        let mut twice_sent = headers(&[("authorization", &twice)]);
        twice_sent.append("authorization", twice.parse().expect("a value"));
        assert!(keys.admit(&Uri::default(), &twice_sent).is_err());
        assert!(keys.admit(&Uri::default(), &HeaderMap::new()).is_err());
    }

    #[test]
    fn keys_that_could_be_guessed_or_not_be_sent_are_none() {
        for bad in
            ["", "short", &"k".repeat(KEY_MAX_BYTES + 1), "sixteen letters\n", "ääääääääääääääää"]
        {
            assert_eq!(Key::new("ann", bad).expect_err("no key"), InvalidKey, "{bad:?}");
        }
        let key = Key::new("ann", "a-secret-of-anns").expect("long enough");
        assert!(!format!("{key:?}").contains("secret"));
    }

    #[test]
    fn without_keys_only_pages_of_this_machine_are_let_in() {
        let keys = Keys::default();
        let admitted = |pairs: &[(&'static str, &str)]| {
            keys.admit(&Uri::from_static("/v1"), &headers(pairs)).map_err(|error| error.code())
        };
        let local = ("host", "localhost:7341");
        assert_eq!(admitted(&[local]).map(|principal| principal.owner), Ok("local".to_owned()));
        assert_eq!(admitted(&[("host", "evil.example")]), Err(Code::CrossSite));
    }
}
