//! The usual way to a rule, by which its counters' keys are quickly made.
//!
//! Most descriptors come by entries of just the keys that the rules name: a value where they name one, any value
//! where they name none, one that fits where they name a pattern. What the keys of all of them have in common is
//! hashed once.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use crate::{
    algorithm::Limit,
    descriptor::{Entry, Key, Secret, Stem},
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
    // Nearly always the one in force.
    secret: Secret,
    stem: Stem,
    // Of which entries the values are still to be hashed.
    places: SmallVec<[usize; 4]>,
    // Whether its name in metrics is its path.
    is_plain: bool,
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
        let trunk = match node.trunk.get() {
            Some(trunk) => trunk,
            None => {
                let trunk = Trunk::new(domain, &domain.find(entries)?, limit, entries, secret);
                node.trunk.get_or_init(|| Box::new(trunk))
            }
        };
        // Another secret has hardly ever come since: then keys are made in the general way until rules are read again.
        (trunk.secret == *secret).then_some(Self { rule, limit, trunk })
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
    #[cold]
    fn new(
        domain: &Domain,
        found: &Match<'_>,
        limit: &Limit,
        entries: &[Entry<'_>],
        secret: &Secret,
    ) -> Self {
        let mut stem = found.key_text(&domain.name, entries).stem(&limit.kind().bytes(), secret);
        let sent = found.hops.iter().enumerate().filter(|(_, hop)| !hop.is_shared());
        let mut places: SmallVec<[usize; 4]> = sent.map(|(place, _)| place).collect();
        let known = places.iter().take_while(|place| found.hops[**place].is_exact()).count();
        // The last one is hashed with what ends the hash.
        for place in places.drain(..known.min(places.len().saturating_sub(1))) {
            stem.push(entries[place].value);
        }
        let is_plain = matches!(found.metric_name(&domain.name, entries), Cow::Borrowed(_));
        Self { secret: secret.clone(), stem, places, is_plain }
    }
}
