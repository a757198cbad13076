//! Interprets a `rate_limit`.

use tollgate_counter::algorithm::{Admission, AlgorithmName, Limit};

use crate::{
    key_values::{GivenKey, LimitDraft},
    keys::{self, AppliesTo},
    rule::Allowance,
    unit::DisplayedLimit,
    yaml::{Located, quote},
};

mod buckets;
pub(crate) mod own;
mod penalty;
mod period;
pub(crate) mod terms;
pub(crate) mod value;
mod windows;

use terms::RuleTerms;
pub use value::algorithm_keys;

use terms::{LimitAtRate, at_rate};

/// The maximum length of a `quota_unit`, in characters.
const QUOTA_UNIT_MAX: usize = 64;

/// The terms of a rule; `None` after reporting a problem.
pub(crate) fn terms(draft: LimitDraft<'_>) -> Option<RuleTerms> {
    let misplaced = draft.given.iter().filter_map(|given| misuse(draft, given)).chain(contradictions(draft));
    let misplaced: Vec<_> = misplaced.chain(unfit_quota_unit(draft)).collect();
    let all_fit = misplaced.is_empty();
    draft.diagnostics.add_all(misplaced);
    if draft.is_set("unlimited") {
        let displayed_limit = DisplayedLimit { requests_per_unit: 0, unit: None };
        return all_fit.then_some(RuleTerms { allowance: Allowance::Unlimited, displayed_limit });
    }
    let steps = ["refill_amount", "refill_interval"].into_iter().find_map(|name| draft.given(name));
    let terms = match steps {
        // Which keys are missing depends on those that do not fit.
        Some(_) if !all_fit => None,
        Some(steps) => buckets::stepped_bucket(draft, steps),
        None => terms_by_algorithm(draft, all_fit),
    };
    let terms = match draft.given("penalty") {
        Some(_) => penalty::with_penalty(draft, terms),
        None => terms,
    };
    terms.filter(|_| all_fit)
}

/// The terms of a rule by its algorithm; classic without one. `all_fit`: whether all its keys belong to the algorithm.
fn terms_by_algorithm(draft: LimitDraft<'_>, all_fit: bool) -> Option<RuleTerms> {
    let limit: LimitAtRate = match draft.algorithm() {
        // The algorithm is invalid, which was reported.
        None if draft.given("algorithm").is_some() => |_, _| None,
        None => |_, rate| Some(windows::classic(rate)),
        Some(AlgorithmName::FixedWindow) => windows::fixed_window,
        Some(AlgorithmName::SlidingWindow) => windows::sliding_window,
        Some(AlgorithmName::SlidingLog) => |_, rate| Some(windows::sliding_log(rate)),
        Some(AlgorithmName::TokenBucket) => {
            |draft, rate| buckets::token_bucket(draft, rate).map(Limit::TokenBucket)
        }
        Some(AlgorithmName::LeakyBucket) => {
            |draft, rate| buckets::token_bucket(draft, rate).map(Limit::LeakyBucket)
        }
        Some(AlgorithmName::LeakyQueue) => buckets::leaky_queue,
        // Which keys are missing depends on those that do not fit.
        Some(AlgorithmName::Concurrency) if !all_fit => return None,
        Some(AlgorithmName::Concurrency) => return buckets::concurrency(draft),
    };
    at_rate(draft, limit)
}

/// The limit of a `candidate`; `None` after reporting a problem.
pub(crate) fn candidate(draft: LimitDraft<'_>) -> Option<Limit> {
    let mut fits = true;
    for key in keys::NOT_IN_CANDIDATE {
        if let Some(mark) = draft.given(key) {
            draft.report(
                mark,
                format!("`{key}` has no meaning in a `candidate`, which only limits; remove it"),
            );
            fits = false;
        }
    }
    match terms(draft)?.allowance {
        Allowance::Limited(limit) if fits => Some(limit),
        Allowance::Limited(_) | Allowance::Unlimited => None,
    }
}

/// Whether a rule and its candidate read the same calls: those of a concurrency limit take and free places, those of
/// any other limit count hits. Reported if not.
pub(crate) fn candidate_fits(draft: LimitDraft<'_>, rule: &RuleTerms, candidate: &Limit) -> bool {
    let counts_places = |limit: &Limit| match limit.admission() {
        Admission::AtOnce | Admission::Delayed => false,
        Admission::InFlight => true,
    };
    let of_rule = match &rule.allowance {
        Allowance::Unlimited => false,
        Allowance::Limited(limit) => counts_places(limit),
    };
    let fits = of_rule == counts_places(candidate);
    if !fits {
        let mark = draft.given("candidate").unwrap_or(draft.mark);
        draft.report(
            mark,
            "`candidate` and its rule must both have `algorithm: concurrency`, or neither: a refund frees a place \
             in one, and gives a hit back in the other",
        );
    }
    fits
}

/// A `quota_unit` that no string of a response header can have.
fn unfit_quota_unit(draft: LimitDraft<'_>) -> Option<Located<String>> {
    let unit = draft.text("quota_unit")?;
    let fits = (1..=QUOTA_UNIT_MAX).contains(&unit.value.len())
        && unit.value.bytes().all(|byte| byte.is_ascii_graphic());
    let value = format!(
        "`quota_unit` has 1 to {QUOTA_UNIT_MAX} visible ASCII characters, as in `tokens`, not {}",
        quote(&unit.value)
    );
    (!fits).then_some(Located { value, mark: unit.mark })
}

/// The problem of this key with the algorithm or with `unlimited`.
fn misuse(draft: LimitDraft<'_>, given: &GivenKey) -> Option<Located<String>> {
    let name = given.key.name;
    let algorithm = draft.algorithm();
    let names = |some: &[AlgorithmName]| keys::quoted_list(some.iter().map(|name| name.name()));
    let value = match (given.key.applies_to, algorithm) {
        (AppliesTo::Any, _) => return None,
        _limiting if draft.is_set("unlimited") => {
            format!("`{name}` has no meaning with `unlimited: true`; remove one of them")
        }
        (AppliesTo::Limited, _) | (AppliesTo::ClassicOr(_), None) | (AppliesTo::Named, Some(_)) => {
            return None;
        }
        (AppliesTo::Only(some) | AppliesTo::ClassicOr(some), Some(algorithm))
            if some.contains(&algorithm) =>
        {
            return None;
        }
        // The algorithm is invalid, which was reported, so its keys are unknown.
        (AppliesTo::Only(_) | AppliesTo::Named, None) if draft.given("algorithm").is_some() => return None,
        (AppliesTo::Named, None) => format!("`{name}` needs an `algorithm`"),
        (AppliesTo::Only(some), None) => {
            format!("`{name}` needs an `algorithm` that has it: {}", names(some))
        }
        (AppliesTo::Only(some), Some(algorithm)) => {
            let algorithm = algorithm.name();
            let names = names(some);
            format!("`{name}` cannot be used with `algorithm: {algorithm}`, only with {names}")
        }
        (AppliesTo::ClassicOr(some), Some(algorithm)) => {
            let algorithm = algorithm.name();
            let names = names(some);
            format!("`{name}` cannot be used with `algorithm: {algorithm}`, only with {names} or none")
        }
    };
    Some(Located { value, mark: given.mark })
}

/// The problems of mutually exclusive keys.
fn contradictions(draft: LimitDraft<'_>) -> Vec<Located<String>> {
    if draft.is_set("unlimited") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (ones, others) in keys::EXCLUSIVE {
        let Some(one) = ones.iter().find(|name| draft.given(name).is_some()) else { continue };
        found.extend(others.iter().filter_map(|other| {
            let mark = draft.given(other)?;
            Some(Located {
                value: format!("`{other}` cannot be combined with `{one}`; remove one of them"),
                mark,
            })
        }));
    }
    found
}
