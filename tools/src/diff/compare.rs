//! Compares compiled rules, so that layout, order and comments make no difference.
//!
//! A descriptor can take requests from another one without any change of that one, because the most specific match
//! applies. So each descriptor is also looked up on both sides, with entries that it matches.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use rustc_hash::FxHashMap;
use tollgate_counter::{
    algorithm::{Counter, Limit},
    descriptor::{Entry, Key, Secret},
};
use tollgate_rules::{
    DescriptorRef, Domain, GroupedKey, IpNet, KeyedRules, MatchKind, OnDenied, Rule, Rules, address,
};

use crate::diff::{
    difference::{Applied, ChangeKind, Difference, KeyValueChange},
    keys,
};

/// The value of an entry for which a rule file has no value. Nothing names it, so only less specific descriptors match.
const ANY_VALUE: &str = "\u{1f}";

/// The old and the new rules, under one secret: equal keys are one counter.
struct Sides {
    old: KeyedRules,
    new: KeyedRules,
}

/// The descriptors of one path on both sides; at least one is given.
#[derive(Clone, Copy)]
struct DescriptorPair<'r> {
    old: Option<DescriptorRef<'r>>,
    new: Option<DescriptorRef<'r>>,
}

/// The path to a level.
#[derive(Clone, Default)]
struct Path {
    /// Keys and values as written.
    texts: Vec<String>,
    /// The entries that it applies to, in words.
    words: Vec<String>,
    /// Entries that it matches.
    samples: Vec<(String, String)>,
}

/// The rule that applies to sample entries, and the key of its counter unless it is unlimited.
struct Effect<'r> {
    rule: &'r Rule,
    counter: Option<(CounterKey<'r>, &'r Limit)>,
}

/// The key of the counter of sample entries. They are no addresses where a rule names none, so the key does not tell
/// groups apart.
type CounterKey<'r> = (Key, &'r [GroupedKey]);

/// All differences, in the order of the new rules; what they lack comes last in each level.
pub(super) fn differences(old: Rules, new: Rules) -> Vec<Difference> {
    let secret = Secret::random();
    let keyed = |rules: Rules| KeyedRules::new(Some(Arc::new(rules)), secret.clone());
    let sides = Sides { old: keyed(old), new: keyed(new) };
    let mut found = Vec::new();
    let (old, new) = (sides.old.rules(), sides.new.rules());
    let added = new.into_iter().flat_map(Rules::domains);
    let names = added.chain(old.into_iter().flat_map(Rules::domains)).map(|domain| &*domain.name);
    let mut seen = BTreeSet::new();
    for name in names.filter(|name| seen.insert(*name)) {
        sides.domain(name, &mut found);
    }
    found
}

impl Sides {
    fn domain(&self, name: &str, found: &mut Vec<Difference>) {
        let old = self.old.rules().and_then(|rules| rules.domain(name));
        let new = self.new.rules().and_then(|rules| rules.domain(name));
        let change = match (old, new) {
            (None, _) => Some((ChangeKind::Added, Vec::new())),
            (_, None) => Some((ChangeKind::Removed, Vec::new())),
            (Some(old), Some(new)) => on_denied(old, new).map(|key| (ChangeKind::Changed, vec![key])),
        };
        if let Some((change, keys)) = change {
            found.push(Difference { change, domain: name.to_owned(), keys, ..Difference::default() });
        }
        let old: Vec<_> = old.into_iter().flat_map(Domain::descriptors).collect();
        let new: Vec<_> = new.into_iter().flat_map(Domain::descriptors).collect();
        self.level(name, &Path::default(), &old, &new, found);
    }

    fn level(
        &self,
        domain: &str,
        path: &Path,
        old: &[DescriptorRef<'_>],
        new: &[DescriptorRef<'_>],
        found: &mut Vec<Difference>,
    ) {
        let index = |level: &[DescriptorRef<'_>]| -> FxHashMap<String, usize> {
            level.iter().enumerate().map(|(index, one)| (one.node.composite(), index)).collect()
        };
        let old_index = index(old);
        let new_index = index(new);
        found.extend(reordered(domain, path, (old, &old_index), (new, &new_index)));
        let in_new = new.iter().map(|descriptor| DescriptorPair {
            old: old_index.get(&descriptor.node.composite()).map(|index| old[*index]),
            new: Some(*descriptor),
        });
        let gone = old.iter().filter(|descriptor| !new_index.contains_key(&descriptor.node.composite()));
        let gone = gone.map(|descriptor| DescriptorPair { old: Some(*descriptor), new: None });
        let networks = LevelNetworks::new(new.iter().chain(old).copied());
        for pair in in_new.chain(gone) {
            let Some(descriptor) = pair.new.or(pair.old) else { continue };
            let path = path.with(descriptor, &networks);
            found.extend(self.descriptor(domain, &path, pair));
            let (old, new) = (nested(pair.old), nested(pair.new));
            self.level(domain, &path, &old, &new, found);
        }
    }

    fn descriptor(&self, domain: &str, path: &Path, pair: DescriptorPair<'_>) -> Option<Difference> {
        let keys = keys::changes(pair.old, pair.new);
        let (old, new) = (effect(&self.old, domain, path), effect(&self.new, domain, path));
        let has_rule = [pair.old, pair.new].into_iter().flatten().any(|one| one.rule().is_some());
        let change = match (pair.old, pair.new) {
            (Some(_), Some(_)) if keys.is_empty() => return None,
            (Some(_), Some(_)) => ChangeKind::Changed,
            // A descriptor without a rule makes a difference if it hides another one that has a rule.
            (None, _) if has_rule || old.is_some() => ChangeKind::Added,
            (_, None) if has_rule || new.is_some() => ChangeKind::Removed,
            (None, _) | (_, None) => return None,
        };
        let own_limits = own_limits(old.as_ref(), new.as_ref());
        let counters = counters(old.as_ref(), new.as_ref(), &keys);
        let other = |effect: Option<Effect<'_>>, own: Option<DescriptorRef<'_>>| {
            let own = own.and_then(|own| own.rule());
            effect.filter(|effect| own.is_none_or(|own| !std::ptr::eq(own, effect.rule))).map(|effect| {
                Applied {
                    rule: effect.rule.path.to_string(),
                    limit: keys::limit(effect.rule),
                    at: effect.rule.location.to_string(),
                }
            })
        };
        Some(Difference {
            change,
            domain: domain.to_owned(),
            path: path.texts.join(", "),
            applies_to: path.words.join(", then "),
            old_at: pair.old.map(|one| one.node.location.to_string()),
            new_at: pair.new.map(|one| one.node.location.to_string()),
            before: other(old, pair.old),
            after: other(new, pair.new),
            keys,
            counters,
            own_limits,
        })
    }
}

fn nested(descriptor: Option<DescriptorRef<'_>>) -> Vec<DescriptorRef<'_>> {
    descriptor.into_iter().flat_map(|descriptor| descriptor.descriptors()).collect()
}

impl Path {
    /// The path to a descriptor of a level with these networks.
    fn with(&self, descriptor: DescriptorRef<'_>, networks: &LevelNetworks<'_>) -> Self {
        let node = descriptor.node;
        let (key, value) = (&*node.key, &*node.value);
        let written = if value.is_empty() { key.to_owned() } else { format!("{key}={value}") };
        let exact = || (written.clone(), (key.to_owned(), value.to_owned()));
        let (words, sample) = match node.declared_kind {
            MatchKind::Exact => exact(),
            MatchKind::Network => node.network().map_or_else(exact, |network| {
                let words = format!("addresses in {written} that nothing more specific matches");
                (words, (key.to_owned(), networks.sample(key, network).to_string()))
            }),
            MatchKind::KeyOnly => {
                (format!("values of {key} that nothing else matches"), (key.to_owned(), ANY_VALUE.to_owned()))
            }
            MatchKind::Pattern => (
                format!("values that match {written}"),
                (key.replace('*', ANY_VALUE), value.replace('*', ANY_VALUE)),
            ),
        };
        let mut path = self.clone();
        path.texts.push(written);
        path.words.push(words);
        path.samples.push(sample);
        path
    }
}

/// What applies to the sample entries of a path.
fn effect<'r>(rules: &'r KeyedRules, domain: &str, path: &Path) -> Option<Effect<'r>> {
    let entries: Vec<_> = path.samples.iter().map(|(key, value)| Entry::new(key, value)).collect();
    let found = rules.domain(domain)?.find(&entries)?;
    let limit = found.rule.limit();
    let counter = limit.map(|limit| ((found.key(&entries, limit), &*found.rule.options().groups), limit));
    Some(Effect { rule: found.rule, counter })
}

/// What a reload does to keys with limits of their own.
fn own_limits(old: Option<&Effect<'_>>, new: Option<&Effect<'_>>) -> Option<String> {
    let old = old?;
    let own = old.rule.options().own.as_ref()?;
    let is_kept =
        |new: &Effect<'_>| new.counter.map(|(counter, _)| counter) == old.counter.map(|(counter, _)| counter);
    match new {
        Some(new) if is_kept(new) => own.narrowed(new.rule.options().own.as_deref()),
        Some(_) | None => Some(
            "they belong to the counters of before, and are dropped a day after the algorithm or window has \
             changed; `tollgate limits export` them first, and import them afterwards"
                .to_owned(),
        ),
    }
}

/// What a reload does to the counters, as the store does it: limits are replaced, counters stay where they are.
fn counters(
    old: Option<&Effect<'_>>,
    new: Option<&Effect<'_>>,
    keys: &[KeyValueChange],
) -> Option<&'static str> {
    let (old, new) = (old.and_then(|effect| effect.counter), new.and_then(|effect| effect.counter));
    let text = match (old, new) {
        (None, None) => return None,
        (None, Some(_)) => {
            "begin empty, unless a limit of the same algorithm and window has used them recently"
        }
        (Some(_), None) => {
            "are not used any more; they are removed when they are idle, and a limit of the same algorithm and window finds them until then"
        }
        (Some((old, _)), Some((new, _))) if old != new => {
            "begin empty: another algorithm, window, group or sharing is another counter; going back finds the old ones until they are idle"
        }
        (Some((_, old)), Some((_, new))) if old == new && keys.iter().all(|change| change.key != "limit") => {
            "are kept"
        }
        (Some(_), Some((_, new))) => match new.fresh() {
            // A fresh counter has no refusals to remember.
            Counter::Window(_) | Counter::Sliding(_) | Counter::Log(_) | Counter::Penalized(_) => {
                "are kept: what was counted counts against the new limit"
            }
            Counter::Debt(_) | Counter::Step(_) => {
                "are kept: the debt stays as time, so the used part of the limit stays the same fraction"
            }
        },
    };
    Some(text)
}

fn on_denied(old: &Domain, new: &Domain) -> Option<KeyValueChange> {
    let text = |domain: &Domain| match domain.on_denied {
        None => "as the algorithm of each rule says",
        Some(OnDenied::ChargeAll) => "charge_all",
        Some(OnDenied::ChargeNone) => "charge_none",
    };
    let change =
        KeyValueChange { key: "on_denied", old: Some(text(old).to_owned()), new: Some(text(new).to_owned()) };
    (change.old != change.new).then_some(change)
}

type Level<'l, 'r> = (&'l [DescriptorRef<'r>], &'l FxHashMap<String, usize>);

/// Patterns of both sides in another order: of two that match, the one that is declared first applies.
fn reordered(domain: &str, path: &Path, old: Level<'_, '_>, new: Level<'_, '_>) -> Option<Difference> {
    let common = |(level, _): Level<'_, '_>, (_, other): Level<'_, '_>| -> Vec<String> {
        let patterns = level.iter().filter(|one| one.node.declared_kind == MatchKind::Pattern);
        patterns.map(|one| one.node.composite()).filter(|composite| other.contains_key(composite)).collect()
    };
    let (before, after) = (common(old, new), common(new, old));
    let [old, new] = [&before, &after].map(|order| Some(order.join(", ")));
    (before != after).then(|| Difference {
        change: ChangeKind::Reordered,
        domain: domain.to_owned(),
        path: path.texts.join(", "),
        applies_to: "values that match several patterns: the first one applies".to_owned(),
        keys: vec![KeyValueChange { key: "order", old, new }],
        ..Difference::default()
    })
}

/// The networks of a level, and its single addresses as networks, with their keys.
struct LevelNetworks<'r>(
    // In order. A network comes before those that it contains.
    Vec<(&'r str, IpNet)>,
);

impl<'r> LevelNetworks<'r> {
    /// The networks of the descriptors of a level.
    fn new(level: impl Iterator<Item = DescriptorRef<'r>> + Clone) -> Self {
        let networks = level.clone().filter_map(|one| Some((&*one.node.key, one.node.network()?)));
        let mut all: Vec<_> = networks.collect();
        if !all.is_empty() {
            let single = level.filter(|one| one.node.declared_kind == MatchKind::Exact);
            all.extend(
                single.filter_map(|one| Some((&*one.node.key, address(one.node.value.as_bytes())?.into()))),
            );
            all.sort_unstable();
        }
        Self(all)
    }

    /// The first address of `network` that no longer network with this key contains; its first address if they contain
    /// all.
    fn sample(&self, key: &str, network: IpNet) -> IpAddr {
        let after = self.0.partition_point(|one| *one <= (key, network));
        let is_inside = |one: &&(&str, IpNet)| one.0 == key && network.contains(&one.1.addr());
        let mut free = network.addr();
        for (_, inner) in self.0[after..].iter().take_while(is_inside) {
            if inner.addr() > free {
                break;
            }
            match next(inner.broadcast()).filter(|next| network.contains(next)) {
                Some(next) => free = free.max(next),
                None => return network.addr(),
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
