//! What a `rate_limit` means.

use crate::{
    algorithm::Limit,
    rules::{
        Allowance, Shown,
        file::{Given, RateLimit},
        keys::{self, Named, Use},
        place::Report,
        reader::Located,
    },
};

mod buckets;
mod excess;
mod length;
mod queue;
mod windows;

use excess::excess;
use length::Length;

/// What a rule allows, and what an answer says of it.
pub(crate) struct Terms {
    pub(crate) allowance: Allowance,
    pub(crate) shown: Shown,
}

/// The terms of a rule; `None` where something is wrong, which is then reported.
pub(crate) fn terms(draft: &RateLimit, report: &mut Report<'_>) -> Option<Terms> {
    let misplaced: Vec<_> =
        draft.given.iter().filter_map(|given| misuse(draft, *given)).chain(contradictions(draft)).collect();
    let all_fit = misplaced.is_empty();
    misplaced.into_iter().for_each(|problem| report.add(problem.mark, problem.value));
    if draft.unlimited {
        let shown = Shown { requests_per_unit: 0, unit: None };
        return all_fit.then_some(Terms { allowance: Allowance::Unlimited, shown });
    }
    let steps = ["refill_amount", "refill_interval"].into_iter().find_map(|name| draft.given(name));
    let terms = match steps {
        Some(_) if !all_fit => None,
        Some(steps) => buckets::in_steps(draft, steps, report),
        None => at_a_rate(draft, report),
    };
    terms.filter(|_| all_fit)
}

/// The limit that is tried beside the one of its rule; `None` where something is wrong, which is then reported.
pub(crate) fn candidate(draft: &RateLimit, report: &mut Report<'_>) -> Option<Limit> {
    let mut fits = true;
    for key in ["name", "replaces", "unlimited", "on_owner_unavailable", "lease", "candidate"] {
        if let Some(mark) = draft.given(key) {
            report.add(mark, format!("`{key}` has no meaning in a `candidate`, which only limits; drop it"));
            fits = false;
        }
    }
    match terms(draft, report)?.allowance {
        Allowance::Limited(limit) if fits => Some(limit),
        Allowance::Limited(_) | Allowance::Unlimited => None,
    }
}

/// The terms of a rule that lets so many requests pass in a time.
fn at_a_rate(draft: &RateLimit, report: &mut Report<'_>) -> Option<Terms> {
    let length = Length::read(draft, report);
    if draft.given("requests_per_unit").is_none() {
        report.add(
            draft.mark,
            "`requests_per_unit` is missing; 0 lets nothing pass, `unlimited: true` everything",
        );
    }
    let requests = draft.requests_per_unit.as_ref().map(|requests| requests.value);
    let excess = excess(draft, requests.unwrap_or_default(), report);
    let (length, requests, excess) = (length?, requests?, excess?);
    let shown = Shown { requests_per_unit: requests, unit: length.unit };
    let limit = match &draft.algorithm {
        None if draft.given("algorithm").is_some() => return None,
        None => windows::classic(length, requests),
        Some(Located { value, .. }) => match value {
            Named::FixedWindow => windows::fixed(draft, length, requests, excess, report)?,
            Named::SlidingWindow => windows::sliding(draft, &length, requests, excess, report)?,
            Named::SlidingLog => windows::log(&length, requests, excess),
            Named::TokenBucket => {
                Limit::TokenBucket(buckets::even(draft, &length, requests, excess, report)?)
            }
            Named::LeakyBucket => {
                Limit::LeakyBucket(buckets::even(draft, &length, requests, excess, report)?)
            }
            Named::LeakyQueue => queue::leaky(draft, &length, requests, report)?,
        },
    };
    Some(Terms { allowance: Allowance::Limited(limit), shown })
}

/// What is wrong with giving this key, in view of the algorithm and of `unlimited`.
fn misuse(draft: &RateLimit, given: Given) -> Option<Located<String>> {
    let name = given.key.name;
    let algorithm = draft.algorithm.as_ref().map(|algorithm| algorithm.value);
    let names = |some: &[Named]| keys::list(some.iter().map(|named| named.name()));
    let value = match (given.key.goes_with, algorithm) {
        (Use::Any, _) => return None,
        _limiting if draft.unlimited => {
            format!("`{name}` has no meaning with `unlimited: true`; drop one of them")
        }
        (Use::Limited, _) | (Use::ClassicOr(_), None) => return None,
        (Use::Only(some) | Use::ClassicOr(some), Some(algorithm)) if some.contains(&algorithm) => {
            return None;
        }
        // An algorithm that could not be read was reported; what goes with it is not known.
        (Use::Only(_), None) if draft.given("algorithm").is_some() => return None,
        (Use::Only(some), None) => {
            format!("`{name}` needs an `algorithm` that has it: {}", names(some))
        }
        (Use::Only(some), Some(algorithm)) => {
            let (algorithm, names) = (algorithm.name(), names(some));
            format!("`{name}` does not go with `algorithm: {algorithm}`, only with {names}")
        }
        (Use::ClassicOr(some), Some(algorithm)) => {
            let (algorithm, names) = (algorithm.name(), names(some));
            format!("`{name}` does not go with `algorithm: {algorithm}`, only with {names} or none")
        }
    };
    Some(Located { value, mark: given.mark })
}

/// Keys that say what other given ones say already.
fn contradictions(draft: &RateLimit) -> Vec<Located<String>> {
    if draft.unlimited {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (ones, others) in keys::APART {
        let Some(one) = ones.iter().find(|name| draft.given(name).is_some()) else { continue };
        found.extend(others.iter().filter_map(|other| {
            let mark = draft.given(other)?;
            Some(Located { value: format!("`{other}` does not go with `{one}`; drop one of them"), mark })
        }));
    }
    found
}
