//! The addresses to which a name may resolve: those of the public internet. The owner of a name decides
//! what it resolves to, so other addresses would open the networks of the host to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The metadata service of a cloud that gives it a public address.
const METADATA: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Whether `address` is one of the public internet: globally reachable by the registries of
/// special-purpose addresses (RFC 6890, and IANA's registries for IPv4 and IPv6), no multicast
/// address, and no known metadata service. Addresses that embed an IPv4 address are judged by
/// that one.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        // "This network", shared address space, protocol assignments, benchmarks, 6to4 relays,
        // and what is reserved, with the broadcast address.
        || a == 0
        || (a == 100 && b & 0xc0 == 64)
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && b & 0xfe == 18)
        || a >= 240;
    !is_special && address != METADATA
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // IPv4-mapped, and the well-known prefix of NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            embedded(high, low)
        }
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => embedded(high, low),
        // Teredo, benchmarks, ORCHID and other protocol assignments; documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        // Global unicast (RFC 4291); everything else is local, multicast or not assigned.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        for public in ["1.1.1.1", "93.184.216.34", "192.0.1.1", "2606:4700::1111", "2a00::1"] {
            assert!(is_public(public.parse().expect("an address")), "{public}");
        }
        for public in ["::ffff:1.1.1.1", "64:ff9b::808:808", "2002:808:808::1"] {
            assert!(is_public(public.parse().expect("an address")), "{public}");
        }
        for other in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "2002:a00:1::",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(other.parse().expect("an address")), "{other}");
        }
    }
}
