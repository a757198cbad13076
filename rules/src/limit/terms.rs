//! What a `rate_limit` comes to: its limit, and how a charge that exceeds the remaining budget is handled.

use tollgate_counter::algorithm::{Excess, Limit};

use crate::{
    key_values::LimitDraft, limit::period::Period, rule::Allowance, unit::DisplayedLimit, yaml::Located,
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

/// Makes a limit of a rate and of the other keys; `None` after reporting a problem.
pub(super) type LimitAtRate = fn(LimitDraft<'_>, AtRate) -> Option<Limit>;

/// The terms of a rule with a number of requests in a period, whose other keys make a `limit` of it.
pub(super) fn at_rate(draft: LimitDraft<'_>, limit: LimitAtRate) -> Option<RuleTerms> {
    let period = Period::read(draft);
    if draft.given("requests_per_unit").is_none() {
        draft.report(
            draft.mark,
            "`requests_per_unit` is missing; 0 lets nothing pass, `unlimited: true` everything",
        );
    }
    let requests = draft.integer("requests_per_unit").map(|requests| requests.value);
    let excess = excess(draft, requests.unwrap_or_default());
    let period = period?;
    let requests = requests?;
    let excess = excess?;
    let displayed_limit = DisplayedLimit { requests_per_unit: requests, unit: period.unit };
    let limit = limit(draft, AtRate { period, requests, excess })?;
    Some(RuleTerms { allowance: Allowance::Limited(limit), displayed_limit })
}

/// Reads `count_denied`, `overdraft` and `overdraft_limit`, whose default is `default_debt`.
pub(super) fn excess(draft: LimitDraft<'_>, default_debt: u64) -> Option<Excess> {
    let counted = draft.is_set("count_denied");
    let overdrawn = draft.is_set("overdraft");
    if let Some(mark) = draft.given("overdraft_limit").filter(|_| !overdrawn) {
        draft.report(mark, "`overdraft_limit` needs `overdraft: true`");
        return None;
    }
    match (counted, overdrawn) {
        (false, false) => Some(Excess::Refuse),
        (true, false) => Some(Excess::Count),
        (false, true) => {
            Some(Excess::Overdraft(draft.integer("overdraft_limit").map_or(default_debt, |max| max.value)))
        }
        (true, true) => {
            let mark = draft.given("overdraft").unwrap_or(draft.mark);
            draft.report(mark, "`overdraft` cannot be combined with `count_denied`; remove one of them");
            None
        }
    }
}

/// The number of a key that takes one from 1 to `most`; the default if it is absent.
pub(super) fn number(draft: LimitDraft<'_>, key: &str, most: u64, default: Option<u64>) -> Option<u64> {
    let Some(Located { value, mark }) = draft.integer(key) else {
        return default.filter(|_| draft.given(key).is_none());
    };
    let fits = (1..=most).contains(value);
    if !fits {
        draft.report(*mark, format!("`{key}` cannot be {value}; it is a number from 1 to {most}"));
    }
    fits.then_some(*value)
}

/// The maximum debt.
pub(super) fn debt(excess: Excess) -> u64 {
    match excess {
        Excess::Refuse | Excess::Count => 0,
        Excess::Overdraft(max) => max,
    }
}
