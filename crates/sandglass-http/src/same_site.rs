//! Protects an interface without keys from requests of pages of other sites.

use axum::http::{HeaderMap, Uri, header};

use crate::loopback::is_loopback_host;

/// A page of another site may have sent the request: 403, with the indication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CrossSite(&'static str);

/// Refuses a request that a page of another site makes a browser send: a loopback address without keys
/// is reachable from every page in a local browser. A name that was made to resolve to this address (DNS
/// rebinding) is visible in `Host`; forms and scripts are visible in `Origin` and `Sec-Fetch-Site`.
///
/// # Errors
/// Errors if the request comes from another site, or its headers do not show where it comes from.
pub fn require_same_site(uri: &Uri, headers: &HeaderMap) -> Result<(), CrossSite> {
    let refuse = |why| Err(CrossSite(why));
    let text = |name| match headers.get(name) {
        Some(value) => value.to_str().map(Some).map_err(|_| ()),
        None => Ok(None),
    };
    let hosts = headers.get_all(header::HOST).iter().count();
    let (Ok(host), Ok(origin)) = (text(header::HOST), text(header::ORIGIN)) else {
        return refuse("`Host` and `Origin` must be text");
    };
    let Some(host) = host.filter(|_| hosts == 1) else {
        return refuse("send exactly one `Host`, with the loopback address");
    };
    let is_elsewhere = uri.authority().is_some_and(|authority| !is_loopback(authority.as_str()));
    if is_elsewhere || !is_loopback(host) {
        return refuse("without keys, `Host` must be `localhost` or a loopback address");
    }
    let is_own = |origin: &str| {
        let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        site == Some(host)
    };
    if origin.is_some_and(|origin| !is_own(origin)) {
        return refuse("without keys, pages of other origins are refused");
    }
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return refuse("without keys, pages of other sites are refused");
    }
    Ok(())
}

/// Whether `host`, with or without a port, is this machine.
fn is_loopback(host: &str) -> bool {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            is_loopback_host(name)
        }
        _ => is_loopback_host(host),
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
    fn only_pages_of_this_machine_are_served() {
        let admitted = |pairs: &[(&'static str, &str)]| {
            require_same_site(&Uri::from_static("/v1"), &headers(pairs)).is_ok()
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
        for origin in ["http://localhost:7341", "https://localhost:7341"] {
            assert!(admitted(&[host, ("origin", origin)]), "{origin}");
        }
        for origin in
            ["null", "http://localhost:3000", "https://localhost:3000", "http://evil.example"]
        {
            assert!(!admitted(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(admitted(&[host, ("sec-fetch-site", "none")]));
        assert!(!admitted(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!admitted(&[]));
        let absolute = Uri::from_static("http://evil.example/v1");
        assert!(require_same_site(&absolute, &headers(&[host])).is_err());
    }
}
