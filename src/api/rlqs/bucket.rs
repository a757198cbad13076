//! The buckets of a stream, and the rule of each.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use tollgate_limiter::{
    algorithm::Limit,
    descriptor::{Entry, Key},
    divider::is_divisible,
    rules::{Allowance, KeyedDomain, OnOwnerUnavailable, QuotaTerms},
};

use crate::api::{
    protobuf::{begin, nested},
    rlqs::{Settings, decode::Pair},
};

/// The time for which a client need not ask about a bucket without a limit.
pub(super) const UNLIMITED_TTL: Duration = Duration::from_secs(600);
/// Reports after which the assignment of a bucket without a limit is renewed: it lasts for twice as many of 5 s.
pub(super) const RENEWAL_REPORTS: u32 = (UNLIMITED_TTL.as_secs() / 10) as u32;

/// What identifies a bucket: its pairs, ascending by their keys, as an encoded `BucketId`.
pub(super) type BucketId = Arc<[u8]>;

/// The entries of a descriptor.
pub(super) type Entries<'m> = SmallVec<[Entry<'m>; 4]>;

/// What the rules say about a bucket.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Terms {
    /// No limit, or one that cannot be served and is then to let everything pass.
    Allow,
    /// A limit that refuses nothing: it counts only.
    Count(Key, Limit),
    /// A limit that lets nothing pass, or one that cannot be served.
    Deny,
    /// A limit that is divided, and the part of the bucket.
    Divide(Key, Limit, QuotaTerms),
}

/// The rules by which buckets are looked up.
pub(super) struct ActiveTerms<'v> {
    pub(super) domain: Option<KeyedDomain<'v>>,
    pub(super) version: u64,
    pub(super) passes_all: bool,
}

impl ActiveTerms<'_> {
    /// The terms of the bucket with these pairs. `None` if it is invalid.
    pub(super) fn of(&self, pairs: &[Pair<'_>]) -> Option<Terms> {
        Some(Terms::of(self.domain, &entries(pairs)?, self.passes_all))
    }
}

/// Whether a response can name the bucket of these pairs, and the server keeps its id. Envoy reads no response with a
/// text that is not UTF-8. The values are in the hands of clients.
pub(super) fn is_assignable(pairs: &[Pair<'_>], settings: &Settings) -> bool {
    let bytes = pairs.iter().fold(0_usize, |sum, pair| sum.saturating_add(pair.key.len() + pair.value.len()));
    let is_text = |pair: &Pair<'_>| [pair.key, pair.value].iter().all(|text| str::from_utf8(text).is_ok());
    bytes <= settings.max_id_bytes && pairs.iter().all(|pair| !pair.value.is_empty() && is_text(pair))
}

/// Pairs, ascending by their keys, as a descriptor. `None` if their keys are invalid: none, an empty one, or one twice.
pub(super) fn entries<'m>(pairs: &[Pair<'m>]) -> Option<Entries<'m>> {
    let has_key_twice = pairs.windows(2).any(|two| two[0].key == two[1].key);
    if has_key_twice || pairs.first().is_none_or(|pair| pair.key.is_empty()) {
        return None;
    }
    Some(pairs.iter().map(|pair| Entry { key: pair.key, value: pair.value }).collect())
}

/// The encoded id of these pairs. Other pairs have another one.
pub(super) fn encoded(pairs: &[Pair<'_>], out: &mut Vec<u8>) {
    out.clear();
    for Pair { key, value } in pairs {
        nested(out, 1, |out| {
            for (field, bytes) in [(1, key), (2, value)] {
                begin(out, field, bytes.len());
                out.extend_from_slice(bytes);
            }
        });
    }
}

impl Terms {
    /// The terms of a descriptor. `passes_all`: whether requests pass that are over their limits.
    pub(super) fn of(domain: Option<KeyedDomain<'_>>, entries: &[Entry<'_>], passes_all: bool) -> Self {
        let Some(matched) = domain.and_then(|domain| domain.find(entries)) else { return Self::Allow };
        let rule = matched.rule;
        let Allowance::Limited(limit) = &rule.allowance else { return Self::Allow };
        let key = || matched.key(entries, limit);
        if rule.shadow_mode || passes_all {
            return if is_divisible(limit) { Self::Count(key(), limit.clone()) } else { Self::Allow };
        }
        if limit.allowance() == 0 {
            return Self::Deny;
        }
        if !is_divisible(limit) {
            return match rule.on_owner_unavailable {
                OnOwnerUnavailable::Allow => Self::Allow,
                OnOwnerUnavailable::Deny | OnOwnerUnavailable::LocalShare => Self::Deny,
            };
        }
        Self::Divide(key(), limit.clone(), rule.quota_terms(entries))
    }
}
