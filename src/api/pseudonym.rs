//! Values of recordings in which hashes stand for what no rule names, so that they match the same rules.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use tollgate_counter::descriptor::Entry;
use tollgate_rules::{EntryMatch, MatchKind, Network, NetworkGroup, address};

/// The value that stands for that of `entry`, which matches in this way. `hash` hashes values.
pub(super) fn pseudonym<'r>(
    entry: Entry<'r>,
    matched: Option<EntryMatch<'_>>,
    hash: impl Fn(&[u8]) -> u64,
) -> Cow<'r, [u8]> {
    let as_text = |value: &[u8]| format!("{:016x}", hash(value));
    let Some(EntryMatch { kind, value, network, group }) = matched else {
        return as_text(entry.value).into_bytes().into();
    };
    match kind {
        MatchKind::Exact => entry.value.into(),
        MatchKind::Pattern => {
            // Values that are counted as one stay one.
            let counted = group.map_or(Cow::Borrowed(entry.value), |group| group.group_value(entry.value));
            let hashed = as_text(&counted);
            let shown = if value.contains('*') { value.replace('*', &hashed) } else { hashed };
            shown.into_bytes().into()
        }
        MatchKind::Network | MatchKind::KeyOnly => match address(entry.value) {
            Some(address) if network.is_some() || group.is_some() => {
                other_address(address, network.map_or(0, Network::length), hash)
                    .to_string()
                    .into_bytes()
                    .into()
            }
            Some(_) | None => as_text(entry.value).into_bytes().into(),
        },
    }
}

/// An address with the first `kept` bits of `address`. Each further bit is flipped or not by the hash of the bits before
/// it. So two addresses have as many first bits in common as before, and groups of any length stay groups.
fn other_address(address: IpAddr, kept: u8, hash: impl Fn(&[u8]) -> u64) -> IpAddr {
    let bits = NetworkGroup::EACH.length(address);
    let flips = (kept..bits).fold(0_u128, |flips, length| {
        let flip = hash(Network::new(address, length).to_string().as_bytes()) & 1;
        flips | u128::from(flip) << (bits - 1 - length)
    });
    match address {
        // The flips of an IPv4 address are in the lower 32 bits.
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() ^ flips as u32)),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() ^ flips)),
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use proptest::prelude::*;

    use super::*;

    fn hash(value: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        hasher.finish()
    }

    fn shown(value: &str, matched: EntryMatch<'_>) -> String {
        String::from_utf8(pseudonym(Entry::new("ip", value), Some(matched), hash).into_owned()).unwrap()
    }

    #[test]
    fn address_of_network_is_shown_as_another_one_of_it() {
        let network: Network = "10.0.0.0/8".parse().unwrap();
        let matched =
            EntryMatch { kind: MatchKind::Network, value: "10.0.0.0/8", network: Some(network), group: None };
        let other = shown("10.1.2.3:4711", matched);
        assert!(other != "10.1.2.3" && network.contains(other.parse().unwrap()), "{other}");
    }

    #[test]
    fn value_without_network_or_group_is_shown_as_text() {
        let matched = EntryMatch { kind: MatchKind::KeyOnly, value: "", network: None, group: None };
        assert_eq!(shown("10.1.2.3", matched), format!("{:016x}", hash(b"10.1.2.3")));
        let group = Some(NetworkGroup { ipv4: 24, ipv6: 64 });
        let no_address = shown("ann", EntryMatch { group, ..matched });
        assert_eq!(no_address, format!("{:016x}", hash(b"ann")));
        let pattern = EntryMatch { kind: MatchKind::Pattern, value: "10.*", network: None, group };
        assert_eq!(shown("10.1.2.3", pattern), shown("10.1.2.4", pattern), "both are counted as 10.1.2.0/24");
    }

    proptest! {
        #[test]
        fn groups_of_shown_addresses_are_those_of_the_addresses(one: u128, flipped in 0..128_u32, ipv6 in 1..=128_u8) {
            let matched = EntryMatch {
                kind: MatchKind::KeyOnly, value: "", network: None, group: Some(NetworkGroup { ipv4: 24, ipv6 }),
            };
            let other = one ^ (1 << flipped);
            let [one, other] = [one, other].map(|bits| IpAddr::V6(bits.into()));
            prop_assume!(one.to_canonical() == one && other.to_canonical() == other);
            let [shown_one, shown_other] = [one, other].map(|address| shown(&address.to_string(), matched));
            let are_one = |one: &str, other: &str| {
                let group = NetworkGroup { ipv4: 24, ipv6 };
                group.group_value(one.as_bytes()) == group.group_value(other.as_bytes())
            };
            prop_assert_eq!(are_one(&shown_one, &shown_other), are_one(&one.to_string(), &other.to_string()));
        }
    }
}
