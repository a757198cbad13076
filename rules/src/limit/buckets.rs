//! Rules with buckets.

use std::{num::NonZeroU64, time::Duration};

use tollgate_counter::algorithm::{Excess, Limit, Rate, Span, SteppedBucket, TokenBucket};

use crate::{
    Allowance, DisplayedLimit,
    diagnostics::Diagnostics,
    file::RateLimitDraft,
    limit::{
        KeyValue, RuleTerms, period,
        terms::{AtRate, debt, excess},
    },
    reader::Located,
    yaml::Mark,
};

/// A bucket that refills evenly: `requests` tokens in each period.
pub(super) fn token_bucket(
    draft: &RateLimitDraft,
    AtRate { period, requests, excess }: AtRate,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<TokenBucket> {
    let Some(hits) = NonZeroU64::new(requests) else {
        let rate = Rate::new(NonZeroU64::MIN, period.nanos());
        return Some(TokenBucket { rate, burst: 0, excess: Excess::Refuse });
    };
    let burst = match (draft.integer("burst"), draft.given("burst")) {
        (None, None) => requests,
        (None, Some(_reported)) => return None,
        (Some(Located { value: 0, mark }), _) => {
            diagnostics.add(*mark, "`burst` is at least 1; to let nothing pass, set `requests_per_unit: 0`");
            return None;
        }
        (Some(burst), _) => burst.value,
    };
    let rate = Rate::new(hits, period.nanos());
    let max = burst.saturating_add(debt(excess));
    comes_back(rate.nanos_for(max), draft, diagnostics).then_some(TokenBucket { rate, burst, excess })
}

/// A bucket that refills in steps.
pub(super) fn stepped_bucket(
    draft: &RateLimitDraft,
    steps: Mark,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<RuleTerms> {
    for (name, other) in [("refill_amount", "refill_interval"), ("refill_interval", "refill_amount")] {
        if draft.given(name).is_none() {
            diagnostics.add(steps, format!("`{other}` needs a `{name}`: so many tokens, each so often"));
        }
    }
    if draft.given("burst").is_none() {
        diagnostics
            .add(steps, "`burst` is missing; with steps it must say how many tokens a full bucket holds");
    }
    let amount = at_least_one(draft, "refill_amount", diagnostics);
    let interval = draft
        .text("refill_interval")
        .and_then(|text| {
            period::nanos(text, "refill_interval", period::NANOS_MIN, period::NANOS_MAX, diagnostics)
        })
        .and_then(NonZeroU64::new);
    let burst = at_least_one(draft, "burst", diagnostics).map(NonZeroU64::get);
    let excess = excess(draft, burst.unwrap_or_default(), diagnostics);
    let amount = amount?;
    let interval = interval?;
    let burst = burst?;
    let excess = excess?;
    let refills = burst.saturating_add(debt(excess)).div_ceil(amount.get());
    let nanos = u128::from(refills) * u128::from(interval.get());
    let limit = Limit::SteppedBucket(SteppedBucket { amount, interval, burst, excess });
    comes_back(nanos, draft, diagnostics).then_some(RuleTerms {
        allowance: Allowance::Limited(limit),
        displayed_limit: DisplayedLimit { requests_per_unit: burst, unit: None },
    })
}

fn at_least_one(draft: &RateLimitDraft, name: &str, diagnostics: &mut Diagnostics<'_>) -> Option<NonZeroU64> {
    let number = draft.integer(name)?;
    let positive = NonZeroU64::new(number.value);
    if positive.is_none() {
        diagnostics.add(number.mark, format!("`{name}` is at least 1"));
    }
    positive
}

/// The keys of a bucket that refills evenly.
pub(super) fn keys(bucket: &TokenBucket) -> Vec<(&'static str, KeyValue)> {
    // A bucket that lets nothing pass has `requests_per_unit: 0` instead.
    let burst = (bucket.burst > 0).then_some(("burst", KeyValue::Number(bucket.burst)));
    burst.into_iter().collect()
}

/// The keys of a bucket that refills in steps.
pub(super) fn stepped_keys(bucket: &SteppedBucket) -> Vec<(&'static str, KeyValue)> {
    vec![
        ("burst", KeyValue::Number(bucket.burst)),
        ("refill_amount", KeyValue::Number(bucket.amount.get())),
        ("refill_interval", KeyValue::Time(Duration::from_nanos(bucket.interval.get()))),
    ]
}

/// Whether everything that can be taken is refilled within the longest span; reported if not.
fn comes_back(nanos: u128, draft: &RateLimitDraft, diagnostics: &mut Diagnostics<'_>) -> bool {
    let fits = nanos <= u128::from(Span::NANOS_MAX);
    if !fits {
        let mark = draft.given("overdraft_limit").or(draft.given("burst")).unwrap_or(draft.mark);
        diagnostics.add(mark, "a full `burst` (with `overdraft_limit`) takes more than 100 years to come back at this rate; lower it");
    }
    fits
}
