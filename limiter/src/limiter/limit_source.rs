//! The limits of keys that a store names, in the decisions of calls.

#[cfg(feature = "limits")]
use std::sync::Arc;
use std::time::Duration;

use tollgate_counter::time::Timestamp;
use tollgate_rules::KeyedDomain;
#[cfg(feature = "limits")]
use {
    smallvec::SmallVec,
    tokio::sync::watch,
    tollgate_counter::{
        algorithm::Limit,
        descriptor::{Entry, Key},
    },
    tollgate_rules::Match,
};

use crate::limiter::{check_set::AppliedLimit, request::Request};
#[cfg(feature = "limits")]
use crate::limiter::{
    check_set::LimitFrom,
    limit_cache::{KeyLimit, LimitCache},
};

/// Where the limits of keys are looked up, if anywhere.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitSource {
    #[cfg(feature = "limits")]
    pub(super) cache: Option<Arc<LimitCache>>,
}

/// The look-ups that a call waits for.
#[derive(Debug, Default)]
pub(super) struct PendingLimits {
    #[cfg(feature = "limits")]
    each: SmallVec<[watch::Receiver<()>; 1]>,
    wait: Duration,
}

/// Whether limits that are found in the cache count as hits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheHits {
    /// The call has not waited for a limit.
    Counted,
    /// The call has waited, or is an explanation.
    Ignored,
}

impl LimitSource {
    /// Replaces the limits of rules by those that the store names. Those that it has not named yet are pending, and
    /// decided by their rules if the caller does not wait.
    #[cfg(feature = "limits")]
    #[inline]
    pub(super) fn apply<'s>(
        &self,
        domain: KeyedDomain<'s>,
        request: &Request<'_>,
        now: Timestamp,
        hits: CacheHits,
        applied: &mut [AppliedLimit<'s>],
    ) -> PendingLimits {
        let mut pending = PendingLimits::default();
        let Some(cache) = &self.cache else { return pending };
        for (applied, descriptor) in applied.iter_mut().zip(&request.descriptors) {
            let AppliedLimit::Rule(matched, ..) = applied else { continue };
            let Some((key, found)) = find(cache, domain, matched, descriptor.entries, now) else { continue };
            if hits == CacheHits::Counted && matches!(found, KeyLimit::Stored(_) | KeyLimit::Absent) {
                cache.stats.hits.increase();
            }
            match found {
                KeyLimit::Stored(known) => applied.store(key, &known.terms, descriptor.entries, request),
                KeyLimit::Absent => applied.keep(key, LimitFrom::Rule),
                KeyLimit::Unknown => applied.keep(key, LimitFrom::RuleForUnknown),
                KeyLimit::Pending(each) => {
                    applied.keep(key, LimitFrom::RuleForUnknown);
                    pending.each.push(each);
                    pending.wait = cache.settings.wait;
                }
            }
        }
        pending
    }

    /// The limit that the store names for the counter of these entries, as far as it is known.
    #[cfg(feature = "limits")]
    pub(super) fn stored(
        &self,
        domain: KeyedDomain<'_>,
        matched: &Match<'_>,
        entries: &[Entry<'_>],
        now: Timestamp,
    ) -> Option<Limit> {
        match find(self.cache.as_ref()?, domain, matched, entries, now)? {
            (_, KeyLimit::Stored(known)) => Some(known.terms.limit.clone()),
            (_, KeyLimit::Absent | KeyLimit::Unknown | KeyLimit::Pending(_)) => None,
        }
    }

    /// Nothing is looked up without the feature `limits`.
    #[cfg(not(feature = "limits"))]
    pub(super) fn apply<'s>(
        &self,
        _: KeyedDomain<'s>,
        _: &Request<'_>,
        _: Timestamp,
        _: CacheHits,
        _: &mut [AppliedLimit<'s>],
    ) -> PendingLimits {
        PendingLimits::default()
    }
}

/// What is known of the limit of a counter whose rule looks up limits, and the key of the counter.
#[cfg(feature = "limits")]
#[inline]
fn find(
    cache: &LimitCache,
    domain: KeyedDomain<'_>,
    matched: &Match<'_>,
    entries: &[Entry<'_>],
    now: Timestamp,
) -> Option<(Key, KeyLimit)> {
    let own = matched.rule.options().own.as_ref().filter(|own| own.is_from_source())?;
    let key = matched.key(entries, matched.rule.limit()?);
    let name = || (domain.name.to_string(), matched.counter_text(entries));
    Some((key, cache.find(key, own, now, name)))
}

impl PendingLimits {
    /// Whether the call waits for nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.wait.is_zero()
    }

    /// Waits for the look-ups, for half of the caller's `timeout` at most.
    #[cfg(feature = "limits")]
    pub(super) async fn ended(self, timeout: Option<Duration>) {
        if self.is_empty() {
            return;
        }
        let wait = timeout.map_or(self.wait, |timeout| self.wait.min(timeout / 2));
        let all = async {
            for mut each in self.each {
                // An error: the sender is gone, because the look-up has ended.
                let _ = each.changed().await;
            }
        };
        // What is not known in time is decided by its rule.
        let _ = tokio::time::timeout(wait, all).await;
    }

    /// Nothing is looked up without the feature `limits`.
    #[cfg(not(feature = "limits"))]
    pub(super) async fn ended(self, _: Option<Duration>) {}
}
