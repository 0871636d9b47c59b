//! The hosts that an integration may reach, and which one a URL is about.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use reqwest::Url;
use sandglass_source::{printable, shortened};

use super::{HttpError, Request};

/// Most characters of a text that a message repeats: more than most hosts' names have.
const ECHO_MAX_CHARS: usize = 100;

/// The hosts that an integration may reach: none, unless they are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations(BTreeSet<Destination>);

/// One host that may be reached: `NAME`, with all its ports, or `NAME:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    host: String,
    port: Option<u16>,
}

/// A text that names no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no host: write NAME or NAME:PORT ([::1] for an IPv6 address), without a scheme or path"
)]
pub struct InvalidDestination(String);

impl FromStr for Destination {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, InvalidDestination> {
        let invalid = || {
            let shown = shortened(text, ECHO_MAX_CHARS);
            InvalidDestination(printable(&shown).into_owned())
        };
        // A `*` would match nothing, and whoever writes it means something else.
        if text.contains(['/', '@', '?', '#', '\\', '*']) {
            return Err(invalid());
        }
        // The parser that reads guests' URLs also reads this, so that both spell
        // a host alike.
        let url = Url::parse(&format!("sandglass://{text}")).map_err(|_| invalid())?;
        let http = Url::parse(&format!("http://{text}")).map_err(|_| invalid())?;
        match http.host_str() {
            Some(host) if !host.is_empty() => Ok(Self { host: host.to_owned(), port: url.port() }),
            _ => Err(invalid()),
        }
    }
}

/// As manifests spell it.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromIterator<Destination> for Destinations {
    fn from_iter<I: IntoIterator<Item = Destination>>(destinations: I) -> Self {
        Self(destinations.into_iter().collect())
    }
}

impl Destinations {
    /// Each of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Destination> {
        self.0.iter()
    }

    /// These and `others`.
    pub(crate) fn and(mut self, others: impl IntoIterator<Item = Destination>) -> Self {
        self.0.extend(others);
        self
    }

    /// Refuses a request that leads elsewhere: for a client of the embedder's own.
    ///
    /// # Errors
    /// [`HttpError::NotAllowed`].
    pub fn allow(&self, request: &Request) -> Result<(), HttpError> {
        self.check(&request.url)
    }

    /// Refuses a URL that leads elsewhere.
    pub(super) fn check(&self, url: &Url) -> Result<(), HttpError> {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default();
        let allowed = self.0.iter().any(|allowed| {
            allowed.host == host && (allowed.port.is_none() || allowed.port == port)
        });
        if allowed {
            return Ok(());
        }
        Err(HttpError::NotAllowed(match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(destinations: &str, url: &str) -> bool {
        let destinations: Destinations = destinations
            .split_whitespace()
            .map(|text| text.parse().expect("a destination"))
            .collect();
        destinations.check(&Url::parse(url).expect("a URL")).is_ok()
    }

    #[test]
    fn a_host_is_allowed_with_all_its_ports_unless_one_is_named() {
        assert!(allows("api.example", "https://API.example:8443/x"));
        assert!(allows("api.example:443", "https://api.example/"));
        assert!(allows("api.example:80", "http://api.example/"));
        assert!(allows("[::1]:8080", "http://[::1]:8080/"));
        assert!(allows("127.0.0.1", "http://127.1/"));
        assert!(!allows("api.example:443", "http://api.example/"));
        assert!(!allows("api.example", "http://api.example.evil/"));
        assert!(!allows("", "http://api.example/"));
        assert!(!allows("api.example", "http://api.example@evil/"));
    }

    #[test]
    fn a_destination_is_a_host_and_perhaps_a_port() {
        for bad in ["", "http://x", "x/y", "a@b", "x:99999", "a b", "?", "*", "*.x"] {
            assert!(bad.parse::<Destination>().is_err(), "{bad:?}");
        }
    }
}
