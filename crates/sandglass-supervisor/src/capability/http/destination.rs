//! The hosts that an integration may reach, and which URLs they allow.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use sandglass_source::{printable, shortened};
use url::Url;

use super::{HttpError, Request};

/// Most characters of a text that a message quotes: more than most host names have.
const ECHO_MAX_CHARS: usize = 100;

/// The hosts that an integration may reach: none, unless they are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations(BTreeSet<Destination>);

/// One host that may be reached: `NAME` allows https on port 443 and http on port 80, and
/// `NAME:PORT` both on that port. An address, or `localhost`, without a port allows all ports. Scheme
/// and path may be restricted further.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    host: String,
    port: Option<u16>,
    scheme: Option<Scheme>,
    /// Without a trailing slash.
    path: Option<String>,
    is_private: bool,
    /// What it is called in dying spans.
    name: Option<String>,
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// Over TLS.
    Https,
    /// In clear text.
    Http,
}

impl Scheme {
    /// The scheme in URLs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }

    /// Returns the scheme of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Https, Self::Http].into_iter().find(|scheme| scheme.as_str() == name)
    }
}

/// The text does not name a host.
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
        // A `*` matches nothing, and a colon without a port would allow every port. Both are
        // mistakes.
        if text.contains(['/', '@', '?', '#', '\\', '*']) || text.ends_with(':') {
            return Err(invalid());
        }
        // The parser that reads guests' URLs also reads this, so that both spell
        // a host alike.
        let url = Url::parse(&format!("sandglass://{text}")).map_err(|_| invalid())?;
        let http = Url::parse(&format!("http://{text}")).map_err(|_| invalid())?;
        match http.host_str() {
            Some(host) if !host.is_empty() && !host.contains("..") && url.port() != Some(0) => {
                Ok(Self {
                    host: host.to_owned(),
                    port: url.port(),
                    scheme: None,
                    path: None,
                    is_private: false,
                    name: None,
                })
            }
            _ => Err(invalid()),
        }
    }
}

impl Destination {
    /// Allows this scheme alone.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        Self { scheme: Some(scheme), ..self }
    }

    /// Allows this path and what is below it, as `/v1` allows `/v1` and `/v1/users`.
    #[must_use]
    pub fn path(self, path: &str) -> Self {
        Self { path: Some(path.trim_end_matches('/').to_owned()), ..self }
    }

    /// Allows addresses that are not public, such as those of a private network. Without it, a name
    /// that resolves only to such addresses is refused.
    #[must_use]
    pub fn private(self) -> Self {
        Self { is_private: true, ..self }
    }

    /// Calls it `name` in dying spans, which distinguishes the dependencies of a handler.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Whether the host is an address or `localhost`, so that DNS does not decide where requests go.
    fn is_literal(&self) -> bool {
        let address = self.host.trim_start_matches('[').trim_end_matches(']');
        self.host == LOCALHOST || address.parse::<IpAddr>().is_ok()
    }

    /// Whether both have the same host and ports, regardless of their restrictions.
    pub fn is_same_host(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    /// Whether the host and port match, by any scheme and path.
    fn has_host(&self, url: &Url) -> bool {
        let is_port = match self.port {
            Some(_) => url.port_or_known_default() == self.port,
            // A parsed URL has no port if it is the default of its scheme.
            None => self.is_literal() || url.port().is_none(),
        };
        url.host_str() == Some(&self.host) && is_port
    }

    fn allows(&self, url: &Url) -> bool {
        let is_scheme = self.scheme.is_none_or(|scheme| scheme.as_str() == url.scheme());
        let is_path = self.path.as_ref().is_none_or(|path| is_below(url.path(), path));
        self.has_host(url) && is_scheme && is_path
    }
}

/// The one name that is trusted like an address.
const LOCALHOST: &str = "localhost";

/// Whether `path` is `base`, or below it. Paths that a server could interpret differently are not: those
/// with an encoded separator, or with a segment that begins with two dots.
fn is_below(path: &str, base: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let is_plain = !["%2f", "%5c", "%2e"].iter().any(|encoded| lower.contains(encoded))
        && !path.contains('\\')
        && !path.split('/').any(|segment| segment.starts_with(".."));
    let rest = path.strip_prefix(base);
    is_plain && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Formats it as in `hosts` of a manifest, followed by the restrictions of `[[grants.host]]`.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.path.as_ref().map_or(Ok(()), |path| write!(f, "{path}"))?;
        self.scheme.map_or(Ok(()), |scheme| write!(f, " ({} only)", scheme.as_str()))?;
        f.write_str(if self.is_private { " (private)" } else { "" })
    }
}

/// The host of a URL, with its port unless that is the default of the scheme.
pub(super) fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

impl FromIterator<Destination> for Destinations {
    fn from_iter<I: IntoIterator<Item = Destination>>(destinations: I) -> Self {
        Self(destinations.into_iter().collect())
    }
}

impl Destinations {
    /// Iterates over them.
    pub fn iter(&self) -> impl Iterator<Item = &Destination> {
        self.0.iter()
    }

    /// Adds `others`.
    pub fn and(mut self, others: impl IntoIterator<Item = Destination>) -> Self {
        self.0.extend(others);
        self
    }

    /// Checks the destination of a request, for HTTP clients of embedders.
    ///
    /// # Errors
    /// [`HttpError::NotAllowed`].
    pub fn allow(&self, request: &Request) -> Result<(), HttpError> {
        self.check(&request.url)
    }

    /// Checks the destination of a URL.
    pub(super) fn check(&self, url: &Url) -> Result<(), HttpError> {
        if self.0.iter().any(|destination| destination.allows(url)) {
            return Ok(());
        }
        let host = host_and_port(url);
        Err(if self.0.iter().any(|destination| destination.has_host(url)) {
            HttpError::NotThisWay(host)
        } else {
            HttpError::NotAllowed(host)
        })
    }

    /// The name of the destination that `url` belongs to, if it has one.
    pub fn name_of(&self, url: &str) -> Option<&str> {
        let url = Url::parse(url).ok()?;
        let mut named = self.0.iter().filter(|destination| destination.allows(&url));
        named.find_map(|destination| destination.name.as_deref())
    }

    /// Names that may resolve to addresses that are not public.
    pub(super) fn private_names(&self) -> BTreeSet<String> {
        let private = self.0.iter().filter(|one| one.is_private || one.host == LOCALHOST);
        private.map(|destination| destination.host.clone()).collect()
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
    fn a_name_allows_the_default_ports_unless_a_port_is_named() {
        assert!(allows("api.example", "https://API.example/x"));
        assert!(allows("api.example", "http://api.example:80/"));
        assert!(!allows("api.example", "https://api.example:8443/x"));
        assert!(!allows("api.example", "https://api.example:80/x"));
        assert!(!allows("api.example", "http://api.example:443/x"));
        assert!(allows("api.example:443", "https://api.example/"));
        assert!(allows("api.example:8080", "https://api.example:8080/"));
        assert!(allows("api.example:8080", "http://api.example:8080/"));
        assert!(!allows("api.example:443", "http://api.example/"));
        assert!(!allows("api.example", "http://api.example.evil/"));
        assert!(!allows("", "http://api.example/"));
        assert!(!allows("api.example", "http://api.example@evil/"));
    }

    #[test]
    fn an_address_allows_all_ports_unless_a_port_is_named() {
        assert!(allows("127.0.0.1", "http://127.1:8080/"));
        assert!(allows("localhost", "https://localhost:8443/"));
        assert!(allows("[::1]", "http://[::1]:9/"));
        assert!(allows("[::1]:8080", "http://[::1]:8080/"));
        assert!(!allows("[::1]:8080", "http://[::1]:8081/"));
        assert!(!allows("x.localhost", "http://x.localhost:8080/"));
    }

    #[test]
    fn a_scheme_and_a_path_restrict_a_grant() {
        let destination: Destination = "api.example".parse().expect("a destination");
        let allows = |destination: &Destination, url: &str| {
            destination.allows(&Url::parse(url).expect("a URL"))
        };
        let safe = destination.clone().scheme(Scheme::Https);
        assert!(allows(&safe, "https://api.example/"));
        assert!(!allows(&safe, "http://api.example/"));
        for base in ["/v1", "/v1/"] {
            let below = destination.clone().path(base);
            for inside in ["/v1", "/v1/", "/v1/users?x=../..", "/v1/x/../y", "/%76"] {
                let is_inside = inside.starts_with("/v1");
                assert_eq!(allows(&below, &format!("https://api.example{inside}")), is_inside);
            }
            for outside in [
                "/",
                "/v10",
                "/v1/..",
                "/v1/../admin",
                "/v1/%2e%2e/admin",
                "/v1/..;/admin",
                "/v1/..%2fadmin",
                "/v1/x%5c..%5cadmin",
                "/V1",
            ] {
                assert!(!allows(&below, &format!("https://api.example{outside}")), "{outside}");
            }
        }
        let only = Destinations::from_iter([safe.clone().path("/v1")]);
        let refused = |url: &str| only.check(&Url::parse(url).expect("a URL")).expect_err(url);
        for url in ["http://api.example/v1", "https://api.example/v2"] {
            assert!(matches!(refused(url), HttpError::NotThisWay(_)), "{url}");
        }
        for url in ["https://other.example/v1", "https://api.example:8443/v1"] {
            assert!(matches!(refused(url), HttpError::NotAllowed(_)), "{url}");
        }
        assert_eq!(safe.path("/v1").private().to_string(), "api.example/v1 (https only) (private)");
    }

    #[test]
    fn a_request_has_the_name_of_the_destination_that_allows_it() {
        let named = |host: &str| host.parse::<Destination>().expect("a destination");
        let all = Destinations::from_iter([
            named("api.example").path("/search").named("web_search"),
            named("api.example").path("/models").named("provider"),
            named("other.example"),
        ]);
        assert_eq!(all.name_of("https://api.example/search?q=x"), Some("web_search"));
        assert_eq!(all.name_of("https://API.example/models/1"), Some("provider"));
        for unnamed in ["https://other.example/", "https://api.example/x", "not a URL"] {
            assert_eq!(all.name_of(unnamed), None, "{unnamed}");
        }
    }

    #[test]
    fn a_destination_is_a_host_with_an_optional_port() {
        for bad in
            ["", "http://x", "x/y", "a@b", "x:99999", "x:0", "x:", "x..y", "a b", "?", "*", "*.x"]
        {
            assert!(bad.parse::<Destination>().is_err(), "{bad:?}");
        }
    }
}
