//! Headers that concern one connection only, which a proxy does not pass on (RFC 9110, 7.6.1).

use axum::http::{HeaderMap, HeaderName, header};

/// Those that no `Connection` has to name.
const NAMES: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes the headers that concern one connection only: those that always do, and those that
/// `Connection` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&NAMES) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_headers_that_concern_the_whole_way_remain() {
        let mut headers: HeaderMap = [
            ("connection", "close, X-One"),
            ("connection", " x-two ,, not a name"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic abc"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("content-type", "application/json"),
        ]
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value")))
        .collect();
        headers.append(header::CONNECTION, "x-two".parse().expect("a value"));
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "x-three"]);
    }
}
