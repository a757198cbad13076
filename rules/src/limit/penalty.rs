//! The penalty of a rule.

use tollgate_counter::algorithm::{Limit, Penalized, Penalty, Span};

use crate::{
    Allowance,
    diagnostics::Diagnostics,
    file::{self, RateLimitDraft},
    limit::{KeyValue, RuleTerms, period},
    reader::Located,
    yaml::Mark,
};

/// The bounds of `after` and `factor`.
const AFTER_MAX: u64 = 1_000_000;
const FACTOR_MAX: u64 = 1_000;
const FACTOR_DEFAULT: u32 = 2;
pub const MAX_DEFAULT: Span = Span::from_seconds(3_600);
pub const FORGET_AFTER_DEFAULT: Span = Span::from_seconds(24 * 3_600);

/// The terms of a rule with its `penalty`; `None` after reporting a problem.
pub(super) fn with_penalty(
    draft: &RateLimitDraft,
    terms: Option<RuleTerms>,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<RuleTerms> {
    let penalty = draft.penalty.as_ref().and_then(|penalty| read(penalty, diagnostics));
    let terms = terms?;
    let penalty = penalty?;
    let allowance = match terms.allowance {
        Allowance::Unlimited => Allowance::Unlimited,
        Allowance::Limited(limit) => Allowance::Limited(Limit::Penalized(Penalized::new(limit, penalty))),
    };
    Some(RuleTerms { allowance, ..terms })
}

fn read(draft: &file::PenaltyDraft, diagnostics: &mut Diagnostics<'_>) -> Option<Penalty> {
    for (key, meaning) in [
        ("after", "the number of refusals in a row after which a penalty begins"),
        ("first", "the length of the first penalty"),
    ] {
        if !draft.is_given(key) {
            diagnostics.add(draft.mark, format!("`{key}` is missing in `penalty`; it is {meaning}"));
        }
    }
    let after = number(draft, "after", &draft.after, AFTER_MAX, None, diagnostics);
    let factor = number(draft, "factor", &draft.factor, FACTOR_MAX, Some(FACTOR_DEFAULT), diagnostics);
    let first = span(draft, "first", &draft.first, None, diagnostics);
    let max = span(draft, "max", &draft.max, Some(MAX_DEFAULT), diagnostics);
    let forget_after =
        span(draft, "forget_after", &draft.forget_after, Some(FORGET_AFTER_DEFAULT), diagnostics);
    let first = first?;
    let max = max?;
    let forget_after = forget_after?;
    let mark = |text: &Option<Located<String>>| text.as_ref().map_or(draft.mark, |text| text.mark);
    let grows = in_order(["max", "first"], [max, first], mark(&draft.max), diagnostics);
    let is_kept =
        in_order(["forget_after", "max"], [forget_after, max], mark(&draft.forget_after), diagnostics);
    (grows && is_kept).then_some(Penalty { after: after?, first, factor: factor?, max, forget_after })
}

/// An integer from 1 to `most`; the default if it is absent.
fn number(
    draft: &file::PenaltyDraft,
    key: &str,
    value: &Option<Located<u64>>,
    most: u64,
    default: Option<u32>,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<u32> {
    let Some(Located { value, mark }) = value else { return default.filter(|_| !draft.is_given(key)) };
    let number = u32::try_from(*value).ok().filter(|_| (1..=most).contains(value));
    if number.is_none() {
        diagnostics.add(*mark, format!("`{key}` cannot be {value}; it is a number from 1 to {most}"));
    }
    number
}

/// A time; the default if it is absent.
fn span(
    draft: &file::PenaltyDraft,
    key: &str,
    text: &Option<Located<String>>,
    default: Option<Span>,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<Span> {
    let Some(text) = text else { return default.filter(|_| !draft.is_given(key)) };
    Span::from_nanos(period::nanos(text, key, period::NANOS_MIN, period::NANOS_MAX, diagnostics)?)
}

/// Whether the first time is at least the second one. Reported if not.
fn in_order(
    [longer, shorter]: [&str; 2],
    spans: [Span; 2],
    mark: Mark,
    diagnostics: &mut Diagnostics<'_>,
) -> bool {
    let is_in_order = spans[1].nanos() <= spans[0].nanos();
    if !is_in_order {
        let [long, short] = spans.map(|span| KeyValue::Time(std::time::Duration::from_nanos(span.nanos())));
        diagnostics.add(
            mark,
            format!("`{longer}` of a penalty is at least as long as `{shorter}`, but {long} is shorter than {short}"),
        );
    }
    is_in_order
}
