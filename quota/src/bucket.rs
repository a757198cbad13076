//! The buckets of a stream, the rule of each, and what the client is to do with it.

use std::{mem, sync::Arc, time::Duration};

use tollgate_counter::{
    algorithm::{Limit, QuotaTerms},
    descriptor::{Entry, Key},
    time::Timestamp,
};
use tollgate_limiter::limiter::ActiveView;
use tollgate_rules::{Allowance, KeyedDomain, Match, OnOwnerUnavailable};
use tollgate_store::divider::{ASSIGNMENT_TTL, Assignment, UNCERTAIN, is_divisible};
use tollgate_wire::protobuf::{begin, nested};

use crate::settings::QuotaSettings;

/// The time for which a client need not ask about a bucket without a limit.
pub(super) const UNLIMITED_TTL: Duration = Duration::from_secs(600);

/// Approximate memory of a bucket without its id, in bytes: its places in the maps of its stream, and what is to be
/// sent.
const BUCKET_BYTES: usize = 512;
/// Approximate memory of a bucket in the division of its limit, in bytes, if it is the only one of this limit. After
/// the end of the bucket it stays until the last assignment is over.
pub(super) const DIVISION_BYTES: usize = 1_536;

/// The most reports of a message that are taken at once, and buckets that are looked up in new rules or ended at once.
pub(super) const PART_MAX: usize = 64;

/// What identifies a bucket: its pairs, ascending by their keys, as an encoded `BucketId`.
pub(super) type BucketId = Arc<[u8]>;

/// What the rules say about a bucket.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BucketTerms {
    /// No limit, or one that cannot be served and is then to let everything pass.
    Allow,
    /// A limit that refuses nothing: it counts only.
    Count(Key, Limit),
    /// A limit that lets nothing pass, or one that cannot be served.
    Deny,
    /// A limit that is divided, and the part of the bucket.
    Divide(Key, Limit, QuotaTerms),
}

/// A bucket of a stream.
#[derive(Debug)]
pub(super) struct QuotaBucket {
    pub(super) id: BucketId,
    pub(super) terms: BucketTerms,
    rules_version: Option<u64>,
    /// Requests that passed under these terms, as reported.
    pub(super) allowed: u64,
    pub(super) idle_reports: u32,
    /// Whether the last action that was sent lets requests pass and needs no report to be charged.
    pub(super) may_be_abandoned: bool,
    /// Reports until the assignment of a bucket without a limit is renewed.
    pub(super) renew_in: u32,
    /// The last slice that was sent, and when it ends.
    slice: Option<(u64, Timestamp)>,
}

/// The rules by which buckets are looked up.
pub(super) struct ActiveTerms<'v> {
    pub(super) view: &'v ActiveView<'v>,
    pub(super) domain: Option<KeyedDomain<'v>>,
    pub(super) version: u64,
    /// Whether requests pass that are over their limits.
    pub(super) passes_all: bool,
}

/// The terms of a bucket as they are now.
pub(super) struct CurrentTerms {
    pub(super) terms: BucketTerms,
    /// The version of the rules that have these terms; `None` if a store may name another limit with any report.
    rules_version: Option<u64>,
}

impl ActiveTerms<'_> {
    /// The terms of the bucket with these pairs. `None` if it is invalid.
    pub(super) fn terms_of(&self, pairs: &[Entry<'_>]) -> Option<CurrentTerms> {
        if !has_valid_keys(pairs) {
            return None;
        }
        let mut current = CurrentTerms { terms: BucketTerms::Allow, rules_version: Some(self.version) };
        if let Some(domain) = self.domain
            && let Some(matched) = domain.find(pairs)
        {
            let limit = self.view.stored_limit(domain, &matched, pairs);
            current.terms = BucketTerms::new(&matched, limit.as_ref(), pairs, self.passes_all);
            current.rules_version = current.rules_version.filter(|_| !matched.rule.looks_up_limits());
        }
        Some(current)
    }
}

impl QuotaBucket {
    /// A bucket that has reported nothing.
    pub(super) fn new(id: BucketId, CurrentTerms { terms, rules_version }: CurrentTerms) -> Self {
        let allowed = 0;
        let idle_reports = 0;
        let may_be_abandoned = false;
        let renew_in = 0;
        let slice = None;
        Self { id, terms, rules_version, allowed, idle_reports, may_be_abandoned, renew_in, slice }
    }

    /// Resets the bucket to its beginning, under its new terms. The count of idle reports stays.
    pub(super) fn anew(self) -> Self {
        let current = CurrentTerms { terms: self.terms, rules_version: self.rules_version };
        Self { idle_reports: self.idle_reports, ..Self::new(self.id, current) }
    }

    /// Whether the terms of the bucket are those of the rules of this version.
    pub(super) fn is_of_rules(&self, version: u64) -> bool {
        self.rules_version == Some(version)
    }

    /// The memory of a bucket with an id of this size while its stream has it, without its division.
    pub(super) fn bytes(id: usize) -> usize {
        BUCKET_BYTES + id
    }

    /// Sets the current terms, and returns those before if they differ.
    pub(super) fn set_terms(
        &mut self,
        CurrentTerms { terms, rules_version }: CurrentTerms,
    ) -> Option<BucketTerms> {
        self.rules_version = rules_version;
        (self.terms != terms).then(|| mem::replace(&mut self.terms, terms))
    }

    /// Notes what is sent. False for the renewal of a slice that the client may not have any more: it would begin anew.
    pub(super) fn note(&mut self, action: QuotaAction, now: Timestamp) -> bool {
        let end = now.after(ASSIGNMENT_TTL);
        self.slice = match action {
            QuotaAction::Assign(Assignment::Slice(hits)) => Some((hits, end)),
            QuotaAction::Assign(Assignment::Renewal(hits)) => {
                let has_it =
                    |(slice, until): &(u64, Timestamp)| *slice == hits && now.after(UNCERTAIN) < *until;
                if !self.slice.as_ref().is_some_and(has_it) {
                    return false;
                }
                Some((hits, end))
            }
            QuotaAction::Assign(Assignment::Share(_) | Assignment::Deny)
            | QuotaAction::Allow(_)
            | QuotaAction::Abandon => None,
        };
        // A slice is charged by reports, which an abandoned bucket does not send.
        self.may_be_abandoned =
            matches!(action, QuotaAction::Allow(_) | QuotaAction::Assign(Assignment::Share(_)));
        true
    }
}

/// Whether a response can name the bucket of these pairs, and the server keeps its id. Envoy reads no response with a
/// text that is not UTF-8. The values are in the hands of clients.
pub(super) fn is_assignable(pairs: &[Entry<'_>], settings: &QuotaSettings) -> bool {
    let bytes = pairs.iter().fold(0_usize, |sum, pair| sum.saturating_add(pair.key.len() + pair.value.len()));
    let is_text = |pair: &Entry<'_>| [pair.key, pair.value].iter().all(|text| str::from_utf8(text).is_ok());
    bytes <= settings.max_id_bytes && pairs.iter().all(|pair| !pair.value.is_empty() && is_text(pair))
}

/// Whether pairs, ascending by their keys, are a descriptor. They are not without a pair, with an empty key, or with one
/// key twice.
fn has_valid_keys(pairs: &[Entry<'_>]) -> bool {
    let has_key_twice = pairs.windows(2).any(|two| two[0].key == two[1].key);
    !has_key_twice && pairs.first().is_some_and(|pair| !pair.key.is_empty())
}

/// The encoded id of these pairs. Other pairs have another one.
pub(super) fn encoded(pairs: &[Entry<'_>], out: &mut Vec<u8>) {
    out.clear();
    for Entry { key, value } in pairs {
        nested(out, 1, |out| {
            for (field, bytes) in [(1, key), (2, value)] {
                begin(out, field, bytes.len());
                out.extend_from_slice(bytes);
            }
        });
    }
}

impl BucketTerms {
    /// The terms of a descriptor, by the limit of its rule or one that is `stored` for its key. `passes_all`: whether
    /// requests pass that are over their limits.
    fn new(matched: &Match<'_>, stored: Option<&Limit>, entries: &[Entry<'_>], passes_all: bool) -> Self {
        let rule = matched.rule;
        let Allowance::Limited(limit) = &rule.allowance else { return Self::Allow };
        let is_of_kind = stored.is_none_or(|stored| stored.kind() == limit.kind());
        let limit = stored.unwrap_or(limit);
        let key =
            || if is_of_kind { matched.key(entries, limit) } else { matched.key_of_kind(entries, limit) };
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

/// An action for one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaAction {
    /// Let through what the divider assigns.
    Assign(Assignment),
    /// Let everything through for this time.
    Allow(Duration),
    /// Forget the bucket.
    Abandon,
}

impl QuotaAction {
    /// The action that comes of two, of which neither is sent yet. A slice stays new until it is sent.
    pub(super) fn then(self, later: Self) -> Self {
        match (self, later) {
            // An assignment may be on its way when the bucket is abandoned.
            (Self::Abandon, _) => self,
            (Self::Assign(Assignment::Slice(hits)), Self::Assign(Assignment::Renewal(same)))
                if hits == same =>
            {
                self
            }
            (_, later) => later,
        }
    }
}
