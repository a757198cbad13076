//! Rules with places for calls in flight.

use tollgate_counter::{
    algorithm::{Concurrency, Limit, Span},
    time::SECOND,
};

use crate::{
    Allowance, DisplayedLimit,
    diagnostics::Diagnostics,
    file::KeyValues,
    limit::{RuleTerms, period, terms::number},
};

/// The largest number of places: as many as a log has entries.
const PLACES_MAX: u64 = 10_000;
/// The bounds of the longest time that a place is held, and its default.
const HOLD_MIN: u64 = SECOND;
const HOLD_MAX: u64 = 24 * 3_600 * SECOND;
const HOLD_DEFAULT: u64 = 60 * SECOND;

/// A limit of calls in flight.
pub(super) fn concurrency(draft: &KeyValues, diagnostics: &mut Diagnostics<'_>) -> Option<RuleTerms> {
    if draft.given("max_in_flight").is_none() {
        diagnostics.add(
            draft.mark,
            "`max_in_flight` is missing; with `concurrency` it must say how many calls may be in flight",
        );
    }
    let max_in_flight = number(draft, "max_in_flight", PLACES_MAX, None, diagnostics);
    let hold_max = period::time(draft, "hold_max", [HOLD_MIN, HOLD_MAX], Some(HOLD_DEFAULT), diagnostics);
    let max_in_flight = max_in_flight?;
    let hold_max = Span::from_nanos(hold_max?)?;
    Some(RuleTerms {
        allowance: Allowance::Limited(Limit::Concurrency(Concurrency { max_in_flight, hold_max })),
        displayed_limit: DisplayedLimit { requests_per_unit: max_in_flight, unit: None },
    })
}
