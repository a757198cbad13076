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
    tollgate_rules::{Match, OwnBounds},
};

use crate::limiter::{Request, check_set::AppliedLimit};
#[cfg(feature = "limits")]
use crate::limiter::{
    check_set::KeyLimitOrigin,
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
        applied: &mut [AppliedLimit<'s>],
    ) -> PendingLimits {
        let mut pending = PendingLimits::default();
        let Some(cache) = &self.cache else { return pending };
        for (applied, descriptor) in applied.iter_mut().zip(&request.descriptors) {
            let Some((matched, own)) = looked_up(applied) else { continue };
            let Some(limit) = matched.rule.limit() else { continue };
            let key = matched.key(descriptor.entries, limit);
            let name = || (domain.name.clone(), matched.counter_text(descriptor.entries));
            match cache.find(key, own, now, name) {
                KeyLimit::Stored(known) => applied.store(key, &known.terms, descriptor.entries, request),
                KeyLimit::Absent => applied.keep(key, KeyLimitOrigin::Rule),
                KeyLimit::Unknown => applied.keep(key, KeyLimitOrigin::Unknown),
                KeyLimit::Pending(each) => {
                    applied.keep(key, KeyLimitOrigin::Unknown);
                    pending.each.push(each);
                    pending.wait = cache.wait();
                }
            }
        }
        pending
    }

    /// Nothing is looked up without the feature `limits`.
    #[cfg(not(feature = "limits"))]
    pub(super) fn apply<'s>(
        &self,
        _: KeyedDomain<'s>,
        _: &Request<'_>,
        _: Timestamp,
        _: &mut [AppliedLimit<'s>],
    ) -> PendingLimits {
        PendingLimits::default()
    }
}

/// The rule of a limit that is looked up, and what its keys may have.
#[cfg(feature = "limits")]
#[inline]
fn looked_up<'s>(applied: &AppliedLimit<'s>) -> Option<(Match<'s>, &'s Arc<OwnBounds>)> {
    let AppliedLimit::Rule(matched, ..) = applied else { return None };
    let own = matched.rule.options().own.as_ref()?;
    own.is_from_source().then_some((*matched, own))
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
