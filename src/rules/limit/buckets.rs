//! Rules that fill and drain.

use std::num::NonZeroU64;

use crate::{
    algorithm::{Excess, Limit, Rate, Span, SteppedBucket, TokenBucket},
    rules::{
        Allowance, Shown,
        file::RateLimit,
        limit::{
            Length, Terms,
            excess::{debt, excess},
            length,
        },
        place::Report,
        reader::Located,
    },
    yaml::Mark,
};

/// A bucket whose tokens come back evenly: `requests` in each length.
pub(super) fn even(
    draft: &RateLimit,
    length: &Length,
    requests: u64,
    excess: Excess,
    report: &mut Report<'_>,
) -> Option<TokenBucket> {
    let Some(hits) = NonZeroU64::new(requests) else {
        let pace = Rate::new(NonZeroU64::MIN, length.nanos());
        return Some(TokenBucket { rate: pace, burst: 0, excess: Excess::Refuse });
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
    let pace = Rate::new(hits, length.nanos());
    let most = burst.saturating_add(debt(excess));
    comes_back(pace.nanos_for(most), draft, report).then_some(TokenBucket { rate: pace, burst, excess })
}

/// A bucket whose tokens come back in steps.
pub(super) fn in_steps(draft: &RateLimit, steps: Mark, report: &mut Report<'_>) -> Option<Terms> {
    for (name, other) in [("refill_amount", "refill_interval"), ("refill_interval", "refill_amount")] {
        if draft.given(name).is_none() {
            report.add(steps, format!("`{other}` needs a `{name}`: so many tokens, each so often"));
        }
    }
    if draft.given("burst").is_none() {
        report.add(steps, "`burst` is missing; with steps it must say how many tokens a full bucket holds");
    }
    let amount = at_least_one(&draft.refill_amount, "refill_amount", report);
    let interval = draft
        .refill_interval
        .as_ref()
        .and_then(|text| length::nanos(text, "refill_interval", length::NANOS_MIN, report))
        .and_then(NonZeroU64::new);
    let burst = at_least_one(&draft.burst, "burst", report).map(NonZeroU64::get);
    let excess = excess(draft, burst.unwrap_or_default(), report);
    let (amount, interval, burst, excess) = (amount?, interval?, burst?, excess?);
    let refills = burst.saturating_add(debt(excess)).div_ceil(amount.get());
    let nanos = u128::from(refills) * u128::from(interval.get());
    let limit = Limit::SteppedBucket(SteppedBucket { amount, interval, burst, excess });
    comes_back(nanos, draft, report).then_some(Terms {
        allowance: Allowance::Limited(limit),
        shown: Shown { requests_per_unit: burst, unit: None },
    })
}

fn at_least_one(number: &Option<Located<u64>>, name: &str, report: &mut Report<'_>) -> Option<NonZeroU64> {
    let number = number.as_ref()?;
    let positive = NonZeroU64::new(number.value);
    if positive.is_none() {
        report.add(number.mark, format!("`{name}` is at least 1"));
    }
    positive
}

/// Whether all that can be taken is back within the longest time there is, which is reported if not.
fn comes_back(nanos: u128, draft: &RateLimit, report: &mut Report<'_>) -> bool {
    let fits = nanos <= u128::from(Span::NANOS_MAX);
    if !fits {
        let mark = draft.given("overdraft_limit").or(draft.given("burst")).unwrap_or(draft.mark);
        report.add(mark, "a full `burst` (with `overdraft_limit`) takes more than 100 years to come back at this rate; lower it");
    }
    fits
}
