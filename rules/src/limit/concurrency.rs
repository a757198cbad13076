//! Rules with places for calls in flight.

use std::time::Duration;

use tollgate_counter::{
    algorithm::{Concurrency, Limit, Span},
    time::SECOND,
};

use crate::{
    Allowance, DisplayedLimit,
    diagnostics::Diagnostics,
    file::RateLimitDraft,
    limit::{KeyValue, RuleTerms, period},
};

/// The largest number of places: as many as a log has entries.
const PLACES_MAX: u64 = 10_000;
/// The bounds of the longest time that a place is held, and its default.
const HOLD_MIN: u64 = SECOND;
const HOLD_MAX: u64 = 24 * 3_600 * SECOND;
const HOLD_DEFAULT: u64 = 60 * SECOND;

/// A limit of calls in flight.
pub(super) fn concurrency(draft: &RateLimitDraft, diagnostics: &mut Diagnostics<'_>) -> Option<RuleTerms> {
    if draft.given("max_in_flight").is_none() {
        diagnostics.add(
            draft.mark,
            "`max_in_flight` is missing; with `concurrency` it must say how many calls may be in flight",
        );
    }
    let places = draft.integer("max_in_flight").filter(|places| {
        let fits = (1..=PLACES_MAX).contains(&places.value);
        if !fits {
            let what =
                format!("`max_in_flight` cannot be {}; it is a number from 1 to {PLACES_MAX}", places.value);
            diagnostics.add(places.mark, what);
        }
        fits
    });
    let hold_max = match (draft.text("hold_max"), draft.given("hold_max")) {
        (None, None) => Some(HOLD_DEFAULT),
        (None, Some(_reported)) => None,
        (Some(text), _) => period::nanos(text, "hold_max", HOLD_MIN, HOLD_MAX, diagnostics),
    };
    let max_in_flight = places?.value;
    let hold_max = Span::from_nanos(hold_max?)?;
    Some(RuleTerms {
        allowance: Allowance::Limited(Limit::Concurrency(Concurrency { max_in_flight, hold_max })),
        displayed_limit: DisplayedLimit { requests_per_unit: max_in_flight, unit: None },
    })
}

/// The keys of a limit of calls in flight.
pub(super) fn keys(limit: &Concurrency) -> Vec<(&'static str, KeyValue)> {
    vec![
        ("max_in_flight", KeyValue::Number(limit.max_in_flight)),
        ("hold_max", KeyValue::Time(Duration::from_nanos(limit.hold_max.nanos()))),
    ]
}
