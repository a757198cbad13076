//! Interprets a `rate_limit`.

use crate::{
    algorithm::{AlgorithmName, Limit},
    rules::{
        Allowance, DisplayedLimit,
        diagnostics::Diagnostics,
        file::{GivenKey, RateLimit},
        keys::{self, AppliesTo},
        reader::Located,
    },
};

mod buckets;
mod concurrency;
mod excess;
mod period;
mod queue;
mod windows;

use excess::excess;
use period::Period;

/// What a rule allows, and the limit that responses show.
pub(crate) struct RuleTerms {
    pub(crate) allowance: Allowance,
    pub(crate) displayed_limit: DisplayedLimit,
}

/// The terms of a rule; `None` after reporting a problem.
pub(crate) fn terms(draft: &RateLimit, diagnostics: &mut Diagnostics<'_>) -> Option<RuleTerms> {
    let misplaced: Vec<_> =
        draft.given.iter().filter_map(|given| misuse(draft, *given)).chain(contradictions(draft)).collect();
    let all_fit = misplaced.is_empty();
    misplaced.into_iter().for_each(|problem| diagnostics.add(problem.mark, problem.value));
    if draft.unlimited {
        let displayed_limit = DisplayedLimit { requests_per_unit: 0, unit: None };
        return all_fit.then_some(RuleTerms { allowance: Allowance::Unlimited, displayed_limit });
    }
    let steps = ["refill_amount", "refill_interval"].into_iter().find_map(|name| draft.given(name));
    let algorithm = draft.algorithm.as_ref().map(|algorithm| algorithm.value);
    let terms = match (steps, algorithm) {
        (Some(_), _) | (None, Some(AlgorithmName::Concurrency)) if !all_fit => None,
        (Some(steps), _) => buckets::stepped_bucket(draft, steps, diagnostics),
        (None, Some(AlgorithmName::Concurrency)) => concurrency::concurrency(draft, diagnostics),
        (None, Some(_) | None) => at_a_rate(draft, diagnostics),
    };
    terms.filter(|_| all_fit)
}

/// The limit of a `candidate`; `None` after reporting a problem.
pub(crate) fn candidate(draft: &RateLimit, diagnostics: &mut Diagnostics<'_>) -> Option<Limit> {
    let mut fits = true;
    for key in keys::NOT_IN_CANDIDATE {
        if let Some(mark) = draft.given(key) {
            diagnostics
                .add(mark, format!("`{key}` has no meaning in a `candidate`, which only limits; remove it"));
            fits = false;
        }
    }
    match terms(draft, diagnostics)?.allowance {
        Allowance::Limited(limit) if fits => Some(limit),
        Allowance::Limited(_) | Allowance::Unlimited => None,
    }
}

/// Whether a rule and its candidate read the same calls: those of a concurrency limit take and free places, those of
/// any other limit count hits. Reported if not.
pub(crate) fn candidate_fits(
    rule: &RateLimit,
    candidate: &RateLimit,
    diagnostics: &mut Diagnostics<'_>,
) -> bool {
    let counts_places = |draft: &RateLimit| {
        draft.algorithm.as_ref().is_some_and(|algorithm| algorithm.value == AlgorithmName::Concurrency)
    };
    let fits = counts_places(rule) == counts_places(candidate);
    if !fits {
        let mark = rule.given("candidate").unwrap_or(candidate.mark);
        diagnostics.add(
            mark,
            "`candidate` and its rule must both have `algorithm: concurrency`, or neither: a refund frees a place \
             in one, and gives a hit back in the other",
        );
    }
    fits
}

/// The terms of a rule with a number of requests in a period.
fn at_a_rate(draft: &RateLimit, diagnostics: &mut Diagnostics<'_>) -> Option<RuleTerms> {
    let period = Period::read(draft, diagnostics);
    if draft.given("requests_per_unit").is_none() {
        diagnostics.add(
            draft.mark,
            "`requests_per_unit` is missing; 0 lets nothing pass, `unlimited: true` everything",
        );
    }
    let requests = draft.requests_per_unit.as_ref().map(|requests| requests.value);
    let excess = excess(draft, requests.unwrap_or_default(), diagnostics);
    let (period, requests, excess) = (period?, requests?, excess?);
    let displayed_limit = DisplayedLimit { requests_per_unit: requests, unit: period.unit };
    let limit = match &draft.algorithm {
        None if draft.given("algorithm").is_some() => return None,
        None => windows::classic(period, requests),
        Some(Located { value, .. }) => match value {
            AlgorithmName::FixedWindow => {
                windows::fixed_window(draft, period, requests, excess, diagnostics)?
            }
            AlgorithmName::SlidingWindow => {
                windows::sliding_window(draft, &period, requests, excess, diagnostics)?
            }
            AlgorithmName::SlidingLog => windows::sliding_log(&period, requests, excess),
            AlgorithmName::TokenBucket => {
                Limit::TokenBucket(buckets::token_bucket(draft, &period, requests, excess, diagnostics)?)
            }
            AlgorithmName::LeakyBucket => {
                Limit::LeakyBucket(buckets::token_bucket(draft, &period, requests, excess, diagnostics)?)
            }
            AlgorithmName::LeakyQueue => queue::leaky_queue(draft, &period, requests, diagnostics)?,
            // It has no rate.
            AlgorithmName::Concurrency => return None,
        },
    };
    Some(RuleTerms { allowance: Allowance::Limited(limit), displayed_limit })
}

/// The problem of this key with the algorithm or with `unlimited`.
fn misuse(draft: &RateLimit, given: GivenKey) -> Option<Located<String>> {
    let name = given.key.name;
    let algorithm = draft.algorithm.as_ref().map(|algorithm| algorithm.value);
    let names = |some: &[AlgorithmName]| keys::quoted_list(some.iter().map(|name| name.name()));
    let value = match (given.key.applies_to, algorithm) {
        (AppliesTo::Any, _) => return None,
        _limiting if draft.unlimited => {
            format!("`{name}` has no meaning with `unlimited: true`; remove one of them")
        }
        (AppliesTo::Limited, _) | (AppliesTo::ClassicOr(_), None) => return None,
        (AppliesTo::Only(some) | AppliesTo::ClassicOr(some), Some(algorithm))
            if some.contains(&algorithm) =>
        {
            return None;
        }
        // The algorithm is invalid, which was reported, so its keys are unknown.
        (AppliesTo::Only(_), None) if draft.given("algorithm").is_some() => return None,
        (AppliesTo::Only(some), None) => {
            format!("`{name}` needs an `algorithm` that has it: {}", names(some))
        }
        (AppliesTo::Only(some), Some(algorithm)) => {
            let (algorithm, names) = (algorithm.name(), names(some));
            format!("`{name}` cannot be used with `algorithm: {algorithm}`, only with {names}")
        }
        (AppliesTo::ClassicOr(some), Some(algorithm)) => {
            let (algorithm, names) = (algorithm.name(), names(some));
            format!("`{name}` cannot be used with `algorithm: {algorithm}`, only with {names} or none")
        }
    };
    Some(Located { value, mark: given.mark })
}

/// The problems of mutually exclusive keys.
fn contradictions(draft: &RateLimit) -> Vec<Located<String>> {
    if draft.unlimited {
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
