//! What a `rate_limit` means.

use std::num::NonZeroU64;

use jiff::SignedDuration;

use crate::{
    algorithm::{Classic, Excess, FixedWindow, Limit, Pace, TokenBucket, Window},
    rules::{
        Allowance, Shown, Unit,
        file::{Given, RateLimit},
        keys::{self, Named, Use},
        place::Report,
        reader::Located,
    },
    yaml::quote,
};

/// What a rule allows, and what an answer says of it.
pub(crate) struct Terms {
    pub(crate) allowance: Allowance,
    pub(crate) shown: Shown,
}

/// A window and the unit that names it, if one does.
struct Span {
    window: Window,
    unit: Option<Unit>,
}

/// The terms of a rule; `None` where something is wrong, which is then reported.
pub(crate) fn terms(draft: &RateLimit, report: &mut Report<'_>) -> Option<Terms> {
    let misplaced: Vec<_> = draft.given.iter().filter_map(|given| misuse(draft, *given)).collect();
    let all_fit = misplaced.is_empty();
    misplaced.into_iter().for_each(|problem| report.add(problem.mark, problem.value));
    if draft.unlimited {
        let shown = Shown { requests_per_unit: 0, unit: None };
        return all_fit.then_some(Terms { allowance: Allowance::Unlimited, shown });
    }
    let span = span(draft, report);
    let requests = draft.requests_per_unit.as_ref().map(|requests| requests.value);
    if draft.given("requests_per_unit").is_none() {
        report.add(
            draft.mark,
            "`requests_per_unit` is missing; 0 lets nothing pass, `unlimited: true` everything",
        );
    }
    let excess = excess(draft, requests.unwrap_or_default(), report);
    if !all_fit {
        return None;
    }
    let (span, requests, excess) = (span?, requests?, excess?);
    let limit = limit(draft, &span, requests, excess, report)?;
    let shown = Shown { requests_per_unit: requests, unit: span.unit };
    Some(Terms { allowance: Allowance::Limited(limit), shown })
}

/// What is wrong with giving this key, in view of the algorithm and of `unlimited`.
fn misuse(draft: &RateLimit, given: Given) -> Option<Located<String>> {
    let name = given.key.name;
    let algorithm = draft.algorithm.as_ref().map(|algorithm| algorithm.value);
    let all = || Named::ALL.iter().map(|named| named.name());
    let value = match (given.key.goes_with, algorithm) {
        (Use::Any, _) => return None,
        _limiting if draft.unlimited => {
            format!("`{name}` has no meaning with `unlimited: true`; drop one of them")
        }
        (Use::Limited, _) | (Use::Named, Some(_)) => return None,
        (Use::Only(some), Some(algorithm)) if some.contains(&algorithm) => return None,
        // An algorithm that could not be read was reported; what goes with it is not known.
        (Use::Named | Use::Only(_), None) if draft.given("algorithm").is_some() => return None,
        (Use::Named, None) => {
            format!("`{name}` needs an `algorithm`: name one of {}", keys::list(all()))
        }
        (Use::Only(some), None) => {
            let names = keys::list(some.iter().map(|named| named.name()));
            format!("`{name}` needs an `algorithm` that has it: {names}")
        }
        (Use::Only(some), Some(algorithm)) => {
            let names = keys::list(some.iter().map(|named| named.name()));
            format!("`{name}` does not go with `algorithm: {}`, only with {names}", algorithm.name())
        }
    };
    Some(Located { value, mark: given.mark })
}

fn span(draft: &RateLimit, report: &mut Report<'_>) -> Option<Span> {
    if let Some(mark) = draft.given("window") {
        for other in ["unit", "unit_multiplier"] {
            if draft.given(other).is_some() {
                report.add(mark, format!("`window` stands alone; drop it or `{other}`"));
            }
        }
        let window = window(draft.window.as_ref()?, report)?;
        return Some(Span { window, unit: None });
    }
    if draft.given("unit").is_none() {
        let names = keys::list(Unit::ALL.iter().map(|unit| unit.name()));
        report.add(draft.mark, format!("`unit` is missing; it is one of {names}, or give a `window`"));
        return None;
    }
    let unit = draft.unit.as_ref()?.value;
    match (&draft.unit_multiplier, draft.given("unit_multiplier")) {
        (None, None) => Some(Span { window: unit.window(), unit: Some(unit) }),
        (None, Some(_reported)) => None,
        (Some(Located { value: 1, .. }), _) => Some(Span { window: unit.window(), unit: Some(unit) }),
        (Some(Located { value, mark }), _) => {
            let window = Window::of_nanos(unit.window().nanos().saturating_mul(*value));
            if window.is_none() {
                report.add(*mark, format!("`unit_multiplier` of {value} is out of range; it is at least 1, and the window at most 100 years"));
            }
            Some(Span { window: window?, unit: None })
        }
    }
}

fn window(text: &Located<String>, report: &mut Report<'_>) -> Option<Window> {
    const MILLISECOND: u128 = 1_000_000;
    const WANTED: &str =
        "it is a time like `90s`, `250ms` or `1h 30m`, in whole milliseconds, from 1 ms to 100 years";
    let nanos =
        text.value.parse::<SignedDuration>().ok().and_then(|time| u128::try_from(time.as_nanos()).ok());
    let window = nanos
        .filter(|nanos| nanos.is_multiple_of(MILLISECOND))
        .and_then(|nanos| u64::try_from(nanos).ok())
        .and_then(Window::of_nanos);
    if window.is_none() {
        report.add(text.mark, format!("`window` cannot be {}; {WANTED}", quote(&text.value)));
    }
    window
}

fn excess(draft: &RateLimit, requests: u64, report: &mut Report<'_>) -> Option<Excess> {
    let is_set = |flag: &Option<Located<bool>>| flag.as_ref().is_some_and(|flag| flag.value);
    let (counted, overdrawn) = (is_set(&draft.count_denied), is_set(&draft.overdraft));
    if let Some(mark) = draft.given("overdraft_limit").filter(|_| !overdrawn) {
        report.add(mark, "`overdraft_limit` needs `overdraft: true`");
        return None;
    }
    match (counted, overdrawn) {
        (false, false) => Some(Excess::Refuse),
        (true, false) => Some(Excess::Count),
        (false, true) => {
            Some(Excess::Overdraft(draft.overdraft_limit.as_ref().map_or(requests, |most| most.value)))
        }
        (true, true) => {
            let mark = draft.given("overdraft").unwrap_or(draft.mark);
            report.add(mark, "`overdraft` does not go with `count_denied`; drop one of them");
            None
        }
    }
}

fn limit(
    draft: &RateLimit,
    span: &Span,
    requests: u64,
    excess: Excess,
    report: &mut Report<'_>,
) -> Option<Limit> {
    let Some(algorithm) = &draft.algorithm else {
        let known = draft.given("algorithm").is_none();
        return known.then_some(Limit::Classic(Classic { limit: requests, window: span.window }));
    };
    match algorithm.value {
        Named::FixedWindow => fixed_window(draft, span, requests, excess, report).map(Limit::FixedWindow),
        Named::TokenBucket => token_bucket(draft, span, requests, excess, report).map(Limit::TokenBucket),
    }
}

fn fixed_window(
    draft: &RateLimit,
    span: &Span,
    requests: u64,
    excess: Excess,
    report: &mut Report<'_>,
) -> Option<FixedWindow> {
    let debt = match excess {
        Excess::Refuse | Excess::Count => 0,
        Excess::Overdraft(most) => most,
    };
    // Where nothing ever passes there is no debt.
    let windows = if requests == 0 { 0 } else { debt.div_ceil(requests) };
    if Window::NANOS_MAX < span.window.nanos().saturating_mul(windows) {
        let mark = draft.given("overdraft_limit").unwrap_or(draft.mark);
        report.add(
            mark,
            "a full `overdraft_limit` takes more than 100 years to be paid at this rate; lower it",
        );
        return None;
    }
    Some(FixedWindow { limit: requests, window: span.window, excess })
}

fn token_bucket(
    draft: &RateLimit,
    span: &Span,
    requests: u64,
    excess: Excess,
    report: &mut Report<'_>,
) -> Option<TokenBucket> {
    let nanos = NonZeroU64::new(span.window.nanos())?;
    let Some(hits) = NonZeroU64::new(requests) else {
        return Some(TokenBucket {
            pace: Pace::new(NonZeroU64::MIN, nanos),
            burst: 0,
            excess: Excess::Refuse,
        });
    };
    let burst = match (&draft.burst, draft.given("burst")) {
        (None, None) => requests,
        (None, Some(_reported)) => return None,
        (Some(Located { value: 0, mark }), _) => {
            report.add(*mark, "`burst` is at least 1; to let nothing pass, set `requests_per_unit: 0`");
            return None;
        }
        (Some(burst), _) => burst.value,
    };
    let pace = Pace::new(hits, nanos);
    let most = match excess {
        Excess::Refuse | Excess::Count => burst,
        Excess::Overdraft(most) => burst.saturating_add(most),
    };
    if u128::from(Window::NANOS_MAX) < pace.nanos_for(most) {
        let mark = draft.given("overdraft_limit").or(draft.given("burst")).unwrap_or(draft.mark);
        report.add(mark, "a full `burst` (with `overdraft_limit`) takes more than 100 years to come back at this rate; lower it");
        return None;
    }
    Some(TokenBucket { pace, burst, excess })
}
