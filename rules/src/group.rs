//! Groups: addresses of one network that are counted as one key.

use std::{borrow::Cow, fmt, net::IpAddr};

use crate::network::{self, network_of};

/// The prefix lengths of the networks that are counted as one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkGroup {
    /// The length for IPv4, from 1 to 32, which counts each address.
    pub ipv4: u8,
    /// The length for IPv6, from 1 to 128, which counts each address.
    pub ipv6: u8,
}

/// The group of a descriptor on the way to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedKey {
    /// The key of the descriptor.
    pub key: String,
    /// The group.
    pub group: NetworkGroup,
}

impl NetworkGroup {
    /// Counts each address.
    pub const EACH: Self = Self { ipv4: 32, ipv6: 128 };

    /// The prefix length for addresses of the family of `address`.
    pub fn length(self, address: IpAddr) -> u8 {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }

    /// The value of the counter's key instead of `value`: the network of its address, or the address alone if a network
    /// has only one. A value that names no address stays as it is.
    pub fn group_value(self, value: &[u8]) -> Cow<'_, [u8]> {
        let Some(address) = network::address(value) else { return Cow::Borrowed(value) };
        let network = network_of(address, self.length(address));
        let counted = if network::is_single(network) { address.to_string() } else { network.to_string() };
        Cow::Owned(counted.into_bytes())
    }
}

/// The prefix lengths as in a rule file, without one that counts each address if the other one does not.
impl fmt::Display for NetworkGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ipv4, ipv6 } = self;
        match (*ipv4 == Self::EACH.ipv4, *ipv6 == Self::EACH.ipv6) {
            (false, false) | (true, true) => write!(f, "{{ipv4: {ipv4}, ipv6: {ipv6}}}"),
            (false, true) => write!(f, "{{ipv4: {ipv4}}}"),
            (true, false) => write!(f, "{{ipv6: {ipv6}}}"),
        }
    }
}

impl fmt::Display for GroupedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.key, self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_counts_the_network_of_an_address() {
        let both = NetworkGroup { ipv4: 24, ipv6: 64 };
        let only_ipv6 = NetworkGroup { ipv6: 64, ..NetworkGroup::EACH };
        for (group, value, counted) in [
            (both, "203.0.113.7", "203.0.113.0/24"),
            (both, "203.0.113.7:4711", "203.0.113.0/24"),
            (both, "::ffff:203.0.113.7", "203.0.113.0/24"),
            (both, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            (both, "fe80::1%eth0", "fe80::/64"),
            (both, "not an address", "not an address"),
            (both, "203.0.113.0/24", "203.0.113.0/24"),
            (only_ipv6, "203.0.113.7", "203.0.113.7"),
            (only_ipv6, "::ffff:203.0.113.7", "203.0.113.7"),
            (only_ipv6, "[2001:db8::1]:443", "2001:db8::/64"),
            (NetworkGroup::EACH, "2001:0DB8::1", "2001:db8::1"),
        ] {
            assert_eq!(*group.group_value(value.as_bytes()), *counted.as_bytes(), "{group} of {value}");
        }
    }

    #[test]
    fn group_is_shown_as_in_a_rule_file() {
        let shown = |ipv4, ipv6| NetworkGroup { ipv4, ipv6 }.to_string();
        let expected = ["{ipv4: 24, ipv6: 64}", "{ipv6: 64}", "{ipv4: 24}", "{ipv4: 32, ipv6: 128}"];
        assert_eq!([shown(24, 64), shown(32, 64), shown(24, 128), shown(32, 128)], expected);
    }
}
