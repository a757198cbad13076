//! Addresses that match a network of a level and no longer one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollgate_rules::{DescriptorRef, MatchKind, Network, address};

/// The networks of a level, and its single addresses as networks, with their keys.
pub(super) struct LevelNetworks<'r>(
    // In order. A network comes before those that it contains.
    Vec<(&'r str, Network)>,
);

impl<'r> LevelNetworks<'r> {
    /// The networks of the descriptors of a level.
    pub(super) fn new(level: impl Iterator<Item = DescriptorRef<'r>> + Clone) -> Self {
        let networks = level.clone().filter_map(|one| Some((one.key(), one.network()?)));
        let mut all: Vec<_> = networks.collect();
        if !all.is_empty() {
            let single = level.filter(|one| one.kind() == MatchKind::Exact);
            all.extend(single.filter_map(|one| {
                Some((one.key(), Network::new(address(one.value().as_bytes())?, u8::MAX)))
            }));
            all.sort_unstable();
        }
        Self(all)
    }

    /// The first address of `network` that no longer network with this key contains; its first address if they contain
    /// all.
    pub(super) fn sample(&self, key: &str, network: Network) -> IpAddr {
        let after = self.0.partition_point(|one| *one <= (key, network));
        let is_inside = |one: &&(&str, Network)| one.0 == key && network.contains(one.1.base());
        let mut free = network.base();
        for (_, inner) in self.0[after..].iter().take_while(is_inside) {
            if inner.base() > free {
                break;
            }
            match next(inner.last()).filter(|next| network.contains(*next)) {
                Some(next) => free = free.max(next),
                None => return network.base(),
            }
        }
        free
    }
}

/// The address after this one.
fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            address.to_bits().checked_add(1).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
        }
        IpAddr::V6(address) => {
            address.to_bits().checked_add(1).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_rules::Rules;

    use super::*;

    fn sample(values: &[&str], network: &str) -> String {
        let item = |value: &&str| {
            let by = if value.contains('/') { ", match: cidr" } else { "" };
            format!("{{key: ip, value: '{value}'{by}}}")
        };
        let items: Vec<_> = values.iter().map(item).collect();
        let rules =
            Rules::parse("f", &format!("{{domain: d, descriptors: [{}]}}", items.join(", "))).unwrap();
        let level: Vec<_> = rules.domain("d").unwrap().descriptors().collect();
        LevelNetworks::new(level.iter().copied()).sample("ip", network.parse().unwrap()).to_string()
    }

    #[test]
    fn sample_is_first_address_outside_of_longer_networks() {
        for (values, expected) in [
            (&["10.0.0.0/8"][..], "10.0.0.0"),
            (&["10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24"], "10.1.0.0"),
            (&["10.0.0.0/8", "10.0.1.0/24", "0.0.0.0/0", "11.0.0.0/8"], "10.0.0.0"),
            (&["10.0.0.0/8", "10.0.0.0", "10.0.0.1/32", "10.0.0.2/31"], "10.0.0.4"),
            (&["10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9"], "10.0.0.0"),
        ] {
            assert_eq!(sample(values, "10.0.0.0/8"), expected, "{values:?}");
        }
        assert_eq!(sample(&["::/0", "::/1", "8000::/1"], "::/0"), "::", "all are in longer networks");
    }
}
