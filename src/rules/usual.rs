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
    descriptor::{Entry, Key, KeyPrefix, Secret},
    rules::{Allowance, Domain, Match, Rule, tree::Node},
};

/// A rule with a limit, for a descriptor that has come to it by the usual way.
#[derive(Clone, Copy, Debug)]
pub struct Usual<'r> {
    /// The rule.
    pub rule: &'r Arc<Rule>,
    /// Its limit.
    pub limit: &'r Limit,
    trunk: &'r Trunk,
}

/// What is the same for all descriptors that come to a rule by the usual way.
#[derive(Debug)]
pub(super) struct Trunk {
    secret: Secret,
    stem: KeyPrefix,
    // Of which entries the values are still to be hashed.
    places: SmallVec<[usize; 4]>,
    // Whether its name in metrics is its path.
    is_plain: bool,
    // The same under the next secret. There is another one only where replicas have met since.
    next: OnceLock<Box<Trunk>>,
}

impl Domain {
    /// The rule for a descriptor whose keys are hashed with `secret`, if it has a limit and the way to it is usual. Where
    /// there is none, [`Self::find`] may find one all the same.
    // Always: what it finds stays in registers.
    #[inline(always)]
    pub fn usual<'r>(&'r self, entries: &[Entry<'_>], secret: &Secret) -> Option<Usual<'r>> {
        Usual::of(self, self.root.usual(entries)?, entries, secret)
    }
}

impl<'r> Usual<'r> {
    /// At the end of the usual way, which is `node`.
    #[inline(always)]
    fn of(domain: &'r Domain, node: &'r Node, entries: &[Entry<'_>], secret: &Secret) -> Option<Self> {
        let rule = node.rule.as_ref()?;
        let Allowance::Limited(limit) = &rule.allowance else { return None };
        let mut place = &node.trunk;
        loop {
            match place.get() {
                Some(trunk) if trunk.secret == *secret => return Some(Self { rule, limit, trunk }),
                Some(other) => place = &other.next,
                None => {
                    let trunk = Trunk::new(domain, limit, entries, secret)?;
                    place.get_or_init(|| Box::new(trunk));
                }
            }
        }
    }

    /// The key of the counter. `entries` are those that it was found for.
    #[inline(always)]
    pub fn key(&self, entries: &[Entry<'_>]) -> Key {
        self.trunk.stem.key(self.trunk.places.iter().map(|place| entries[*place].value))
    }

    /// Where its name in metrics shows any values, the match that tells them: see [`Match::metric_name`]. Where not, the
    /// name is the rule's path.
    #[inline]
    pub fn found_for_name<'d>(&self, domain: &'d Domain, entries: &[Entry<'_>]) -> Option<Match<'d>> {
        if self.trunk.is_plain { None } else { domain.find(entries) }
    }
}

impl Trunk {
    /// Of descriptors that come to the rule with this limit as `entries` do.
    #[cold]
    fn new(domain: &Domain, limit: &Limit, entries: &[Entry<'_>], secret: &Secret) -> Option<Self> {
        let found = domain.find(entries)?;
        let mut stem = found.key_text(&domain.name, entries).prefix(&limit.kind().bytes(), secret);
        let sent = found.hops.iter().enumerate().filter(|(_, hop)| !hop.is_shared());
        let mut places: SmallVec<[usize; 4]> = sent.map(|(place, _)| place).collect();
        let known = places.iter().take_while(|place| found.hops[**place].is_exact()).count();
        // The last one is hashed with what ends the hash.
        for place in places.drain(..known.min(places.len().saturating_sub(1))) {
            stem.push(entries[place].value);
        }
        let is_plain = matches!(found.metric_name(&domain.name, entries), Cow::Borrowed(_));
        Some(Self { secret: secret.clone(), stem, places, is_plain, next: OnceLock::new() })
    }
}
