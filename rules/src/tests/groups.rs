//! Groups: addresses of one network that are counted as one key.

use std::collections::HashSet;

use proptest::prelude::*;

use super::{
    SECRET,
    networks::{domain_of, file, key, near_address, resource, spelled},
    problems, with,
};
use crate::{
    compile::compile_all,
    contents::Contents,
    diagnostics::Problems,
    group::NetworkGroup,
    keyed_rules::KeyedRules,
    network::{self, address, network_of},
    overlay::Overlay,
    rule_set::Rules,
};

#[test]
fn group_that_is_none_is_refused_with_its_place() {
    for (descriptor, problem) in [
        (
            "{key: ip, group: {ipv4: 33}}",
            "f:3:29: `ipv4` takes a prefix length from 1 to 32, not the number `33`",
        ),
        (
            "{key: ip, group: {ipv6: 0}}",
            "f:3:29: `ipv6` takes a prefix length from 1 to 128, not the number `0`",
        ),
        (
            "{key: ip, group: {ipv6: /64}}",
            "f:3:29: `ipv6` takes a prefix length from 1 to 128, not the text `/64`",
        ),
        (
            "{key: ip, group: {}}",
            "f:3:15: `group` needs `ipv4` or `ipv6`: the prefix length of the networks that are counted as one key",
        ),
        ("{key: ip, group: 24}", "f:3:22: expected a mapping, not the number `24`"),
        ("{key: ip, group: {ipv4: 24, ip6: 64}}", "f:3:33: unknown key `ip6`; did you mean `ipv6`?"),
        (
            "{key: ip, value: 10.0.0.1, group: {ipv4: 24}}",
            "f:3:32: `group` has no effect on a single value; leave `value` out, or give a network with `match: cidr`",
        ),
        (
            "{key: ip, value: '1*', share_threshold: true, group: {ipv4: 24}}",
            "f:3:51: `group` cannot be combined with `share_threshold`, which counts all values as one; remove one of them",
        ),
        ("{key: ip, ipv4: 24}", "f:3:15: `ipv4` does not belong in a descriptor; it belongs in `group`"),
    ] {
        assert_eq!(problems(&file(&[descriptor])), problem);
    }
}

/// Rules of a control plane with an overlay that adds a group to the rules of this path.
fn overlaid(descriptors: &[&str], path: &str) -> Rules {
    let text =
        format!("overlay:\n  - domain: d\n    rules:\n      - {{match: {path}, group: {{ipv6: 64}}}}\n");
    let overlay = Overlay::read("o", text.into_bytes()).unwrap();
    let contents = Contents { sources: vec![resource(&file(descriptors))], problems: Problems::default() };
    compile_all(&contents, Some(&overlay)).unwrap()
}

#[test]
fn overlay_adds_a_group_to_the_last_key_of_its_path() {
    let rules = overlaid(&["{key: route, descriptors: [{key: ip, LIMIT}]}"], "[route, ip]");
    let groups = |rules: &Rules| rules.domain("d").unwrap().rules().next().unwrap().options().groups.clone();
    assert_eq!(groups(&rules).iter().map(ToString::to_string).collect::<Vec<_>>(), ["ip by {ipv6: 64}"]);
    let rules = KeyedRules::new(Some(rules.into()), SECRET);
    let of = |value| key(&rules, &[("route", "2001:db8::1"), ("ip", value)]);
    assert_eq!(of("2001:db8::1"), of("2001:db8::2"));

    let misfit = overlaid(&["{key: ip, value: '::1', LIMIT}"], "[ip]");
    assert_eq!((groups(&misfit).len(), misfit.overlay_misfits), (0, 1));
}

#[test]
fn addresses_of_one_group_have_one_counter() {
    let rules = domain_of(&[
        "{key: ip, group: {ipv4: 24, ipv6: 64}, LIMIT}",
        "{key: wide, group: {ipv4: 16, ipv6: 48}, LIMIT}",
        "{key: single, LIMIT}",
        "{key: net, value: 10.0.0.0/8, match: cidr, group: {ipv4: 16}, LIMIT}",
    ]);
    let of = |name, value| key(&rules, &[(name, value)]);
    let one = of("ip", "203.0.113.7");
    for value in ["203.0.113.0", "203.0.113.255:80", "::ffff:203.0.113.1", "203.0.113.0/24"] {
        assert_eq!(of("ip", value), one, "{value}");
    }
    assert_ne!(of("ip", "203.0.112.7"), one);
    assert_eq!(of("ip", "2001:db8::1"), of("ip", "2001:db8::ffff:1%eth0"));
    assert_ne!(of("ip", "2001:db8::1"), of("ip", "2001:db8:0:1::1"));
    assert_ne!(of("ip", "ann"), of("ip", "bob"), "values that are no addresses stay as they are");
    assert_eq!(of("net", "10.1.2.3"), of("net", "10.1.0.0"));
    assert_ne!(of("net", "10.1.2.3"), of("net", "10.2.2.3"));
    assert_ne!(
        of("single", "10.1.2.3"),
        of("single", "10.1.2.3:80"),
        "without a group a value counts as sent"
    );
}

#[test]
fn another_prefix_length_is_another_counter() {
    let with_length = |length: u8| {
        let rules = domain_of(&[&format!("{{key: ip, group: {{ipv4: {length}}}, LIMIT}}")]);
        key(&rules, &[("ip", "10.0.0.0")])
    };
    let keys: HashSet<_> = (1..=32).map(with_length).collect();
    assert_eq!(keys.len(), 32);
    let without = key(&domain_of(&["{key: ip, LIMIT}"]), &[("ip", "10.0.0.0")]);
    assert_eq!(with_length(32), without, "a network of one address is this address");
}

#[test]
fn group_above_the_limit_groups_its_key_only() {
    let rules = domain_of(&["{key: ip, group: {ipv4: 24}, descriptors: [{key: path, LIMIT}]}"]);
    let of = |ip, path| key(&rules, &[("ip", ip), ("path", path)]);
    assert_eq!(of("10.0.0.1", "10.0.0.1"), of("10.0.0.2", "10.0.0.1"));
    assert_ne!(of("10.0.0.1", "10.0.0.1"), of("10.0.0.1", "10.0.0.2"));
    let groups = rules.rules().unwrap().domain("d").unwrap().rules().next().unwrap().options().groups.clone();
    assert_eq!(groups.iter().map(ToString::to_string).collect::<Vec<_>>(), ["ip by {ipv4: 24}"]);
}

#[test]
fn metric_name_shows_groups_in_place_of_addresses() {
    let rules = domain_of(&[
        "{key: ip, value: 10.0.0.0/8, match: cidr, LIMIT}",
        "{key: value, group: {ipv4: 24}, value_to_metric: true, LIMIT}",
        "{key: detailed, group: {ipv4: 24}, detailed_metric: true, LIMIT}",
    ]);
    for (key, name) in
        [("ip", "d.ip_10.0.0.0/8"), ("value", "d.value_10.0.0.0/24"), ("detailed", "d.detailed_10.0.0.0/24")]
    {
        let found = with(&rules, &[(key, "10.0.0.1")], |found, entries| {
            found.unwrap().metric_name(entries).into_owned()
        });
        assert_eq!(found, name);
    }
}

proptest! {
    #[test]
    fn grouped_value_has_the_key_of_its_network(
        address in near_address(), spelling: u8, ipv4 in 1..=32_u8, ipv6 in 1..=128_u8, first in near_address(),
    ) {
        let grouped = domain_of(&[&format!("{{key: ip, group: {{ipv4: {ipv4}, ipv6: {ipv6}}}, LIMIT}}")]);
        let as_sent = domain_of(&["{key: ip, LIMIT}"]);
        // Fills the cache of the rule.
        key(&grouped, &[("ip", &first.to_string())]);
        let length = NetworkGroup { ipv4, ipv6 }.length(address);
        let network = network_of(address, length);
        let network = if network::is_single(network) { address.to_string() } else { network.to_string() };
        let value = spelled(address, spelling);
        prop_assert_eq!(key(&grouped, &[("ip", &value)]), key(&as_sent, &[("ip", &network)]));
    }

    #[test]
    fn value_that_is_no_address_keeps_its_key_with_a_group(value in "[0-9a-f:.%/ \\[\\]]{0,12}") {
        prop_assume!(address(value.as_bytes()).is_none());
        let [grouped, plain] = ["group: {ipv4: 24, ipv6: 64},", ""].map(|group| {
            domain_of(&[&format!("{{key: ip, {group} LIMIT}}")])
        });
        prop_assert_eq!(key(&grouped, &[("ip", &value)]), key(&plain, &[("ip", &value)]));
    }
}
