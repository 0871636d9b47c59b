//! Which addresses and host names mean this machine, whatever DNS says.

use std::net::IpAddr;

/// Whether `address` is a loopback address, also as IPv4 mapped to IPv6 (`::ffff:127.0.0.1`).
#[must_use]
pub fn is_loopback_address(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Whether `host`, without a port, is `localhost` or a loopback address. An IPv6 address may have
/// brackets.
#[must_use]
pub fn is_loopback_host(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(is_loopback_address)
}
