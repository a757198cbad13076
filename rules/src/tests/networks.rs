//! Networks: `match: cidr`.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use proptest::prelude::*;

use super::{SECRET, keyed, path, problems, rules, with};
use tollgate_counter::descriptor::{Entry, Key};

use crate::{
    compile,
    contents::{Documents, RuleInput},
    diagnostics::{ResourceLocation, RuleOrigin},
    keyed_rules::KeyedRules,
    network::network_of,
    rule::Allowance,
    yaml,
};

const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 1}";

/// A file with these descriptors, the first in line 3, column 5.
pub(super) fn file(descriptors: &[&str]) -> String {
    let items: String =
        descriptors.iter().map(|item| format!("  - {}\n", item.replace("LIMIT", LIMIT))).collect();
    format!("domain: d\ndescriptors:\n{items}")
}

pub(super) fn domain_of(descriptors: &[&str]) -> KeyedRules {
    keyed(&file(descriptors))
}

pub(super) fn key(rules: &KeyedRules, entries: &[(&str, &str)]) -> Key {
    with(rules, entries, |found, entries| {
        let found = found.unwrap();
        let Allowance::Limited(limit) = &found.rule.allowance else { panic!("{}", found.rule.path) };
        let key = found.key(entries, limit);
        let hash = found.key_text(entries).key(&limit.kind().bytes(), &SECRET);
        assert_eq!(key, hash, "the hash of the key text");
        key
    })
}

#[test]
fn longest_network_matches_behind_exact_values_only() {
    let rules = domain_of(&[
        "{key: ip, LIMIT}",
        "{key: ip, value: '*', LIMIT}",
        "{key: ip, value: 10.0.0.0/8, match: cidr, LIMIT}",
        "{key: ip, value: 10.1.0.0/16, match: cidr, LIMIT}",
        "{key: ip, value: 10.1.2.3, LIMIT}",
        "{key: ip, value: '2001:db8::/32', match: cidr, LIMIT}",
        "{key: other, value: 10.1.2.0/24, match: cidr, LIMIT}",
    ]);
    for (value, expected) in [
        ("10.1.2.3", "d.ip_10.1.2.3"),
        ("10.1.2.3:80", "d.ip_10.1.0.0/16"),
        ("10.1.2.4", "d.ip_10.1.0.0/16"),
        ("10.2.0.0", "d.ip_10.0.0.0/8"),
        ("::ffff:10.2.0.0", "d.ip_10.0.0.0/8"),
        ("2001:DB8::1", "d.ip_2001:db8::/32"),
        ("[2001:db8::1]:443", "d.ip_2001:db8::/32"),
        ("11.0.0.0", "d.ip_*"),
        ("10.0.0.0/8", "d.ip_*"),
        ("ten", "d.ip_*"),
    ] {
        assert_eq!(path(&rules, &[("ip", value)]), Some(expected), "{value}");
    }
    assert_eq!(path(&rules, &[("other", "10.1.3.0")]), None);
    assert_eq!(path(&rules, &[("other_10.1.2.0/24", "x")]), None, "a network is no text");
}

#[test]
fn value_that_is_no_address_matches_by_key_alone() {
    let rules = domain_of(&["{key: ip, value: 0.0.0.0/0, match: cidr, LIMIT}", "{key: ip, LIMIT}"]);
    assert_eq!(path(&rules, &[("ip", "0.0.0.0")]), Some("d.ip_0.0.0.0/0"));
    assert_eq!(path(&rules, &[("ip", "unknown")]), Some("d.ip"));
    assert_eq!(path(&rules, &[("ip", "::1")]), Some("d.ip"));
}

#[test]
fn network_that_is_none_is_refused_with_its_place() {
    for (descriptor, problem) in [
        (
            "{key: ip, value: 10.0.0.1/8, match: cidr}",
            "f:3:22: `10.0.0.1/8` has bits set beyond its prefix length; the network is `10.0.0.0/8`",
        ),
        (
            "{key: ip, value: '::/129', match: cidr}",
            "f:3:22: `::/129` has no prefix length from 0 to 128 after the `/`",
        ),
        (
            "{key: ip, value: 10.0.0.0, match: cidr}",
            "f:3:22: `10.0.0.0` has no prefix length; for this address alone it is `10.0.0.0/32`",
        ),
        (
            "{key: ip, value: '', match: cidr}",
            "f:3:33: `match: cidr` needs a `value`: the network, as in `10.0.0.0/8`",
        ),
        (
            "{key: ip, match: cidr, share_threshold: true}",
            "f:3:22: `match: cidr` needs a `value`: the network, as in `10.0.0.0/8`",
        ),
        ("{key: ip, value: [10.0.0.0/8], match: cidr}", "f:3:22: `value` takes text, not a list"),
        (
            "{key: ip, value: 10.0.0.0/8, match: cdir, group: {ipv4: 24}}",
            "f:3:41: `match` cannot be `cdir`; it is one of `cidr`; did you mean `cidr`?",
        ),
        (
            "{key: 'ip*', value: 10.0.0.0/8, match: cidr}",
            "f:3:11: `match: cidr` compares `key` as it is, so it cannot have a `*`",
        ),
        (
            "{key: ip, value: 10.0.0.*/24, match: cidr}",
            "f:3:22: `10.0.0.*/24` is no IPv4 or IPv6 address with a prefix length, as in `10.0.0.0/8` or \
             `2001:db8::/32`",
        ),
    ] {
        assert_eq!(problems(&file(&[descriptor])), problem);
    }
}

#[test]
fn network_as_text_is_a_warning_unless_envoy_sends_it() {
    for (descriptor, warns) in [
        ("{key: ip, value: 10.0.0.0/8, LIMIT}", true),
        ("{key: ip, value: '2001:db8::1/64', LIMIT}", true),
        ("{key: masked_remote_address, value: 10.0.0.0/8, LIMIT}", false),
        ("{key: ip, value: 10.0.0.0, LIMIT}", false),
        ("{key: path, value: /8, LIMIT}", false),
        ("{key: ip, value: 10.0.0.0/8, match: cidr, LIMIT}", false),
    ] {
        let rules = rules(&file(&[descriptor]));
        let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings.iter().any(|warning| warning.contains("add `match: cidr`")),
            warns,
            "{warnings:?}"
        );
        assert_eq!(warnings.len(), usize::from(warns), "{warnings:?}");
    }
}

#[test]
fn equal_network_is_refused_as_an_equal_value() {
    let given = |one: &str, other: &str| problems(&file(&[one, other]));
    let network = "{key: ip, value: 10.0.0.0/8, match: cidr}";
    let expected = "f:4:5: `d.ip_10.0.0.0/8` is already given at f:3:5; keys and values together must differ";
    for other in
        [network, "{key: ip, value: '::ffff:10.0.0.0/104', match: cidr}", "{key: ip, value: 10.0.0.0/8}"]
    {
        assert_eq!(
            (given(network, other), given(other, network)),
            (expected.to_owned(), expected.to_owned())
        );
    }
    assert!(!rules(&file(&[network, "{key: ip2, value: 10.0.0.0/8, match: cidr, LIMIT}"])).is_empty());
}

/// A resource of a control plane with the content of a file of few lines.
pub(super) fn resource(text: &str) -> RuleInput {
    RuleInput::resource(text.as_bytes().to_vec(), |_, bytes| {
        let places =
            (1..=10).map(|line| ResourceLocation { parent: None, text: format!("line {line}").into() });
        let origin = RuleOrigin::Resource { name: "tenant".into(), locations: places.collect() };
        Documents { origin: Arc::new(origin), stream: yaml::load(bytes), unknown: None }
    })
}

#[test]
fn equal_network_of_a_control_plane_is_left_out() {
    let network = "{key: ip, value: '2001:db8::/32', match: cidr, LIMIT}";
    let equal = "{key: ip, value: '2001:0db8::/32', match: cidr, LIMIT}";
    let rules =
        compile(&[resource(&file(&[network, equal, "{key: ip, value: '::/0', match: cidr, LIMIT}"]))]);
    let rules = rules.unwrap();
    let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
    let expected = "resource tenant at line 4: this descriptor is left out: resource tenant has a limit for the same \
                    key and value before it";
    assert_eq!((warnings, rules.conflicts, rules.len()), (vec![expected.to_owned()], 1, 2));
}

#[test]
fn addresses_of_a_network_share_a_counter_with_share_threshold() {
    let rules = domain_of(&[
        "{key: own, value: 10.0.0.0/8, match: cidr, LIMIT}",
        "{key: all, value: 10.0.0.0/8, match: cidr, share_threshold: true, LIMIT}",
        "{key: all, value: 10.1.0.0/16, match: cidr, LIMIT}",
    ]);
    let of = |name, value| key(&rules, &[(name, value)]);
    assert_ne!(of("own", "10.0.0.1"), of("own", "10.0.0.2"));
    assert_eq!(of("all", "10.0.0.1"), of("all", "10.0.0.2"));
    assert_ne!(of("all", "10.0.0.1"), of("all", "10.1.0.1"), "a longer network has its own counters");
}

#[test]
fn open_values_of_networks_and_groups_are_looked_up_each_time() {
    let rules = domain_of(&[
        "{key: route, descriptors: [{key: ip, LIMIT}, {key: ip, value: 10.0.0.0/8, match: cidr, LIMIT}]}",
        "{key: group, group: {ipv4: 24}, LIMIT}",
        "{key: above, group: {ipv4: 24}, descriptors: [{key: path, LIMIT}]}",
    ]);
    let domain = rules.domain("d").unwrap();
    let open = |entries: &[Entry<'_>]| domain.find_open(entries, 1);
    let entry = |key: &'static str, value: &'static str| Entry::new(key, value);
    assert!(open(&[entry("route", "r"), entry("ip", "")]).is_none());
    assert!(open(&[entry("group", "")]).is_none());
    let found = open(&[entry("above", "10.0.0.1"), entry("path", "")]).unwrap();
    assert_eq!(found.key(&["/"]), key(&rules, &[("above", "10.0.0.200"), ("path", "/")]));
}

#[test]
fn network_lookup_cost_does_not_grow_with_their_number() {
    let visits = |number: u32| {
        let network = |n: u32| format!("{}/24", Ipv4Addr::from_bits(0x0a00_0000 + (n << 8)));
        let longer = [
            "{key: ip, value: 10.0.0.0/8, match: cidr, LIMIT}",
            "{key: ip, value: 10.0.9.8/32, match: cidr}",
        ];
        let networks =
            (0..number).map(|n| format!("{{key: ip, value: {}, match: cidr, {LIMIT}}}", network(n)));
        let networks: Vec<_> = networks.collect();
        let all: Vec<_> = networks.iter().map(String::as_str).chain(longer).collect();
        let rules = domain_of(&all);
        let domain = rules.domain("d").unwrap();
        [("10.0.9.8", None), ("10.0.5.1", Some("d.ip_10.0.5.0/24")), ("10.255.0.1", Some("d.ip_10.0.0.0/8"))]
            .map(|(value, expected)| {
                assert_eq!(path(&rules, &[("ip", value)]), expected);
                domain.visits(&[Entry::new("ip", value)])
            })
    };
    let few = visits(10);
    assert_eq!(few, [3, 4, 5], "the level, the key, and each prefix length down to the one that matches");
    assert_eq!(few, visits(30_000));
}

/// Addresses that have many first bits in common.
pub(super) fn near_address() -> impl Strategy<Value = IpAddr> {
    let ipv4 = (0..4_u32, any::<u8>(), 0..32_u32).prop_map(|(high, low, shift)| {
        IpAddr::V4((0x0a00_0000 + (high << 22) + (u32::from(low).rotate_left(shift) & 0x00ff_ffff)).into())
    });
    let ipv6 = (0..4_u128, any::<u8>(), 0..128_u32).prop_map(|(high, low, shift)| {
        IpAddr::V6((0x2001_0db8 << 96 | high << 64 | (u128::from(low).rotate_left(shift) >> 32)).into())
    });
    prop_oneof![ipv4, ipv6]
}

/// An address as requests may spell it.
pub(super) fn spelled(address: IpAddr, spelling: u8) -> String {
    match (address, spelling % 4) {
        (address, 0) => address.to_string(),
        (IpAddr::V4(address), 1) => format!("{address}:4711"),
        (IpAddr::V4(address), _) => format!("::ffff:{address}"),
        (IpAddr::V6(address), 1) => format!("[{address}]:443"),
        (IpAddr::V6(address), 2) => format!("{address}%eth0"),
        (IpAddr::V6(address), _) => address.to_string().to_uppercase(),
    }
}

proptest! {
    #[test]
    fn network_match_agrees_with_search_over_all_networks(
        networks in prop::collection::vec((near_address(), 0..=128_u8), 0..20),
        values in prop::collection::vec((near_address(), any::<u8>()), 1..10),
    ) {
        let mut networks: Vec<_> =
            networks.into_iter().map(|(address, length)| network_of(address, length)).collect();
        networks.sort();
        networks.dedup();
        let items: Vec<_> = networks
            .iter()
            .map(|network| format!("{{key: ip, value: '{network}', match: cidr, {LIMIT}}}"))
            .collect();
        let rules = domain_of(&items.iter().map(String::as_str).collect::<Vec<_>>());
        for (address, spelling) in values {
            let containing = networks.iter().filter(|network| network.contains(&address));
            let longest = containing.max_by_key(|network| network.prefix_len());
            let expected = longest.map(|network| format!("d.ip_{network}"));
            let value = spelled(address, spelling);
            prop_assert_eq!(path(&rules, &[("ip", &value)]), expected.as_deref(), "{}", value);
        }
    }
}
