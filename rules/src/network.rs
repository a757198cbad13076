//! Networks: the addresses with a common prefix, and addresses as requests carry them.

use std::net::IpAddr;

use ipnet::IpNet;

/// The bits that an IPv4-mapped IPv6 address has before its IPv4 address.
const MAPPED_BITS: u8 = 96;

/// Why a text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The text is no address, with or without a prefix length.
    #[error("is no IPv4 or IPv6 address with a prefix length, as in `10.0.0.0/8` or `2001:db8::/32`")]
    NotANetwork,
    /// The text is an address without a prefix length; the address alone is this network.
    #[error("has no prefix length; for this address alone it is `{0}`")]
    NoLength(IpNet),
    /// The text has no prefix length up to this one after the `/`.
    #[error("has no prefix length from 0 to {0} after the `/`")]
    Length(u8),
    /// The text is an address with bits set beyond its prefix length; it is in this network.
    #[error("has bits set beyond its prefix length; the network is `{0}`")]
    HostBits(IpNet),
}

/// The network with this prefix length that contains `address`; that of the address alone if it has no more bits.
pub fn network_of(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(address, length).map_or_else(|_| address.into(), |network| network.trunc())
}

/// Whether the network has a single address.
pub(crate) fn is_single(network: IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

/// The network in `ADDRESS/LENGTH`. A network of IPv4-mapped addresses is one of IPv4.
pub(crate) fn parse(text: &str) -> Result<IpNet, NetworkError> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| NetworkError::NotANetwork)?;
    let canonical = address.to_canonical();
    let max = IpNet::from(address).max_prefix_len();
    let length = match length {
        None => return Err(NetworkError::NoLength(canonical.into())),
        Some(length) => number(length).filter(|length| *length <= max).ok_or(NetworkError::Length(max))?,
    };
    let is_mapped = canonical.is_ipv4() && address.is_ipv6();
    let network = match length.checked_sub(MAPPED_BITS) {
        Some(length) if is_mapped => network_of(canonical, length),
        _all_bits => network_of(address, length),
    };
    let has_host_bits = network.addr() != if network.addr().is_ipv4() { canonical } else { address };
    if has_host_bits { Err(NetworkError::HostBits(network)) } else { Ok(network) }
}

/// The address that the value of an entry names; `None` if it names none.
///
/// Brackets around an IPv6 address, a port after the brackets or after an IPv4 address, and the zone index of an IPv6
/// address are left out. An IPv4-mapped IPv6 address is an IPv4 address.
pub fn address(value: &[u8]) -> Option<IpAddr> {
    let value = str::from_utf8(value).ok()?;
    if let Some(bracketed) = value.strip_prefix('[') {
        let (inside, after) = bracketed.split_once(']')?;
        let ends = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return if ends { ipv6(inside) } else { None };
    }
    match value.split_once(':') {
        None => value.parse().ok().map(IpAddr::V4),
        // An IPv6 address has no dot before its first colon.
        Some((before, port)) if before.contains('.') => {
            if is_port(port) {
                before.parse().ok().map(IpAddr::V4)
            } else {
                None
            }
        }
        Some(_) => ipv6(value),
    }
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let bare = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((bare, _zone)) => bare,
        None => text,
    };
    bare.parse().ok().map(|address| IpAddr::V6(address).to_canonical())
}

fn is_port(text: &str) -> bool {
    has_digits_only(text) && text.parse::<u16>().is_ok()
}

fn number(text: &str) -> Option<u8> {
    if has_digits_only(text) { text.parse().ok() } else { None }
}

/// Numbers of the standard library may have a sign.
fn has_digits_only(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<String, String> {
        let network = parse(text);
        network.map(|network| network.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn network_is_shown_in_one_spelling() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.1/32", "192.0.2.1/32"),
            ("2001:0DB8::/032", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(parsed(text), Ok(shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_network_is_refused_with_the_right_one() {
        for (text, problem) in [
            ("10.0.0.1/8", "has bits set beyond its prefix length; the network is `10.0.0.0/8`"),
            ("2001:db8::1/64", "has bits set beyond its prefix length; the network is `2001:db8::/64`"),
            ("::ffff:10.0.0.1/104", "has bits set beyond its prefix length; the network is `10.0.0.0/8`"),
            ("::ffff:10.0.0.0/90", "has bits set beyond its prefix length; the network is `::ffc0:0:0/90`"),
            ("10.0.0.0", "has no prefix length; for this address alone it is `10.0.0.0/32`"),
            ("::1", "has no prefix length; for this address alone it is `::1/128`"),
            ("10.0.0.0/33", "has no prefix length from 0 to 32 after the `/`"),
            ("10.0.0.0/+8", "has no prefix length from 0 to 32 after the `/`"),
            ("10.0.0.0/", "has no prefix length from 0 to 32 after the `/`"),
            ("::/129", "has no prefix length from 0 to 128 after the `/`"),
        ] {
            assert_eq!(parsed(text), Err(problem.to_owned()), "{text}");
        }
        for text in ["", "/8", "10/8", "10.0.0.0.0/8", "fe80::1%1/64", "010.0.0.0/8", "10.0.0.*/24"] {
            assert_eq!(parse(text), Err(NetworkError::NotANetwork), "{text}");
        }
    }

    #[test]
    fn address_of_value_leaves_out_port_brackets_and_zone() {
        for (value, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:4711", "192.0.2.1"),
            ("2001:DB8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%25eth0]:80", "fe80::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("[::ffff:c000:201]:1", "192.0.2.1"),
        ] {
            assert_eq!(
                address(value.as_bytes()).map(|address| address.to_string()),
                Some(expected.to_owned()),
                "{value}"
            );
        }
        for value in [
            "",
            "x",
            "10.0.0",
            "10.0.0.0/8",
            "010.0.0.1",
            " 10.0.0.1",
            "10.0.0.1, 10.0.0.2",
            "10.0.0.1:",
            "10.0.0.1:65536",
            "10.0.0.1:+1",
            "[10.0.0.1]",
            "[::1",
            "[::1]x",
            "[::1]:",
            "fe80::1%",
            "::1]",
            "10.0.0.1%eth0",
            "1:2",
            "_hidden",
            "unknown",
        ] {
            assert_eq!(address(value.as_bytes()), None, "{value}");
        }
    }

    fn any_address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
            any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()))
        ]
    }

    proptest! {
        #[test]
        fn network_contains_what_has_its_first_bits(one in any_address(), other in any_address(), length in 0..=128_u8) {
            let one = one.to_canonical();
            let network = network_of(one, length);
            let first_bits = |address: IpAddr| {
                let text: String = match address {
                    IpAddr::V4(address) => format!("4{:032b}", address.to_bits()),
                    IpAddr::V6(address) => format!("6{:0128b}", address.to_bits()),
                };
                text.chars().take(1 + usize::from(network.prefix_len())).collect::<String>()
            };
            prop_assert_eq!(network.contains(&other), first_bits(one) == first_bits(other));
            prop_assert!(network.contains(&one) && network.contains(&network.addr()) && network.contains(&network.broadcast()));
            prop_assert_eq!(parse(&network.to_string()), Ok(network));
        }

        #[test]
        fn address_of_any_text_does_not_panic(text in ".{0,20}") {
            address(text.as_bytes());
            let _ = parse(&text);
        }
    }
}
