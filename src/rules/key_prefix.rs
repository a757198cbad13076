//! Cached key prefixes: the fast path from a descriptor to the key of its counter.
//!
//! Most descriptors use exactly the keys that the rules name: the named value, any value where the rule has none, or
//! a value that fits a pattern. The part of the counter key that all descriptors of such a rule share is hashed once.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;

use crate::{
    algorithm::Limit,
    descriptor::{Entry, Key, PrefixHash, Secret},
    rules::{Allowance, Domain, Match, Rule, prefix_tree::Node},
};

/// A rule with a limit that was found by its literal keys, with its cached key prefix.
#[derive(Clone, Copy, Debug)]
pub struct CachedMatch<'r> {
    /// The rule.
    pub rule: &'r Arc<Rule>,
    /// Its limit.
    pub limit: &'r Limit,
    key_prefix: &'r KeyPrefix,
}

/// The part of the counter key that all descriptors of one rule share.
#[derive(Debug)]
pub(super) struct KeyPrefix {
    secret: Secret,
    prefix_hash: PrefixHash,
    // The indices of the entries whose values are not part of `prefix_hash`.
    unhashed_entries: SmallVec<[usize; 4]>,
    // Whether the name in metrics is the path of the rule.
    is_name_path: bool,
    // The prefix under the next secret. A second secret exists only after replicas with different ones have met.
    next: OnceLock<Box<KeyPrefix>>,
}

impl Domain {
    /// The rule for a descriptor, if it has a limit and every entry matches by the literal key. Keys are hashed with
    /// `secret`. On `None`, [`Self::find`] may still find a rule.
    // `inline(always)`: keeps the result in registers.
    #[inline(always)]
    pub fn find_cached<'r>(&'r self, entries: &[Entry<'_>], secret: &Secret) -> Option<CachedMatch<'r>> {
        CachedMatch::of(self, self.root.direct(entries)?, entries, secret)
    }
}

impl<'r> CachedMatch<'r> {
    /// The match that ends at `node`.
    #[inline(always)]
    fn of(domain: &'r Domain, node: &'r Node, entries: &[Entry<'_>], secret: &Secret) -> Option<Self> {
        let rule = node.rule.as_ref()?;
        let Allowance::Limited(limit) = &rule.allowance else { return None };
        let mut cached = &node.key_prefix;
        loop {
            match cached.get() {
                Some(key_prefix) if key_prefix.secret == *secret => {
                    return Some(Self { rule, limit, key_prefix });
                }
                Some(other) => cached = &other.next,
                None => {
                    let key_prefix = KeyPrefix::new(domain, limit, entries, secret)?;
                    cached.get_or_init(|| Box::new(key_prefix));
                }
            }
        }
    }

    /// The key of the counter. `entries` are those that the match was found for.
    #[inline(always)]
    pub fn key(&self, entries: &[Entry<'_>]) -> Key {
        self.key_prefix
            .prefix_hash
            .key(self.key_prefix.unhashed_entries.iter().map(|entry| entries[*entry].value))
    }

    /// The full match if the name in metrics contains values (see [`Match::metric_name`]); `None` if the name is the
    /// path of the rule.
    #[inline]
    pub fn match_for_name<'d>(&self, domain: &'d Domain, entries: &[Entry<'_>]) -> Option<Match<'d>> {
        if self.key_prefix.is_name_path { None } else { domain.find(entries) }
    }
}

impl KeyPrefix {
    /// The prefix for all descriptors that reach the rule with this limit in the same way as `entries`.
    #[cold]
    fn new(domain: &Domain, limit: &Limit, entries: &[Entry<'_>], secret: &Secret) -> Option<Self> {
        let found = domain.find(entries)?;
        let mut prefix_hash =
            found.key_text(&domain.name, entries).prefix_hash(&limit.kind().bytes(), secret);
        let sent = found.steps.iter().enumerate().filter(|(_, step)| !step.is_shared());
        let mut unhashed_entries: SmallVec<[usize; 4]> = sent.map(|(entry, _)| entry).collect();
        let known = unhashed_entries.iter().take_while(|entry| found.steps[**entry].is_exact()).count();
        // The last value is hashed together with the end of the key.
        for entry in unhashed_entries.drain(..known.min(unhashed_entries.len().saturating_sub(1))) {
            prefix_hash.push(entries[entry].value);
        }
        let is_name_path = matches!(found.metric_name(&domain.name, entries), Cow::Borrowed(_));
        Some(Self {
            secret: secret.clone(),
            prefix_hash,
            unhashed_entries,
            is_name_path,
            next: OnceLock::new(),
        })
    }
}
