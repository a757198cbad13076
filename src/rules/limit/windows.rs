//! Rules that count in windows.

use std::num::NonZeroU64;

use crate::{
    algorithm::{Classic, Excess, FixedWindow, Limit, SlidingLog, SlidingWindow, Span},
    rules::{
        file::RateLimit,
        limit::{Length, excess::debt},
        place::Report,
        reader::Located,
    },
};

/// The most sub-windows of a window.
const SUB_WINDOWS_MAX: u64 = 1_000;

pub(super) fn classic(length: Length, limit: u64) -> Limit {
    Limit::Classic(Classic { limit, window: length.into_window() })
}

pub(super) fn fixed(
    draft: &RateLimit,
    length: Length,
    limit: u64,
    excess: Excess,
    report: &mut Report<'_>,
) -> Option<Limit> {
    // Where nothing ever passes there is no debt.
    let windows = if limit == 0 { 0 } else { debt(excess).div_ceil(limit) };
    if Span::NANOS_MAX < length.span.nanos().saturating_mul(windows) {
        let mark = draft.given("overdraft_limit").unwrap_or(draft.mark);
        report.add(
            mark,
            "a full `overdraft_limit` takes more than 100 years to be paid at this rate; lower it",
        );
        return None;
    }
    Some(Limit::FixedWindow(FixedWindow { limit, window: length.into_window(), excess }))
}

pub(super) fn sliding(
    draft: &RateLimit,
    length: &Length,
    limit: u64,
    excess: Excess,
    report: &mut Report<'_>,
) -> Option<Limit> {
    let span = length.span;
    match (&draft.sub_windows, draft.given("sub_windows")) {
        (None, None) => Some(Limit::SlidingWindow(SlidingWindow { limit, span, excess })),
        (None, Some(_reported)) => None,
        (Some(parts), _) => {
            let grain = grain(span, parts, report)?;
            Some(Limit::SubWindows(SlidingLog { limit, span, grain, excess }))
        }
    }
}

/// The length of one of so many sub-windows.
fn grain(span: Span, parts: &Located<u64>, report: &mut Report<'_>) -> Option<NonZeroU64> {
    let Located { value: parts, mark } = *parts;
    let fits = (1..=SUB_WINDOWS_MAX).contains(&parts)
        && span.nanos().is_multiple_of(parts)
        && Span::NANOS_MIN <= span.nanos() / parts;
    if !fits {
        let what = format!(
            "`sub_windows` cannot be {parts}; it is a number from 1 to {SUB_WINDOWS_MAX} that cuts the window \
             into whole nanoseconds, at least 1 ms each"
        );
        report.add(mark, what);
        return None;
    }
    NonZeroU64::new(span.nanos() / parts)
}

pub(super) fn log(length: &Length, limit: u64, excess: Excess) -> Limit {
    Limit::SlidingLog(SlidingLog { limit, span: length.span, grain: NonZeroU64::MIN, excess })
}
