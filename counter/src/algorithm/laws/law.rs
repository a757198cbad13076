//! The laws: one function for each property.

use super::*;

/// The counter after a history, and the time at its end.
pub(super) fn after<A: Law>(
    limit: &A,
    history: &(Timestamp, Vec<(u64, Operation)>),
) -> (A::Counter, Timestamp) {
    let (mut now, mut counter) = (history.0, limit.fresh());
    for (pause, operation) in &history.1 {
        now = now.plus(*pause);
        limit.decide(&mut counter, now, *operation);
    }
    (counter, now)
}

pub(super) fn verdict<A: Law>(
    limit: &A,
    counter: &A::Counter,
    now: Timestamp,
    operation: Operation,
) -> Verdict {
    limit.decide(&mut counter.clone(), now, operation).verdict
}

pub(super) fn remaining<A: Law>(limit: &A, counter: &A::Counter, now: Timestamp) -> u64 {
    limit.decide(&mut counter.clone(), now, Operation::Peek).remaining
}

/// The hits of a charge that passed, 0 for anything else.
pub(super) fn admitted<R>(decision: &Decision<R>, operation: Operation) -> u64 {
    match operation {
        Operation::Charge(hits) if decision.verdict.passes() => hits,
        Operation::Charge(_) | Operation::Peek | Operation::Refund(_) => 0,
    }
}

/// The bound also holds for a caller that retries exactly at the instant that `retry_after` names.
pub(super) fn never_admits_above_its_bound<A: Law>(
    limit: A,
    (start, operations): (Timestamp, Vec<(u64, Operation)>),
) {
    if matches!(limit.excess(), Excess::Overdraft(_)) {
        return;
    }
    let (mut now, mut counter) = (start, limit.fresh());
    let mut admissions: Vec<(Timestamp, u64)> = Vec::new();
    for (pause, operation) in operations {
        if matches!(operation, Operation::Refund(_)) {
            continue;
        }
        now = now.plus(pause);
        let mut decision = limit.decide(&mut counter, now, operation);
        if let Some(wait) = named_wait(&decision.verdict) {
            now = now.plus(wait);
            decision = limit.decide(&mut counter, now, operation);
        }
        admissions.push((now, admitted(&decision, operation)));
        let mut sum = 0_u128;
        for (at, hits) in admissions.iter().rev() {
            sum += u128::from(*hits);
            assert!(sum <= limit.bound(*at, now), "{sum} from {at:?} to {now:?}");
        }
    }
}

/// The wait that a refusal names, in nanoseconds, unless it is too long for a history.
pub(super) fn named_wait(verdict: &Verdict) -> Option<u64> {
    match verdict {
        Verdict::Refuse { retry_after: Some(wait) } => {
            u64::try_from(wait.as_nanos()).ok().filter(|wait| *wait < 50 * HOUR)
        }
        Verdict::Refuse { retry_after: None } | Verdict::Pass | Verdict::Delay(_) => None,
    }
}

pub(super) fn retry_after_of_refusal_is_exact<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    hits: u64,
) {
    let (mut counter, now) = after(&limit, &history);
    let operation = Operation::Charge(hits);
    let Verdict::Refuse { retry_after } = limit.decide(&mut counter, now, operation).verdict else { return };
    if A::ADMISSION == Admission::InFlight {
        assert_eq!(retry_after, None);
        return;
    }
    match retry_after {
        Some(wait) => {
            let then = now.plus(u64::try_from(wait.as_nanos()).unwrap());
            assert!(verdict(&limit, &counter, then, operation).passes(), "passes after {wait:?}");
            assert!(
                !verdict(&limit, &counter, then.minus(1), operation).passes(),
                "not a nanosecond earlier"
            );
        }
        None => {
            let fresh = verdict(&limit, &limit.fresh(), now, operation).passes();
            assert!(!fresh, "a charge that passes on a fresh counter has a `retry_after`");
        }
    }
}

pub(super) fn remaining_equals_what_would_pass<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
) {
    let (counter, now) = after(&limit, &history);
    let left = remaining(&limit, &counter, now);
    assert!(left <= limit.allowance());
    if left > 0 {
        assert!(verdict(&limit, &counter, now, Operation::Charge(left)).passes());
    }
    assert_eq!(verdict(&limit, &counter, now, Operation::Peek).passes(), left > 0);
    if let (Some(more), false) =
        (left.checked_add(1), matches!(limit.excess(), Excess::Overdraft(_)) && left > 0)
    {
        assert!(!verdict(&limit, &counter, now, Operation::Charge(more)).passes());
    }
}

pub(super) fn peek_and_refusal_change_nothing<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    operation: Operation,
) {
    let (counter, now) = after(&limit, &history);
    let mut peeked = counter.clone();
    limit.decide(&mut peeked, now, Operation::Peek);
    assert_eq!(peeked, counter);
    let mut asked = counter.clone();
    let passes = limit.decide(&mut asked, now, operation).verdict.passes();
    if !passes && limit.excess() != Excess::Count && !limit.remembers_refusals() {
        assert_eq!(asked, counter);
    }
}

/// An idle counter and a fresh one answer every further history alike.
pub(super) fn idle_equals_fresh<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    more: Vec<(u64, Operation)>,
) {
    let (mut counter, now) = after(&limit, &history);
    let idle_at = limit.idle_at(&counter);
    if idle_at == Timestamp::MAX {
        return;
    }
    if now < idle_at {
        let before = idle_at.minus(1).max(now);
        assert!(
            remaining(&limit, &counter, before) < limit.allowance()
                || limit.allowance() == 0
                || limit.remembers_refusals(),
            "`idle_at` is the first instant at which eviction is free"
        );
    }
    let (mut fresh, mut now) = (limit.fresh(), now.max(idle_at));
    for (pause, operation) in more {
        now = now.plus(pause);
        let (one, other) =
            (limit.decide(&mut counter, now, operation), limit.decide(&mut fresh, now, operation));
        assert_eq!(
            (one.verdict, one.remaining, one.reset_after),
            (other.verdict, other.remaining, other.reset_after)
        );
    }
}

pub(super) fn time_that_goes_back_frees_nothing<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    back: u64,
    operation: Operation,
) {
    let (counter, now) = after(&limit, &history);
    let then = now.minus(back);
    assert!(remaining(&limit, &counter, then) <= remaining(&limit, &counter, now));
    // A charge at an earlier time frees nothing afterwards either.
    let mut asked = counter.clone();
    limit.decide(&mut asked, then, operation);
    if !matches!(operation, Operation::Refund(_)) {
        assert!(remaining(&limit, &asked, now) <= remaining(&limit, &counter, now));
    }
}

/// A clock was ahead during a history and went on from `at` when it gave up its lead. A clamped counter never admits
/// more than one of a clock that kept its lead, and it refuses no longer than an allowance that is used up now, plus a
/// window.
pub(super) fn lead_given_up_frees_nothing_and_refuses_at_most_a_window<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    lead: u64,
    pauses: [u64; 2],
) {
    let (counter, shown) = after(&limit, &history);
    let at = shown.minus(lead);
    let (asked, later) = (at.plus(pauses[0]), at.plus(pauses[0]).plus(pauses[1]));
    let mut cut = counter.clone();
    limit.clamp_ahead(&mut cut, at, asked);
    let on = |instant: Timestamp| shown.plus(instant.nanos_since(at));
    for now in [asked, later] {
        assert!(
            remaining(&limit, &cut, now) <= remaining(&limit, &counter, on(now)),
            "clamping frees nothing"
        );
    }
    if !matches!(limit.excess(), Excess::Overdraft(_) | Excess::Count) {
        assert!(limit.idle_at(&cut) <= limit.refilled_at(asked), "clamping refuses no longer than a window");
    }
}

/// Without a lead, clamping changes nothing.
pub(super) fn counter_without_lead_is_not_clamped<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    pauses: [u64; 2],
) {
    let (counter, now) = after(&limit, &history);
    let now = now.plus(pauses[0]);
    let mut cut = counter.clone();
    limit.clamp_ahead(&mut cut, now.minus(pauses[1]), now);
    assert_eq!(cut, counter);
}

pub(super) fn refund_gives_back_at_most_what_was_charged<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    hits: u64,
) {
    let (mut counter, now) = after(&limit, &history);
    let before = remaining(&limit, &counter, now);
    let decision = limit.decide(&mut counter, now, Operation::Refund(hits));
    assert_eq!(decision.verdict, Verdict::Pass);
    let given = decision.remaining - before;
    assert!(given <= hits || limit.can_free_several());
    assert!(decision.remaining <= limit.allowance());
}

/// With some charges taken back, at least the remaining charges stay counted. A charge that is taken back at once
/// leaves no trace.
pub(super) fn undo_takes_back_one_charge_and_no_more<A: Law>(
    limit: A,
    start: Timestamp,
    operations: Vec<(u64, u64, Option<u64>)>,
) {
    let (mut now, mut counter, mut without) = (start, limit.fresh(), limit.fresh());
    let mut receipts: Vec<(usize, A::Receipt)> = Vec::new();
    for (index, (pause, hits, undone_after)) in operations.iter().enumerate() {
        now = now.plus(*pause);
        let before = remaining(&limit, &counter, now);
        let decision = limit.decide(&mut counter, now, Operation::Charge(*hits));
        if let Some(receipt) = decision.receipt {
            let mut undone = counter.clone();
            limit.undo(&mut undone, receipt, now);
            assert_eq!(
                remaining(&limit, &undone, now),
                before,
                "a charge taken back at once leaves no trace"
            );
            match undone_after {
                Some(after) => receipts.push((index + *after as usize, receipt)),
                None => {
                    limit.decide(&mut without, now, Operation::Charge(*hits));
                }
            }
        } else if decision.verdict.passes() || limit.excess() == Excess::Count {
            limit.decide(&mut without, now, Operation::Charge(*hits));
        }
        let (due, later) = receipts.into_iter().partition(|(at, _)| *at <= index);
        receipts = later;
        for (_, receipt) in due {
            limit.undo(&mut counter, receipt, now);
        }
        if limit.excess() == Excess::Refuse && receipts.is_empty() {
            let most = remaining(&limit, &without, now).saturating_add(limit.early());
            assert!(remaining(&limit, &counter, now) <= most);
        }
    }
}

/// Undo takes back what still counts of a charge, also after its window has ended.
pub(super) fn undo_takes_back_all_that_still_counts<A: Law>(
    limit: A,
    start: Timestamp,
    hits: [u64; 2],
    pause: u64,
) {
    let (mut counter, mut without) = (limit.fresh(), limit.fresh());
    let Some(receipt) = limit.decide(&mut counter, start, Operation::Charge(hits[0])).receipt else { return };
    let now = start.plus(pause);
    if limit.undoes_all() {
        if limit.decide(&mut counter, now, Operation::Charge(hits[1])).receipt.is_none() {
            return;
        }
        limit.decide(&mut without, now, Operation::Charge(hits[1]));
    }
    limit.undo(&mut counter, receipt, now);
    assert_eq!(remaining(&limit, &counter, now), remaining(&limit, &without, now));
}

/// Local and remote consumption since a common state add up in any order and free nothing.
pub(super) fn absorbing_adds_consumption<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    more: Vec<(u64, Operation)>,
    remote: u64,
    later: u64,
) {
    let (base, start) = after(&limit, &history);
    let (mut whole, mut now) = (base.clone(), start);
    for (pause, operation) in more {
        if !matches!(operation, Operation::Refund(_)) {
            now = now.plus(pause);
            limit.decide(&mut whole, now, operation);
        }
    }
    let since = limit.since(&whole, &base, now);
    let mut rebuilt = base.clone();
    limit.absorb(&mut rebuilt, &since, now);
    assert_eq!(
        remaining(&limit, &rebuilt, now),
        remaining(&limit, &whole, now),
        "base plus difference is the whole"
    );

    let mut other = limit.fresh();
    limit.decide(&mut other, now, Operation::Charge(remote));
    let (mut one_way, mut other_way) = (base.clone(), base);
    limit.absorb(&mut one_way, &since, now);
    limit.absorb(&mut one_way, &other, now);
    limit.absorb(&mut other_way, &other, now);
    limit.absorb(&mut other_way, &since, now);
    let left = remaining(&limit, &one_way, now);
    assert_eq!(left, remaining(&limit, &other_way, now), "in any order");
    for now in [now, now.plus(later)] {
        let left = remaining(&limit, &one_way, now);
        let apart = remaining(&limit, &whole, now).min(remaining(&limit, &other, now));
        assert!(left <= apart, "merging frees nothing, now or later");
    }
}

/// Hits that were consumed at another replica count like a charge at that instant, whether they would pass or not.
pub(super) fn hits_charged_at_an_instant_count_like_a_charge<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
    hits: u64,
    later: u64,
) {
    let (counter, at) = after(&limit, &history);
    let now = at.plus(later);
    let charged_at = |at| {
        let mut charged = counter.clone();
        limit.charge_at(&mut charged, hits, at, now);
        remaining(&limit, &charged, now)
    };
    let mut charged = counter.clone();
    if limit.decide(&mut charged, at, Operation::Charge(hits)).receipt.is_some() {
        assert_eq!(charged_at(at), remaining(&limit, &charged, now), "a charge that passes");
    }
    let (left, without) = (charged_at(now), remaining(&limit, &counter, now).saturating_sub(hits));
    assert!(left == without || left < without && limit.can_free_several(), "{left}, not {without}");
}

/// If refused hits count, a caller that stops passes again in the time that the algorithm promises.
pub(super) fn counted_refusals_refuse_for_a_bounded_time<A: Law>(
    mut limit: A,
    history: (Timestamp, Vec<(u64, Operation)>),
) {
    limit.change(|number| number, |_| Excess::Count);
    if limit.excess() == Excess::Count {
        let (counter, now) = after(&limit, &history);
        assert!(limit.idle_at(&counter) <= limit.counts_until(now));
    }
}
