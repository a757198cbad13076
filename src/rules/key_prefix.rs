//! The usual way to a rule, by which its counters' keys are quickly made.
//!
//! Most descriptors come by entries of just the keys that the rules name: a value where they name one, any value
//! where they name none, one that fits where they name a pattern. What the keys of all of them have in common is
//! hashed once.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;

use crate::{
    algorithm::Limit,
    descriptor::{Entry, Key, Secret, Stem},
    rules::{Allowance, Domain, Match, Rule, prefix_tree::Node},
};

/// A rule with a limit, for a descriptor that has come to it by the usual way.
#[derive(Clone, Copy, Debug)]
pub struct CachedMatch<'r> {
    /// The rule.
    pub rule: &'r Arc<Rule>,
    /// Its limit.
    pub limit: &'r Limit,
    key_prefix: &'r KeyPrefix,
}

/// What is the same for all descriptors that come to a rule by the usual way.
#[derive(Debug)]
pub(super) struct KeyPrefix {
    secret: Secret,
    stem: Stem,
    // Of which entries the values are still to be hashed.
    hashed_entries: SmallVec<[usize; 4]>,
    // Whether its name in metrics is its path.
    is_name_path: bool,
    // The same under the next secret. There is another one only where replicas have met since.
    next: OnceLock<Box<KeyPrefix>>,
}

impl Domain {
    /// The rule for a descriptor whose keys are hashed with `secret`, if it has a limit and the way to it is usual. Where
    /// there is none, [`Self::find`] may find one all the same.
    // Always: what it finds stays in registers.
    #[inline(always)]
    pub fn find_cached<'r>(&'r self, entries: &[Entry<'_>], secret: &Secret) -> Option<CachedMatch<'r>> {
        CachedMatch::of(self, self.root.direct(entries)?, entries, secret)
    }
}

impl<'r> CachedMatch<'r> {
    /// At the end of the usual way, which is `node`.
    #[inline(always)]
    fn of(domain: &'r Domain, node: &'r Node, entries: &[Entry<'_>], secret: &Secret) -> Option<Self> {
        let rule = node.rule.as_ref()?;
        let Allowance::Limited(limit) = &rule.allowance else { return None };
        let mut entry = &node.key_prefix;
        loop {
            match entry.get() {
                Some(key_prefix) if key_prefix.secret == *secret => {
                    return Some(Self { rule, limit, key_prefix });
                }
                Some(other) => entry = &other.next,
                None => {
                    let key_prefix = KeyPrefix::new(domain, limit, entries, secret)?;
                    entry.get_or_init(|| Box::new(key_prefix));
                }
            }
        }
    }

    /// The key of the counter. `entries` are those that it was found for.
    #[inline(always)]
    pub fn key(&self, entries: &[Entry<'_>]) -> Key {
        self.key_prefix.stem.key(self.key_prefix.hashed_entries.iter().map(|entry| entries[*entry].value))
    }

    /// Where its name in metrics shows any values, the match that tells them: see [`Match::metric_name`]. Where not, the
    /// name is the rule's path.
    #[inline]
    pub fn match_for_name<'d>(&self, domain: &'d Domain, entries: &[Entry<'_>]) -> Option<Match<'d>> {
        if self.key_prefix.is_name_path { None } else { domain.find(entries) }
    }
}

impl KeyPrefix {
    /// Of descriptors that come to the rule with this limit as `entries` do.
    #[cold]
    fn new(domain: &Domain, limit: &Limit, entries: &[Entry<'_>], secret: &Secret) -> Option<Self> {
        let found = domain.find(entries)?;
        let mut stem = found.key_text(&domain.name, entries).stem(&limit.kind().bytes(), secret);
        let sent = found.steps.iter().enumerate().filter(|(_, step)| !step.is_shared());
        let mut hashed_entries: SmallVec<[usize; 4]> = sent.map(|(entry, _)| entry).collect();
        let known = hashed_entries.iter().take_while(|entry| found.steps[**entry].is_exact()).count();
        // The last one is hashed with what ends the hash.
        for entry in hashed_entries.drain(..known.min(hashed_entries.len().saturating_sub(1))) {
            stem.push(entries[entry].value);
        }
        let is_name_path = matches!(found.metric_name(&domain.name, entries), Cow::Borrowed(_));
        Some(Self { secret: secret.clone(), stem, hashed_entries, is_name_path, next: OnceLock::new() })
    }
}
