//! When a refused request would pass if it were sent again.

use std::{borrow::Cow, time::Duration};

use tollgate_counter::algorithm::Limit;

use crate::limiter::{
    answer::{Answer, Status},
    check_set::Modes,
    request::{Descriptor, Request},
};

/// When a request would pass if it were sent again and nothing else happened. The order is that of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The request passes after this time, or already before. Never later.
    After(Duration),
    /// No time is known: it depends on other calls, on memory, or on a replica that cannot be reached.
    Unknown,
    /// The request never passes: it has more hits than could ever pass.
    Never,
}

impl Retry {
    /// The request passes at once.
    const AT_ONCE: Self = Self::After(Duration::ZERO);

    /// The time after which the request passes, if one is known.
    pub fn after(self) -> Option<Duration> {
        match self {
            Self::After(wait) => Some(wait),
            Self::Unknown | Self::Never => None,
        }
    }
}

impl Answer<'_> {
    /// When `request`, of which this is the answer, would pass if it were sent again. Descriptors that have passed
    /// count: a refused request may have charged them.
    pub fn retry(&self, modes: Modes, request: &Request<'_>) -> Retry {
        let pairs = || self.statuses.iter().zip(request.descriptors());
        let alone = pairs().filter(|(status, _)| !status.in_quota_mode(modes));
        let alone = alone.map(|(status, descriptor)| status.retry(descriptor)).max();
        // Quotas refuse a request only together, so it passes once one of them has hits left.
        let quotas = pairs().filter(|(status, _)| status.in_quota_mode(modes) && !status.is_ignored_quota());
        let quotas = quotas.map(|(status, descriptor)| status.retry(descriptor)).min();
        alone.max(quotas).unwrap_or(Retry::AT_ONCE)
    }

    /// Why `request`, of which this is the answer, never passes; `None` if it passes now or may pass later. Names the
    /// most hits that can ever pass, unless they are of a hidden limit.
    #[inline]
    pub fn never_because(&self, modes: Modes, request: &Request<'_>) -> Option<String> {
        let may_be_never = |status: &Status<'_>| !status.passes && status.retry_after.is_none();
        if self.passes
            || !self.statuses.iter().any(may_be_never)
            || self.retry(modes, request) != Retry::Never
        {
            return None;
        }
        let shown = self.statuses.iter().zip(request.descriptors()).filter(|(status, _)| !status.is_hidden());
        let most = shown.filter_map(|(status, descriptor)| status.most_hits(descriptor)).min();
        let amount = most.map(|most| format!(": at most {most} can ever pass")).unwrap_or_default();
        Some(format!("larger than the limit{amount}"))
    }

    /// The time after which `request`, of which this is the answer, would pass if it were sent again. `None` if it
    /// passes, if it never would, or if no time is known.
    #[inline]
    pub fn retry_after(&self, modes: Modes, request: &Request<'_>) -> Option<Duration> {
        if self.passes { None } else { self.retry(modes, request).after() }
    }
}

impl Status<'_> {
    /// The most hits that can ever pass at once, if `descriptor` is refused because it never passes.
    pub fn most_hits(&self, descriptor: &Descriptor<'_>) -> Option<u64> {
        let (false, None, Some(limit)) = (self.passes, self.retry_after, self.limit) else { return None };
        let applied = self.applied(descriptor)?;
        let never = limit.requests_per_unit == 0 || !applied.can_pass(descriptor.operation);
        never.then(|| applied.allowance())
    }

    /// The limit that has decided on `descriptor`.
    fn applied(&self, descriptor: &Descriptor<'_>) -> Option<Cow<'_, Limit>> {
        match self.rule {
            Some(rule) => rule.limit().map(Cow::Borrowed),
            None => descriptor.limit.map(|sent| Cow::Owned(sent.limit())),
        }
    }

    /// When this descriptor would let the same request pass.
    fn retry(&self, descriptor: &Descriptor<'_>) -> Retry {
        let (Some(_), Some(reset_after)) = (self.limit, self.reset_after) else { return Retry::AT_ONCE };
        let Some(applied) = self.applied(descriptor) else { return Retry::AT_ONCE };
        if self.in_shadow_mode() {
            return Retry::AT_ONCE;
        }
        // Each time is that of one descriptor alone.
        if self.shares_counter {
            return Retry::Unknown;
        }
        if self.passes {
            let repeats_after = applied.repeats_after(descriptor.operation, self.remaining, reset_after);
            return repeats_after.map_or(Retry::Unknown, Retry::After);
        }
        match self.retry_after {
            Some(wait) => Retry::After(wait),
            None if self.most_hits(descriptor).is_some() => Retry::Never,
            None => Retry::Unknown,
        }
    }

    /// Whether quotas refuse the request or not without regard to this descriptor: everything passes.
    fn is_ignored_quota(&self) -> bool {
        self.limit.is_none() && self.rule.is_some()
    }
}
