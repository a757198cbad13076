//! Rules with buckets, with queues, and with places for calls in flight.

use std::{num::NonZeroU64, time::Duration};

use tollgate_counter::{
    algorithm::{Concurrency, Excess, LeakyQueue, Limit, Rate, Span, SteppedBucket, TokenBucket},
    time::SECOND,
};

use crate::{
    key_values::LimitDraft,
    limit::{
        period,
        terms::{AtRate, RuleTerms, debt, excess, number},
    },
    rule::Allowance,
    unit::DisplayedLimit,
    yaml::{Located, Mark},
};

/// The largest number of places: as many as a log has entries.
const PLACES_MAX: u64 = 10_000;
/// The bounds of the longest time that a place is held, and its default.
const HOLD_MIN: u64 = SECOND;
const HOLD_MAX: u64 = 24 * 3_600 * SECOND;
const HOLD_DEFAULT: u64 = 60 * SECOND;

/// A bucket that refills evenly: `requests` tokens in each period.
pub(super) fn token_bucket(
    draft: LimitDraft<'_>,
    AtRate { period, requests, excess }: AtRate,
) -> Option<TokenBucket> {
    let Some(hits) = NonZeroU64::new(requests) else {
        let rate = Rate::new(NonZeroU64::MIN, period.nanos());
        return Some(TokenBucket { rate, burst: 0, excess: Excess::Refuse });
    };
    let burst = match draft.integer("burst") {
        None if draft.given("burst").is_none() => requests,
        None => return None,
        Some(Located { value: 0, mark }) => {
            draft.report(*mark, "`burst` is at least 1; to let nothing pass, set `requests_per_unit: 0`");
            return None;
        }
        Some(burst) => burst.value,
    };
    let rate = Rate::new(hits, period.nanos());
    let max = burst.saturating_add(debt(excess));
    comes_back(rate.nanos_for(max), draft).then_some(TokenBucket { rate, burst, excess })
}

/// A bucket that refills in steps.
pub(super) fn stepped_bucket(draft: LimitDraft<'_>, steps: Mark) -> Option<RuleTerms> {
    for (name, other) in [("refill_amount", "refill_interval"), ("refill_interval", "refill_amount")] {
        if draft.given(name).is_none() {
            draft.report(steps, format!("`{other}` needs a `{name}`: so many tokens, each so often"));
        }
    }
    if draft.given("burst").is_none() {
        draft.report(steps, "`burst` is missing; with steps it must say how many tokens a full bucket holds");
    }
    let amount = at_least_one(draft, "refill_amount");
    let range = [period::NANOS_MIN, period::NANOS_MAX];
    let interval = period::time(draft, "refill_interval", range, None).and_then(NonZeroU64::new);
    let burst = at_least_one(draft, "burst").map(NonZeroU64::get);
    let excess = excess(draft, burst.unwrap_or_default());
    let amount = amount?;
    let interval = interval?;
    let burst = burst?;
    let excess = excess?;
    let refills = burst.saturating_add(debt(excess)).div_ceil(amount.get());
    let nanos = u128::from(refills) * u128::from(interval.get());
    let limit = Limit::SteppedBucket(SteppedBucket { amount, interval, burst, excess });
    comes_back(nanos, draft).then_some(RuleTerms {
        allowance: Allowance::Limited(limit),
        displayed_limit: DisplayedLimit { requests_per_unit: burst, unit: None },
    })
}

fn at_least_one(draft: LimitDraft<'_>, name: &str) -> Option<NonZeroU64> {
    let number = draft.integer(name)?;
    let positive = NonZeroU64::new(number.value);
    if positive.is_none() {
        draft.report(number.mark, format!("`{name}` is at least 1"));
    }
    positive
}

/// A queue that `requests` leave in each period.
pub(super) fn leaky_queue(draft: LimitDraft<'_>, AtRate { period, requests, .. }: AtRate) -> Option<Limit> {
    if draft.given("burst").is_none() {
        draft.report(
            draft.mark,
            "`burst` is missing; with `leaky_queue` it must say how many may wait; 0 lets no request wait",
        );
    }
    let max_delay = match draft.given("max_delay") {
        None => None,
        Some(_) => Some(period::time(draft, "max_delay", [0, period::NANOS_MAX], None)?),
    };
    let max_delay = max_delay.map(Duration::from_nanos);
    let burst = draft.integer("burst")?.value;
    let Some(hits) = NonZeroU64::new(requests) else {
        let rate = Rate::new(NonZeroU64::MIN, period.nanos());
        return Some(Limit::LeakyQueue(LeakyQueue { rate, burst: None, max_delay, timeout: None }));
    };
    let rate = Rate::new(hits, period.nanos());
    if rate.nanos_for(burst.saturating_add(1)) > u128::from(Span::NANOS_MAX) {
        let mark = draft.given("burst").unwrap_or(draft.mark);
        draft.report(mark, "a full queue takes more than 100 years to leave at this rate; lower `burst`");
        return None;
    }
    Some(Limit::LeakyQueue(LeakyQueue { rate, burst: Some(burst), max_delay, timeout: None }))
}

/// A limit of calls in flight.
pub(super) fn concurrency(draft: LimitDraft<'_>) -> Option<RuleTerms> {
    if draft.given("max_in_flight").is_none() {
        draft.report(
            draft.mark,
            "`max_in_flight` is missing; with `concurrency` it must say how many calls may be in flight",
        );
    }
    let max_in_flight = number(draft, "max_in_flight", PLACES_MAX, None);
    let hold_max = period::time(draft, "hold_max", [HOLD_MIN, HOLD_MAX], Some(HOLD_DEFAULT));
    let max_in_flight = max_in_flight?;
    let hold_max = Span::from_nanos(hold_max?)?;
    Some(RuleTerms {
        allowance: Allowance::Limited(Limit::Concurrency(Concurrency { max_in_flight, hold_max })),
        displayed_limit: DisplayedLimit { requests_per_unit: max_in_flight, unit: None },
    })
}

/// Whether everything that can be taken is refilled within the longest span; reported if not.
fn comes_back(nanos: u128, draft: LimitDraft<'_>) -> bool {
    let fits = nanos <= u128::from(Span::NANOS_MAX);
    if !fits {
        let mark = draft.given("overdraft_limit").or(draft.given("burst")).unwrap_or(draft.mark);
        draft.report(mark, "a full `burst` (with `overdraft_limit`) takes more than 100 years to come back at this rate; lower it");
    }
    fits
}
