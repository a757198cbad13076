//! The checks of a request.

use smallvec::SmallVec;

use crate::{
    algorithm::{Limit, Operation},
    descriptor::{Key, KeyText, Secret},
    limiter::{AppliedLimit, Descriptor, Status, key_text_as_sent},
    rules::{Domain, OnDenied},
    store::{Check, OnRefusal},
};

/// The undecided statuses of the descriptors of a request, and the checks that decide them.
pub(super) struct Plan<'a, 's> {
    pub(super) statuses: SmallVec<[Status<'s>; 2]>,
    /// The deciding checks, followed by those of candidates.
    pub(super) checks: SmallVec<[Check<'a>; 2]>,
    /// The status index of each deciding check.
    pub(super) status_indexes: SmallVec<[usize; 2]>,
    /// The status index of each candidate check.
    pub(super) candidate_indexes: SmallVec<[usize; 0]>,
}

impl<'a, 's> Plan<'a, 's> {
    pub(super) fn new(
        domain: &Domain,
        descriptors: &[Descriptor<'_>],
        applied: &'a [AppliedLimit<'s>],
        secret: &Secret,
    ) -> Self
    where
        's: 'a,
    {
        let mut plan = Self {
            statuses: SmallVec::with_capacity(descriptors.len()),
            checks: SmallVec::with_capacity(descriptors.len()),
            status_indexes: SmallVec::new(),
            candidate_indexes: SmallVec::new(),
        };
        let mut candidates: SmallVec<[Check<'a>; 0]> = SmallVec::new();
        for (index, (descriptor, applied)) in descriptors.iter().zip(applied).enumerate() {
            let entries = descriptor.entries;
            let check = |key, limit: &'a Limit| check(domain, descriptor.operation, key, limit);
            let hashed = |text: KeyText<'_>, limit: &'a Limit| text.key(&limit.kind().bytes(), secret);
            if let Some(matched) = applied.matched()
                && let Some(candidate) = &matched.rule.candidate
            {
                let text = matched.key_text(&domain.name, entries).of_candidate();
                candidates.push(check(hashed(text, candidate), candidate));
                plan.candidate_indexes.push(index);
            }
            let status = match applied {
                AppliedLimit::Nothing => Status::without_limit(),
                AppliedLimit::Unlimited(matched) => Status::unlimited(matched.rule),
                AppliedLimit::Rule(matched, limit) => {
                    plan.checks.push(check(matched.key(domain, entries, limit.kind(), secret), limit));
                    plan.status_indexes.push(index);
                    Status::of_rule(matched.rule)
                }
                AppliedLimit::Override(current, limit) => {
                    plan.checks.push(check(hashed(key_text_as_sent(domain, entries), limit), limit));
                    plan.status_indexes.push(index);
                    Status::of_override(*current)
                }
            };
            plan.statuses.push(status);
        }
        plan.checks.extend(candidates);
        plan
    }
}

/// The check of `operation` on the counter of `key`.
pub(super) fn check<'a>(domain: &Domain, operation: Operation, key: Key, limit: &'a Limit) -> Check<'a> {
    let on_refusal = match domain.on_denied(limit) {
        OnDenied::ChargeAll => OnRefusal::Keep,
        OnDenied::ChargeNone => OnRefusal::TakeBack,
    };
    Check { key, limit, operation, on_refusal }
}
