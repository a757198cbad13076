//! The penalty of a rule.

use std::time::Duration;

use tollgate_counter::algorithm::{Limit, Penalized, Penalty, Span};

use crate::{
    key_values::LimitDraft,
    limit::{
        period,
        terms::{RuleTerms, number},
        value::time_text,
    },
    rule::Allowance,
};

/// The bounds of `after` and `factor`.
const AFTER_MAX: u64 = 1_000_000;
const FACTOR_MAX: u64 = 1_000;
const FACTOR_DEFAULT: u64 = 2;
/// The greatest length of a penalty whose rule gives no `max`.
pub const MAX_DEFAULT: Span = Span::from_seconds(3_600);
/// The time after the last refusal until refusals are forgotten if the rule gives no `forget_after`.
pub const FORGET_AFTER_DEFAULT: Span = Span::from_seconds(24 * 3_600);

/// The terms of a rule with its `penalty`; `None` after reporting a problem.
pub(super) fn with_penalty(draft: LimitDraft<'_>, terms: Option<RuleTerms>) -> Option<RuleTerms> {
    let penalty = draft.mapping("penalty").and_then(|keys| read(LimitDraft { keys, ..draft }));
    let terms = terms?;
    let penalty = penalty?;
    let allowance = match terms.allowance {
        Allowance::Unlimited => Allowance::Unlimited,
        Allowance::Limited(limit) => Allowance::Limited(Limit::Penalized(Penalized::new(limit, penalty))),
    };
    Some(RuleTerms { allowance, ..terms })
}

fn read(draft: LimitDraft<'_>) -> Option<Penalty> {
    for (key, meaning) in [
        ("after", "the number of refusals in a row after which a penalty begins"),
        ("first", "the length of the first penalty"),
    ] {
        if draft.given(key).is_none() {
            draft.report(draft.mark, format!("`{key}` is missing in `penalty`; it is {meaning}"));
        }
    }
    let after = number(draft, "after", AFTER_MAX, None);
    let factor = number(draft, "factor", FACTOR_MAX, Some(FACTOR_DEFAULT));
    let span = |key, default: Option<Span>| {
        let range = [period::NANOS_MIN, period::NANOS_MAX];
        Span::from_nanos(period::time(draft, key, range, default.map(Span::nanos))?)
    };
    let first = span("first", None);
    let max = span("max", Some(MAX_DEFAULT));
    let forget_after = span("forget_after", Some(FORGET_AFTER_DEFAULT));
    let first = first?;
    let max = max?;
    let forget_after = forget_after?;
    let grows = in_order(draft, ["max", "first"], [max, first]);
    let is_kept = in_order(draft, ["forget_after", "max"], [forget_after, max]);
    // Both are within their bounds.
    let number = |number: Option<u64>| u32::try_from(number?).ok();
    (grows && is_kept).then_some(Penalty {
        after: number(after)?,
        first,
        factor: number(factor)?,
        max,
        forget_after,
    })
}

/// Whether the first time is at least the second one. Reported if not.
fn in_order(draft: LimitDraft<'_>, [longer, shorter]: [&str; 2], spans: [Span; 2]) -> bool {
    let is_in_order = spans[1].nanos() <= spans[0].nanos();
    if !is_in_order {
        let [long, short] = spans.map(|span| time_text(Duration::from_nanos(span.nanos())));
        draft.report(
            draft.text(longer).map_or(draft.mark, |text| text.mark),
            format!("`{longer}` of a penalty is at least as long as `{shorter}`, but {long} is shorter than {short}"),
        );
    }
    is_in_order
}
