//! Rules under a secret: the way from a descriptor to its rule and to the key of its counter.
//!
//! Most descriptors use exactly the keys that the rules name: the named value, any value where the rule has none, or
//! a value that fits a pattern. The part of the counter key that all such descriptors of a rule share is hashed once.

use std::{
    borrow::Cow,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::Limit,
    descriptor::{self, Entry, Key, KeyText, PrefixHash, Secret},
    printable,
};

use crate::{
    descriptor_ref::DescriptorRef,
    group::NetworkGroup,
    prefix_tree::{self, MatchKind, MatchedNode, Steps},
    rule::{Allowance, Rule},
    rule_set::{Domain, Rules},
};

/// A set of rules and the secret under which the keys of its counters are hashed. Neither changes: a reload or another
/// secret makes a new value.
#[derive(Debug)]
pub struct KeyedRules {
    // `None` until the first valid set.
    rules: Option<Arc<Rules>>,
    secret: Secret,
    // One for each rule, set by the first descriptor that matches it by literal keys.
    prefixes: Box<[OnceLock<Box<KeyPrefix>>]>,
}

/// A domain of [`KeyedRules`].
#[derive(Clone, Copy, Debug)]
pub struct KeyedDomain<'r> {
    pub(super) domain: &'r Domain,
    keyed: &'r KeyedRules,
}

/// The rule for a descriptor. Small, because it is moved several times; the path to the rule is rarely needed, and
/// walked again.
#[derive(Clone, Copy, Debug)]
pub struct Match<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The domain of the rule.
    pub domain: KeyedDomain<'r>,
    // Whether a node of the path has `value_to_metric`.
    has_value_to_metric: bool,
    // The cached prefix of the rule; `None` unless every entry has the literal key of its node and matches in the
    // declared way.
    prefix: Option<&'r OnceLock<Box<KeyPrefix>>>,
}

/// Where a match is among the rules in which it was found.
#[derive(Clone, Copy, Debug)]
pub struct MatchPosition {
    // The indices of the domain, and of the rule in it.
    domain: usize,
    rule: usize,
    has_value_to_metric: bool,
}

/// The rule and the key of a descriptor whose last values are left open.
#[derive(Clone, Copy, Debug)]
pub struct OpenMatch {
    /// The rule.
    pub position: MatchPosition,
    key: OpenKey,
}

#[derive(Clone, Copy, Debug)]
enum OpenKey {
    /// No value is open.
    Closed(Key),
    /// The hash before the open values.
    Prefix(PrefixHash),
}

/// The part of the counter key that all descriptors of one rule share.
#[derive(Debug)]
struct KeyPrefix {
    hash: PrefixHash,
    // The indices of the entries whose values are not part of `hash`.
    unhashed_entries: SmallVec<[usize; 4]>,
    // The groups of these entries; `None` if no node of the path has one.
    groups: Option<Box<[Option<NetworkGroup>]>>,
}

impl KeyedRules {
    /// Rules whose keys are hashed with `secret`.
    pub fn new(rules: Option<Arc<Rules>>, secret: Secret) -> Self {
        let number = rules.as_ref().map_or(0, |rules| rules.len());
        Self { rules, secret, prefixes: (0..number).map(|_| OnceLock::new()).collect() }
    }

    /// The rules with keys that are hashed with `secret`.
    pub(super) fn with_secret(&self, secret: Secret) -> Self {
        Self::new(self.rules.clone(), secret)
    }

    /// `rules` under the secret of these rules.
    pub(super) fn with_rules(&self, rules: Arc<Rules>) -> Self {
        Self::new(Some(rules), self.secret.clone())
    }

    /// The rules; `None` until the first valid set.
    pub fn rules(&self) -> Option<&Rules> {
        self.rules.as_deref()
    }

    /// The secret.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The match at a position, which was found in these rules.
    #[inline(always)]
    pub fn match_at(&self, position: MatchPosition) -> Option<Match<'_>> {
        let MatchPosition { domain, rule, has_value_to_metric } = position;
        let domain = self.rules.as_ref()?.domains.get(domain)?;
        let rule = domain.rules.get(rule)?;
        Some(Match { rule, domain: KeyedDomain { domain, keyed: self }, has_value_to_metric, prefix: None })
    }

    /// The domain with this name.
    #[inline]
    pub fn domain(&self, name: &str) -> Option<KeyedDomain<'_>> {
        let domain = self.rules.as_ref()?.domain(name)?;
        Some(KeyedDomain { domain, keyed: self })
    }
}

impl Deref for KeyedDomain<'_> {
    type Target = Domain;

    fn deref(&self) -> &Domain {
        self.domain
    }
}

impl<'r> KeyedDomain<'r> {
    /// The rule for a descriptor.
    // `inline(always)`: a match is too large to move.
    #[inline(always)]
    pub fn find(self, entries: &[Entry<'_>]) -> Option<Match<'r>> {
        let mut length = 0;
        let mut last = None;
        let mut has_value_to_metric = false;
        let visit = |step: MatchedNode<'r>| {
            length += 1;
            last = Some(step.node);
            has_value_to_metric |= step.node.value_to_metric;
        };
        let is_literal = self.domain.root.walk(entries, visit, &mut 0);
        if length < entries.len() {
            return None;
        }
        let rule = last?.rule?;
        let prefix = is_literal.then(|| &self.keyed.prefixes[self.domain.rules_before + rule]);
        Some(Match { rule: &self.domain.rules[rule], domain: self, has_value_to_metric, prefix })
    }

    /// The rule for a descriptor of which the values of the last `open` entries are not known yet. `None` if the values
    /// may lead to another rule or are part of the name of its metrics, and if the rule has not exactly one limit.
    pub fn find_open(self, entries: &[Entry<'_>], open: usize) -> Option<OpenMatch> {
        let found = self.find(entries)?;
        let steps = found.steps(entries);
        let known = entries.len().checked_sub(open)?;
        for (index, entry) in entries.iter().enumerate().skip(known) {
            let level =
                index.checked_sub(1).map_or(&self.domain.root, |before| steps[before].node.children());
            level.for_any_value(entry.key)?;
        }
        let Allowance::Limited(limit) = &found.rule.allowance else { return None };
        if found.rule.options().candidate.is_some() || found.rule.detailed_metric || found.has_value_to_metric
        {
            return None;
        }
        let key = if open == 0 {
            OpenKey::Closed(found.hash(found.key_text(entries), limit))
        } else {
            let mut hash = found.key_text(entries).prefix_hash(&limit.kind().bytes(), &self.keyed.secret);
            let sent = steps.iter().zip(entries).take(known).filter(|(step, _)| !step.is_shared());
            sent.for_each(|(step, entry)| hash.push(&step.grouped_value(*entry)));
            OpenKey::Prefix(hash)
        };
        Some(OpenMatch { position: found.position()?, key })
    }

    /// What each entry matches on the way to a rule. Ends before the first entry without a match.
    pub fn matches(self, entries: &[Entry<'_>]) -> Vec<DescriptorRef<'r>> {
        let steps = self.domain.root.steps(entries);
        let matched = |step: &MatchedNode<'r>| DescriptorRef::new(self.domain, step.node, Some(step.kind));
        steps.iter().map(matched).collect()
    }

    /// The key of the counter of `limit` for these entries, without a rule.
    pub fn key_as_sent(self, entries: &[Entry<'_>], limit: &Limit) -> Key {
        let mut text = KeyText::new(&self.domain.name);
        for entry in entries {
            text.entry(*entry);
        }
        text.key(&limit.kind().bytes(), &self.keyed.secret)
    }
}

impl OpenMatch {
    /// The key of the counter for these values, one for each open entry.
    #[inline(always)]
    pub fn key(&self, values: &[&str]) -> Key {
        match &self.key {
            OpenKey::Closed(key) => *key,
            OpenKey::Prefix(hash) => hash.key(values.iter().map(|value| value.as_bytes())),
        }
    }
}

/// Methods of a match. `entries` are always those that the match was found for.
impl<'r> Match<'r> {
    /// Where the match is among its rules.
    pub fn position(&self) -> Option<MatchPosition> {
        let KeyedDomain { domain, keyed } = self.domain;
        let rule = domain.rules.element_offset(self.rule)?;
        let domain = keyed.rules.as_ref()?.domains.element_offset(domain)?;
        Some(MatchPosition { domain, rule, has_value_to_metric: self.has_value_to_metric })
    }

    /// The key of the counter of `limit`, which is the limit of the rule.
    #[inline(always)]
    pub fn key(&self, entries: &[Entry<'_>], limit: &Limit) -> Key {
        match self.prefix {
            Some(prefix) => {
                prefix.get_or_init(|| Box::new(KeyPrefix::new(self, entries, limit))).key(entries)
            }
            None => self.hash(self.key_text(entries), limit),
        }
    }

    /// The key of the counter of `limit`, whose kind may be another than that of the rule.
    pub fn key_of_kind(&self, entries: &[Entry<'_>], limit: &Limit) -> Key {
        self.hash(self.key_text(entries), limit)
    }

    /// The key of the counter of `candidate`, which is the candidate of the rule.
    pub fn candidate_key(&self, entries: &[Entry<'_>], candidate: &Limit) -> Key {
        self.hash(self.key_text(entries).for_candidate(), candidate)
    }

    #[cold]
    fn hash(&self, text: KeyText<'_>, limit: &Limit) -> Key {
        text.key(&limit.kind().bytes(), &self.domain.keyed.secret)
    }

    /// The text of the counter's key: the entries as sent or with their groups, or the pattern or network if all values
    /// that match it share a counter.
    pub(super) fn key_text<'a>(&self, entries: &[Entry<'a>]) -> KeyText<'a> {
        let mut text = KeyText::new(&self.domain.name);
        for (step, entry) in self.steps(entries).iter().zip(entries) {
            if step.is_shared() {
                text.pattern(Entry::new(&*step.node.key, &*step.node.value));
            } else {
                text.grouped_entry(entry.key, step.grouped_value(*entry));
            }
        }
        text
    }

    /// The text of the descriptor by which its counter is known: with groups in place of addresses, and with the pattern
    /// or network if all values that match it share a counter.
    pub fn counter_text(&self, entries: &[Entry<'_>]) -> String {
        let steps = self.steps(entries);
        let named = steps.iter().zip(entries).map(|(step, entry)| match step.is_shared() {
            true => (Cow::Borrowed(step.node.key.as_bytes()), Cow::Borrowed(step.node.value.as_bytes())),
            false => (Cow::Borrowed(entry.key), step.grouped_value(*entry)),
        });
        descriptor::format(named)
    }

    /// The path to the rule: one step for each entry.
    fn steps(&self, entries: &[Entry<'_>]) -> Steps<'r> {
        self.domain.domain.root.steps(entries)
    }

    /// The rule's name in metrics: the path, with the values that `detailed_metric` and `value_to_metric` add.
    #[inline]
    pub fn metric_name(&self, entries: &[Entry<'_>]) -> Cow<'r, str> {
        if !self.rule.detailed_metric && !self.has_value_to_metric {
            return Cow::Borrowed(&self.rule.path);
        }
        Cow::Owned(self.name_with_values(entries))
    }

    #[cold]
    fn name_with_values(&self, entries: &[Entry<'_>]) -> String {
        let detailed = self.rule.detailed_metric;
        let steps = self.steps(entries);
        let any_shared = steps.iter().any(|step| step.is_shared());
        let value = |step: &MatchedNode<'_>, entry: &Entry<'_>| {
            descriptor::escaped(&step.grouped_value(*entry)).into_owned()
        };
        let mut name = self.domain.name.to_string();
        for (step, entry) in steps.iter().zip(entries) {
            name.push('.');
            if step.is_shared() || !(detailed || step.node.value_to_metric || step.kind == MatchKind::Exact) {
                name.push_str(&step.node.composite());
            } else if detailed && !any_shared {
                name.extend([&*descriptor::escaped(entry.key), "_", &*value(step, entry)]);
            } else {
                name.push_str(&prefix_tree::composite(&descriptor::escaped(entry.key), &value(step, entry)));
            }
        }
        // Escaped here and not on the page of metrics, so that two spellings are one series there and not a duplicate.
        if name.contains(printable::is_hidden) { printable::escaped(&name) } else { name }
    }
}

impl KeyPrefix {
    /// The prefix for all descriptors that reach the rule in the same way as `entries`.
    #[cold]
    fn new(found: &Match<'_>, entries: &[Entry<'_>], limit: &Limit) -> Self {
        let mut hash = found.key_text(entries).prefix_hash(&limit.kind().bytes(), &found.domain.keyed.secret);
        let steps = found.steps(entries);
        let sent = steps.iter().enumerate().filter(|(_, step)| !step.is_shared());
        let mut unhashed_entries: SmallVec<[usize; 4]> = sent.map(|(entry, _)| entry).collect();
        let is_known = |entry: &&usize| steps[**entry].kind == MatchKind::Exact;
        let known = unhashed_entries.iter().take_while(is_known).count();
        // The last value is hashed together with the end of the key.
        for entry in unhashed_entries.drain(..known.min(unhashed_entries.len().saturating_sub(1))) {
            hash.push(entries[entry].value);
        }
        let groups: Box<[_]> = unhashed_entries.iter().map(|entry| steps[*entry].node.group).collect();
        let groups = groups.iter().any(Option::is_some).then_some(groups);
        Self { hash, unhashed_entries, groups }
    }

    #[inline(always)]
    fn key(&self, entries: &[Entry<'_>]) -> Key {
        match &self.groups {
            None => self.hash.key(self.unhashed_entries.iter().map(|entry| entries[*entry].value)),
            Some(groups) => self.key_of_groups(groups, entries),
        }
    }

    #[inline(never)]
    fn key_of_groups(&self, groups: &[Option<NetworkGroup>], entries: &[Entry<'_>]) -> Key {
        let sent = self.unhashed_entries.iter().map(|entry| entries[*entry].value);
        let counted = sent
            .zip(groups)
            .map(|(value, group)| group.map_or(Cow::Borrowed(value), |group| group.group_value(value)));
        let counted: SmallVec<[Cow<'_, [u8]>; 4]> = counted.collect();
        self.hash.key(counted.iter().map(|value| &**value))
    }
}
