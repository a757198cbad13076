//! What a `rate_limit` comes to.

use tollgate_counter::algorithm::{Excess, Limit};

use crate::{
    Allowance, DisplayedLimit,
    diagnostics::Diagnostics,
    file::RateLimitDraft,
    limit::{excess::excess, period::Period},
};

/// What a rule allows, and the limit that responses display.
pub(crate) struct RuleTerms {
    pub(crate) allowance: Allowance,
    pub(crate) displayed_limit: DisplayedLimit,
}

/// What all rules with a number of requests in a period have.
pub(super) struct AtRate {
    pub(super) period: Period,
    pub(super) requests: u64,
    pub(super) excess: Excess,
}

/// The terms of a rule with a number of requests in a period, whose other keys make a `limit` of it.
pub(super) fn at_rate(
    draft: &RateLimitDraft,
    diagnostics: &mut Diagnostics<'_>,
    limit: impl FnOnce(AtRate, &mut Diagnostics<'_>) -> Option<Limit>,
) -> Option<RuleTerms> {
    let period = Period::read(draft, diagnostics);
    if draft.given("requests_per_unit").is_none() {
        diagnostics.add(
            draft.mark,
            "`requests_per_unit` is missing; 0 lets nothing pass, `unlimited: true` everything",
        );
    }
    let requests = draft.integer("requests_per_unit").map(|requests| requests.value);
    let excess = excess(draft, requests.unwrap_or_default(), diagnostics);
    let period = period?;
    let requests = requests?;
    let excess = excess?;
    let displayed_limit = DisplayedLimit { requests_per_unit: requests, unit: period.unit };
    let limit = limit(AtRate { period, requests, excess }, diagnostics)?;
    Some(RuleTerms { allowance: Allowance::Limited(limit), displayed_limit })
}
