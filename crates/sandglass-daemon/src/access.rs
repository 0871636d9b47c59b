//! Who may ask for what: keys, their owners, and what each owner may do. It keeps no
//! key, only its digest.

use std::fmt;
use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};
use sandglass_telemetry::metrics::CancelOf;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

use crate::Daemon;
use crate::error::{Code, Error};

/// Shortest key, in bytes: what can't be guessed over a network in any time.
pub const KEY_MIN_BYTES: usize = 16;
/// Longest key, in bytes: what fits a request head beside all else.
pub const KEY_MAX_BYTES: usize = 1_024;

/// The scheme of keys, and the space behind it.
const SCHEME: &str = "bearer ";

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
    digest: [u8; 32],
    principal: Principal,
}

/// Why a text can't be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has {KEY_MIN_BYTES} to {KEY_MAX_BYTES} printable characters of ASCII, and no space")]
pub struct InvalidKey;

impl Key {
    /// The key `text` of `owner`, who may do everything for every tenant.
    ///
    /// # Errors
    /// The text can't be a key.
    pub fn new(owner: impl Into<String>, text: &str) -> Result<Self, InvalidKey> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !(KEY_MIN_BYTES..=KEY_MAX_BYTES).contains(&text.len()) || !printable {
            return Err(InvalidKey);
        }
        let may = Permission::ALL.to_vec();
        let principal = Principal { owner: owner.into(), tenant: None, may };
        Ok(Self { digest: digest(text), principal })
    }

    /// Whose it is.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.principal.owner
    }

    /// Whether both have the same text: one of them would never be found.
    #[must_use]
    pub fn is_same_text(&self, other: &Self) -> bool {
        self.digest.ct_eq(&other.digest).into()
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

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
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
    fn local() -> Self {
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

    /// Whether it may cancel that; where it may not, that is counted.
    pub(crate) fn require_to_cancel(&self, of: CancelOf, daemon: &Daemon) -> Result<(), Error> {
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
            return same_site(uri, headers).map(|()| Principal::local());
        }
        let mut sent = headers.get_all(header::AUTHORIZATION).iter();
        let one = sent.next().filter(|_| sent.next().is_none());
        let key = one.and_then(|value| value.to_str().ok()).and_then(bearer);
        key.and_then(|key| self.owner_of(key)).ok_or_else(|| {
            Error::new(Code::Unauthorized, "send a key, as `Authorization: Bearer KEY`")
        })
    }

    /// Compares with every key, so that the time tells neither which one fits nor how
    /// much of it.
    fn owner_of(&self, text: &str) -> Option<Principal> {
        let digest = digest(text);
        let mut owner = None;
        for key in &self.0 {
            let same: Choice = key.digest.ct_eq(&digest);
            if bool::from(same) {
                owner = Some(key.principal.clone());
            }
        }
        owner
    }
}

impl FromIterator<Key> for Keys {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(key.trim())
}

/// Refuses what a page of another site has a browser send: to a loopback address that
/// needs no key, everybody's browser has access. A name that was made to mean this
/// address (DNS rebinding) shows in `Host`; a form or script of a page shows in
/// `Origin` and `Sec-Fetch-Site`.
fn same_site(uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error::new(Code::CrossSite, why));
    let text = |name| match headers.get(name) {
        Some(value) => value.to_str().map(Some).map_err(|_| ()),
        None => Ok(None),
    };
    let hosts = headers.get_all(header::HOST).iter().count();
    let (Ok(host), Ok(origin)) = (text(header::HOST), text(header::ORIGIN)) else {
        return refuse("`Host` and `Origin` must be text");
    };
    let Some(host) = host.filter(|_| hosts == 1) else {
        return refuse("send one `Host`, the loopback address that is asked");
    };
    let elsewhere = uri.authority().is_some_and(|authority| !is_loopback(authority.as_str()));
    if elsewhere || !is_loopback(host) {
        return refuse("without keys only `localhost` and loopback addresses are served as `Host`");
    }
    if origin.is_some_and(|origin| origin.strip_prefix("http://") != Some(host)) {
        return refuse("without keys no page of another origin is served");
    }
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return refuse("without keys no page of another site is served");
    }
    Ok(())
}

/// Whether `host`, with or without a port, is this machine by a name that nobody else
/// can give a meaning.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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
    fn without_keys_only_this_machine_is_served_and_no_page_of_others() {
        let keys = Keys::default();
        let admitted = |pairs: &[(&'static str, &str)]| {
            keys.admit(&Uri::from_static("/v1"), &headers(pairs)).is_ok()
        };
        for host in ["localhost", "LOCALHOST:7341", "127.0.0.1:7341", "[::1]:7341", "127.9.9.9"] {
            assert!(admitted(&[("host", host)]), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:7341",
            "localhost.evil.example",
            "10.0.0.1",
            "127.0.0.1.evil",
            "[::1",
        ] {
            assert!(!admitted(&[("host", host)]), "{host}");
        }
        let host = ("host", "localhost:7341");
        assert!(admitted(&[host, ("origin", "http://localhost:7341")]));
        for origin in
            ["null", "http://localhost:3000", "https://localhost:7341", "http://evil.example"]
        {
            assert!(!admitted(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(admitted(&[host, ("sec-fetch-site", "none")]));
        assert!(!admitted(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!admitted(&[]));
        let absolute = Uri::from_static("http://evil.example/v1");
        assert!(keys.admit(&absolute, &headers(&[host])).is_err());
    }
}
