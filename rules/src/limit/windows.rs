//! Rules with windows.

use std::num::NonZeroU64;

use tollgate_counter::algorithm::{Classic, FixedWindow, Limit, SlidingLog, SlidingWindow, Span};

use crate::{
    diagnostics::Diagnostics,
    key_values::LimitDraft,
    limit::terms::{AtRate, debt},
    yaml::Located,
};

/// The maximum number of sub-windows of a window.
const SUB_WINDOWS_MAX: u64 = 1_000;

/// What envoyproxy/ratelimit does.
pub(super) fn classic(AtRate { period, requests, .. }: AtRate) -> Limit {
    Limit::Classic(Classic::new(requests, period.into_window()))
}

pub(super) fn fixed_window(
    draft: LimitDraft<'_>,
    AtRate { period, requests: limit, excess }: AtRate,
) -> Option<Limit> {
    // A limit of 0 admits nothing and so has no debt.
    let windows = if limit == 0 { 0 } else { debt(excess).div_ceil(limit) };
    if period.span.nanos().saturating_mul(windows) > Span::NANOS_MAX {
        let mark = draft.given("overdraft_limit").unwrap_or(draft.mark);
        draft.report(
            mark,
            "a full `overdraft_limit` takes more than 100 years to be paid at this rate; lower it",
        );
        return None;
    }
    Some(Limit::FixedWindow(FixedWindow { limit, window: period.into_window(), excess }))
}

pub(super) fn sliding_window(
    draft: LimitDraft<'_>,
    AtRate { period, requests: limit, excess }: AtRate,
) -> Option<Limit> {
    let span = period.span;
    match (draft.integer("sub_windows"), draft.given("sub_windows")) {
        (None, None) => Some(Limit::SlidingWindow(SlidingWindow { limit, span, excess })),
        (None, Some(_reported)) => None,
        (Some(parts), _) => {
            let sub_window = sub_window(span, parts, draft.diagnostics)?;
            Some(Limit::SlidingLog(SlidingLog { limit, span, sub_window, excess }))
        }
    }
}

/// The length of a sub-window.
fn sub_window(span: Span, parts: &Located<u64>, diagnostics: &Diagnostics<'_>) -> Option<NonZeroU64> {
    let Located { value: parts, mark } = *parts;
    let fits = (1..=SUB_WINDOWS_MAX).contains(&parts)
        && span.nanos().is_multiple_of(parts)
        && Span::NANOS_MIN <= span.nanos() / parts;
    if !fits {
        let what = format!(
            "`sub_windows` cannot be {parts}; it is a number from 1 to {SUB_WINDOWS_MAX} that cuts the window \
             into whole nanoseconds, at least 1 ms each"
        );
        diagnostics.add(mark, what);
        return None;
    }
    NonZeroU64::new(span.nanos() / parts)
}

pub(super) fn sliding_log(AtRate { period, requests: limit, excess }: AtRate) -> Limit {
    Limit::SlidingLog(SlidingLog { limit, span: period.span, sub_window: NonZeroU64::MIN, excess })
}
