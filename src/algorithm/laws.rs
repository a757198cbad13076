//! Properties that every named algorithm keeps, and the table that is the law of classic rules.

use std::{num::NonZeroU64, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::time::SECOND;

const HOUR: u64 = 3_600 * SECOND;

/// What the laws are told of an algorithm besides its own functions.
trait Law: Algorithm<Counter: Clone + PartialEq + std::fmt::Debug, Receipt: Clone> + std::fmt::Debug {
    /// The most hits that may be admitted in any span of this length (overdrafts aside).
    fn bound(&self, span: u64) -> u128;
    /// Hits that pass when nothing was counted.
    fn allowance(&self) -> u64;
    fn excess(&self) -> Excess;
    /// Hits that may have come back too early because of a charge that was then taken back.
    fn early(&self) -> u64 {
        0
    }
    /// Whether a charge taken back is as if it had never been. A debt keeps what others may have paid meanwhile.
    fn undoes_all(&self) -> bool {
        true
    }
    /// Whether one hit given back may make room for several.
    fn opens_at_once(&self) -> bool {
        false
    }
}

impl Law for FixedWindow {
    fn bound(&self, span: u64) -> u128 {
        // The shortest window that laws know is a second less than a day long; calendars have their own tests.
        let Window::Aligned(window) = self.window else { return u128::MAX };
        u128::from(self.limit) * (2 + u128::from(span / window.nanos()))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for SlidingWindow {
    fn bound(&self, span: u64) -> u128 {
        u128::from(self.limit) * (2 + u128::from(span / self.span.nanos()))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for SlidingLog {
    fn bound(&self, span: u64) -> u128 {
        // Hits a grain less than a window apart never exceed the limit together; each such span adds one.
        let exact = self.span.nanos() - (self.grain.get() - 1);
        u128::from(self.limit) * (1 + u128::from(span / exact))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for TokenBucket {
    fn bound(&self, span: u64) -> u128 {
        let paid = u128::from(span) * u128::from(self.pace.hits()) / u128::from(self.pace.nanos());
        u128::from(self.burst) + paid + 1
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for SteppedBucket {
    fn bound(&self, span: u64) -> u128 {
        let steps = 1 + u128::from(span / self.interval);
        u128::from(self.burst) + steps * u128::from(self.amount.get())
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn excess(&self) -> Excess {
        self.excess
    }
    // The step that a charge began has passed for those behind it, too.
    fn early(&self) -> u64 {
        self.amount.get()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for LeakyQueue {
    fn bound(&self, span: u64) -> u128 {
        let paid = u128::from(span) * u128::from(self.pace.hits()) / u128::from(self.pace.nanos());
        u128::from(self.allowance()) + paid + 1
    }

    fn allowance(&self) -> u64 {
        self.burst.map_or(0, |burst| burst.saturating_add(1))
    }

    fn excess(&self) -> Excess {
        Excess::Refuse
    }

    // Nothing is let in until the delay is short enough; then all that is behind fits.
    fn opens_at_once(&self) -> bool {
        self.max_delay.is_some()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

fn any_instant() -> impl Strategy<Value = Timestamp> {
    // From 1970 to the year 2200, with both ends and the present well covered.
    prop_oneof![
        Just(Timestamp::EPOCH),
        (0..50 * HOUR).prop_map(Timestamp::from_nanos),
        (0..50 * HOUR).prop_map(|nanos| Timestamp::from_nanos(1_790_000_000 * SECOND + nanos)),
        (0..7_258_000_000 * SECOND).prop_map(Timestamp::from_nanos),
    ]
}

fn any_hits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..5_u64, 2 => 1..200_u64, 1 => Just(u64::from(u32::MAX)), 1 => any::<u64>()]
}

fn any_ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        1 => Just(Ask::Look),
        6 => any_hits().prop_map(Ask::Charge),
        1 => any_hits().prop_map(Ask::Refund),
    ]
}

fn any_excess() -> impl Strategy<Value = Excess> {
    prop_oneof![
        3 => Just(Excess::Refuse),
        1 => Just(Excess::Count),
        1 => (0..100_u64).prop_map(Excess::Overdraft),
    ]
}

fn any_nanos() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(Span::NANOS_MIN),
        Just(SECOND),
        Just(60 * SECOND),
        Just(86_400 * SECOND),
        Span::NANOS_MIN..100 * SECOND,
        Just(365 * 86_400 * SECOND),
    ]
}

fn any_limit() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..20_u64, 2 => 1..2_000_u64, 1 => Just(u64::from(u32::MAX)), 1 => any::<u64>()]
}

prop_compose! {
    fn fixed_window()(limit in any_limit(), nanos in any_nanos(), excess in any_excess()) -> FixedWindow {
        FixedWindow { limit, window: Window::of_nanos(nanos).unwrap(), excess }
    }
}

prop_compose! {
    fn sliding_window()(limit in any_limit(), nanos in any_nanos(), excess in any_excess()) -> SlidingWindow {
        SlidingWindow { limit, span: Span::of_nanos(nanos).unwrap(), excess }
    }
}

prop_compose! {
    fn sliding_log()(
        limit in any_limit(),
        nanos in any_nanos(),
        parts in prop_oneof![2 => Just(None), 1 => (1..100_u64).prop_map(Some)],
        excess in any_excess(),
    ) -> SlidingLog {
        // As many sub-windows as there are, or none: then every nanosecond is its own.
        let (grain, nanos) = match parts {
            None => (1, nanos),
            Some(parts) => (nanos / parts, nanos / parts * parts),
        };
        let span = Span::of_nanos(nanos).unwrap_or(Span::of_nanos(Span::NANOS_MIN).unwrap());
        let grain = if span.nanos() == nanos { grain } else { 1 };
        SlidingLog { limit, span, grain: NonZeroU64::new(grain).unwrap(), excess }
    }
}

prop_compose! {
    fn stepped_bucket()(
        amount in any_limit().prop_map(|amount| amount.max(1)),
        interval in any_nanos(),
        burst in prop_oneof![0..50_u64, any_limit()],
        excess in any_excess(),
    ) -> SteppedBucket {
        let steps = u128::from(burst / amount) * u128::from(interval);
        let burst = if steps < u128::from(Span::NANOS_MAX) { burst } else { amount.min(50) };
        let [amount, interval] = [amount, interval].map(|number| NonZeroU64::new(number).unwrap());
        SteppedBucket { amount, interval, burst, excess }
    }
}

prop_compose! {
    fn leaky_queue()(
        hits in any_limit().prop_map(|hits| hits.max(1)),
        nanos in any_nanos(),
        burst in prop_oneof![1 => Just(None), 4 => prop_oneof![0..50_u64, any_limit()].prop_map(Some)],
        max_delay in prop::option::of((0..100 * SECOND).prop_map(Duration::from_nanos)),
    ) -> LeakyQueue {
        let pace = Pace::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(nanos).unwrap());
        let fits = |burst: &u64| pace.nanos_for(burst.saturating_add(1)) <= u128::from(Span::NANOS_MAX);
        LeakyQueue { pace, burst: burst.map(|burst| Some(burst).filter(fits).unwrap_or(1)), max_delay, patience: None }
    }
}

prop_compose! {
    // As rules are: the whole burst is back within a hundred years.
    fn token_bucket()(
        hits in any_limit().prop_map(|hits| hits.max(1)),
        nanos in any_nanos(),
        burst in prop_oneof![0..50_u64, any_limit()],
        excess in any_excess(),
    ) -> TokenBucket {
        let pace = Pace::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(nanos).unwrap());
        let burst = if pace.nanos_for(burst) <= u128::from(Span::NANOS_MAX) { burst } else { 1 };
        TokenBucket { pace, burst, excess }
    }
}

/// Asks one after another, each some time after the one before.
fn history() -> impl Strategy<Value = (Timestamp, Vec<(u64, Ask)>)> {
    let pause = prop_oneof![3 => Just(0), 3 => 0..SECOND, 2 => 0..100 * SECOND, 1 => 0..50 * HOUR];
    (any_instant(), prop::collection::vec((pause, any_ask()), 0..40))
}

/// The counter after a history, and the instant of its end.
fn after<A: Law>(limit: &A, history: &(Timestamp, Vec<(u64, Ask)>)) -> (A::Counter, Timestamp) {
    let (mut now, mut counter) = (history.0, A::Counter::default());
    for (pause, ask) in &history.1 {
        now = now.plus(*pause);
        limit.decide(&mut counter, now, *ask);
    }
    (counter, now)
}

fn verdict<A: Law>(limit: &A, counter: &A::Counter, now: Timestamp, ask: Ask) -> Verdict {
    limit.decide(&mut counter.clone(), now, ask).verdict
}

fn remaining<A: Law>(limit: &A, counter: &A::Counter, now: Timestamp) -> u64 {
    limit.decide(&mut counter.clone(), now, Ask::Look).remaining
}

/// The hits of a charge that passed.
fn admitted<R>(decision: &Decision<R>, ask: Ask) -> u64 {
    match ask {
        Ask::Charge(hits) if decision.verdict.passes() => hits,
        Ask::Charge(_) | Ask::Look | Ask::Refund(_) => 0,
    }
}

/// Also not for a caller that comes back at the very instant that its refusal named.
fn never_admits_above_its_bound<A: Law>(limit: A, (start, asks): (Timestamp, Vec<(u64, Ask)>)) {
    if matches!(limit.excess(), Excess::Overdraft(_)) {
        return;
    }
    let (mut now, mut counter) = (start, A::Counter::default());
    let mut admissions: Vec<(Timestamp, u64)> = Vec::new();
    for (pause, ask) in asks {
        if matches!(ask, Ask::Refund(_)) {
            continue;
        }
        now = now.plus(pause);
        let mut decision = limit.decide(&mut counter, now, ask);
        if let Some(wait) = named_wait(&decision.verdict) {
            now = now.plus(wait);
            decision = limit.decide(&mut counter, now, ask);
        }
        admissions.push((now, admitted(&decision, ask)));
        let mut sum = 0_u128;
        for (at, hits) in admissions.iter().rev() {
            sum += u128::from(*hits);
            assert!(sum <= limit.bound(now.nanos_since(*at)), "{sum} from {at:?} to {now:?}");
        }
    }
}

/// The wait that a refusal names, in nanoseconds, if a history has the time for it.
fn named_wait(verdict: &Verdict) -> Option<u64> {
    match verdict {
        Verdict::Refuse { retry_after: Some(wait) } => {
            u64::try_from(wait.as_nanos()).ok().filter(|wait| *wait < 50 * HOUR)
        }
        Verdict::Refuse { retry_after: None } | Verdict::Pass | Verdict::Delay(_) => None,
    }
}

fn a_refusals_wait_is_exact<A: Law>(limit: A, history: (Timestamp, Vec<(u64, Ask)>), hits: u64) {
    let (mut counter, now) = after(&limit, &history);
    let ask = Ask::Charge(hits);
    let Verdict::Refuse { retry_after } = limit.decide(&mut counter, now, ask).verdict else { return };
    match retry_after {
        Some(wait) => {
            let then = now.plus(u64::try_from(wait.as_nanos()).unwrap());
            assert!(verdict(&limit, &counter, then, ask).passes(), "passes after {wait:?}");
            assert!(!verdict(&limit, &counter, then.minus(1), ask).passes(), "not a nanosecond earlier");
        }
        None => {
            let fresh = verdict(&limit, &A::Counter::default(), now, ask).passes();
            assert!(!fresh, "what passes on a fresh counter passes some day");
        }
    }
}

fn remaining_is_what_would_pass<A: Law>(limit: A, history: (Timestamp, Vec<(u64, Ask)>)) {
    let (counter, now) = after(&limit, &history);
    let left = remaining(&limit, &counter, now);
    assert!(left <= limit.allowance());
    if 0 < left {
        assert!(verdict(&limit, &counter, now, Ask::Charge(left)).passes());
    }
    assert_eq!(verdict(&limit, &counter, now, Ask::Look).passes(), 0 < left);
    if let (Some(more), false) =
        (left.checked_add(1), matches!(limit.excess(), Excess::Overdraft(_)) && 0 < left)
    {
        assert!(!verdict(&limit, &counter, now, Ask::Charge(more)).passes());
    }
}

fn a_look_and_a_refusal_change_nothing<A: Law>(limit: A, history: (Timestamp, Vec<(u64, Ask)>), ask: Ask) {
    let (counter, now) = after(&limit, &history);
    let mut looked = counter.clone();
    limit.decide(&mut looked, now, Ask::Look);
    assert_eq!(looked, counter);
    let mut asked = counter.clone();
    let passes = limit.decide(&mut asked, now, ask).verdict.passes();
    if !passes && limit.excess() != Excess::Count {
        assert_eq!(asked, counter);
    }
}

/// A counter that is idle and one that never was answer any further history alike.
fn idle_equals_fresh<A: Law>(limit: A, history: (Timestamp, Vec<(u64, Ask)>), more: Vec<(u64, Ask)>) {
    let (mut counter, now) = after(&limit, &history);
    let idle_at = limit.idle_at(&counter);
    if idle_at == Timestamp::MAX {
        return;
    }
    if now < idle_at {
        let before = idle_at.minus(1).max(now);
        assert!(
            remaining(&limit, &counter, before) < limit.allowance() || limit.allowance() == 0,
            "forgetting it any earlier would free something"
        );
    }
    let (mut fresh, mut now) = (A::Counter::default(), now.max(idle_at));
    for (pause, ask) in more {
        now = now.plus(pause);
        let (one, other) = (limit.decide(&mut counter, now, ask), limit.decide(&mut fresh, now, ask));
        assert_eq!(
            (one.verdict, one.remaining, one.reset_after),
            (other.verdict, other.remaining, other.reset_after)
        );
    }
}

fn time_that_goes_back_frees_nothing<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Ask)>),
    back: u64,
    ask: Ask,
) {
    let (counter, now) = after(&limit, &history);
    let then = now.minus(back);
    assert!(remaining(&limit, &counter, then) <= remaining(&limit, &counter, now));
    // Nor does what is asked in the past free anything afterwards.
    let mut asked = counter.clone();
    limit.decide(&mut asked, then, ask);
    if !matches!(ask, Ask::Refund(_)) {
        assert!(remaining(&limit, &asked, now) <= remaining(&limit, &counter, now));
    }
}

fn a_refund_gives_back_at_most_what_was_taken<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Ask)>),
    hits: u64,
) {
    let (mut counter, now) = after(&limit, &history);
    let before = remaining(&limit, &counter, now);
    let decision = limit.decide(&mut counter, now, Ask::Refund(hits));
    assert_eq!(decision.verdict, Verdict::Pass);
    let given = decision.remaining - before;
    assert!(given <= hits || limit.opens_at_once());
    assert!(decision.remaining <= limit.allowance());
}

/// Charges some of which are taken back leave at least what the others alone would have left counted, and a
/// charge taken back at once leaves no trace.
fn undo_takes_back_one_charge_and_no_more<A: Law>(
    limit: A,
    start: Timestamp,
    asks: Vec<(u64, u64, Option<u64>)>,
) {
    let (mut now, mut counter, mut without) = (start, A::Counter::default(), A::Counter::default());
    let mut receipts: Vec<(usize, A::Receipt)> = Vec::new();
    for (index, (pause, hits, undone_after)) in asks.iter().enumerate() {
        now = now.plus(*pause);
        let before = remaining(&limit, &counter, now);
        let decision = limit.decide(&mut counter, now, Ask::Charge(*hits));
        if let Some(receipt) = decision.receipt {
            let mut undone = counter.clone();
            limit.undo(&mut undone, receipt.clone(), now);
            assert_eq!(remaining(&limit, &undone, now), before, "taken back at once");
            match undone_after {
                Some(after) => receipts.push((index + *after as usize, receipt)),
                None => {
                    limit.decide(&mut without, now, Ask::Charge(*hits));
                }
            }
        } else if decision.verdict.passes() || limit.excess() == Excess::Count {
            limit.decide(&mut without, now, Ask::Charge(*hits));
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

/// What still counts of a charge is taken back, also from another window than it was counted in.
fn undo_takes_back_all_that_still_counts<A: Law>(limit: A, start: Timestamp, hits: [u64; 2], pause: u64) {
    let (mut counter, mut without) = (A::Counter::default(), A::Counter::default());
    let Some(receipt) = limit.decide(&mut counter, start, Ask::Charge(hits[0])).receipt else { return };
    let now = start.plus(pause);
    if limit.undoes_all() {
        if limit.decide(&mut counter, now, Ask::Charge(hits[1])).receipt.is_none() {
            return;
        }
        limit.decide(&mut without, now, Ask::Charge(hits[1]));
    }
    limit.undo(&mut counter, receipt, now);
    assert_eq!(remaining(&limit, &counter, now), remaining(&limit, &without, now));
}

/// What is counted here and elsewhere after a common start adds up, in any order, and frees nothing.
fn absorbing_adds_consumption<A: Law>(
    limit: A,
    history: (Timestamp, Vec<(u64, Ask)>),
    more: Vec<(u64, Ask)>,
    elsewhere: u64,
    later: u64,
) {
    let (base, start) = after(&limit, &history);
    let (mut whole, mut now) = (base.clone(), start);
    for (pause, ask) in more {
        if !matches!(ask, Ask::Refund(_)) {
            now = now.plus(pause);
            limit.decide(&mut whole, now, ask);
        }
    }
    let since = limit.since(&whole, &base, now);
    let mut rebuilt = base.clone();
    limit.absorb(&mut rebuilt, &since, now);
    assert_eq!(
        remaining(&limit, &rebuilt, now),
        remaining(&limit, &whole, now),
        "base and since are the whole"
    );

    let mut other = A::Counter::default();
    limit.decide(&mut other, now, Ask::Charge(elsewhere));
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
        assert!(left <= apart, "never frees, not even later");
    }
}

/// Every law, for one algorithm.
macro_rules! laws {
    ($module:ident, $limit:expr) => {
        mod $module {
            use super::*;

            proptest! {
                #[test]
                fn never_admits_above_its_bound(limit in $limit, history in history()) {
                    super::never_admits_above_its_bound(limit, history);
                }

                #[test]
                fn a_refusals_wait_is_exact(limit in $limit, history in history(), hits in any_hits()) {
                    super::a_refusals_wait_is_exact(limit, history, hits);
                }

                #[test]
                fn remaining_is_what_would_pass(limit in $limit, history in history()) {
                    super::remaining_is_what_would_pass(limit, history);
                }

                #[test]
                fn a_look_and_a_refusal_change_nothing(
                    limit in $limit, history in history(), ask in any_ask(),
                ) {
                    super::a_look_and_a_refusal_change_nothing(limit, history, ask);
                }

                #[test]
                fn idle_equals_fresh(limit in $limit, history in history(), more in history()) {
                    super::idle_equals_fresh(limit, history, more.1);
                }

                #[test]
                fn time_that_goes_back_frees_nothing(
                    limit in $limit, history in history(), back in 0..3 * HOUR, ask in any_ask(),
                ) {
                    super::time_that_goes_back_frees_nothing(limit, history, back, ask);
                }

                #[test]
                fn a_refund_gives_back_at_most_what_was_taken(
                    limit in $limit, history in history(), hits in any_hits(),
                ) {
                    super::a_refund_gives_back_at_most_what_was_taken(limit, history, hits);
                }

                #[test]
                fn undo_takes_back_one_charge_and_no_more(
                    limit in $limit,
                    start in any_instant(),
                    asks in prop::collection::vec(
                        (prop_oneof![Just(0), 0..2 * SECOND], any_hits(), prop::option::of(0..4_u64)),
                        0..30,
                    ),
                ) {
                    super::undo_takes_back_one_charge_and_no_more(limit, start, asks);
                }

                #[test]
                fn undo_takes_back_all_that_still_counts(
                    limit in $limit,
                    start in any_instant(),
                    hits in [any_hits(), any_hits()],
                    pause in prop_oneof![0..2 * SECOND, 0..100 * SECOND, 0..50 * HOUR],
                ) {
                    super::undo_takes_back_all_that_still_counts(limit, start, hits, pause);
                }

                #[test]
                fn absorbing_adds_consumption(
                    limit in $limit, history in history(), more in history(), elsewhere in any_hits(),
                    later in prop_oneof![0..SECOND, 0..100 * SECOND, 0..50 * HOUR],
                ) {
                    super::absorbing_adds_consumption(limit, history, more.1, elsewhere, later);
                }
            }
        }
    };
}

laws!(of_fixed_window, fixed_window());
laws!(of_sliding_window, sliding_window());
laws!(of_sliding_log, sliding_log());
laws!(of_token_bucket, token_bucket());
laws!(of_stepped_bucket, stepped_bucket());
laws!(of_leaky_queue, leaky_queue());

proptest! {
    /// Whatever is taken back meanwhile, those who were told a turn leave one after another and not faster.
    #[test]
    fn turns_of_a_queue_that_were_told_are_kept(
        hits in 1..50_u64,
        burst in 0..50_u64,
        start in any_instant(),
        asks in prop::collection::vec(
            (prop_oneof![2 => Just(0), 1 => 0..SECOND], prop::option::weighted(0.3, 0..4_usize)),
            0..30,
        ),
    ) {
        let pace = Pace::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(SECOND).unwrap());
        let limit = LeakyQueue { pace, burst: Some(burst), max_delay: None, patience: None };
        let (mut now, mut counter) = (start, PaceCounter::default());
        let (mut turns, mut due) = (Vec::new(), Vec::new());
        for (index, (pause, undone_after)) in asks.into_iter().enumerate() {
            now = now.plus(pause);
            let decision = limit.decide(&mut counter, now, Ask::Charge(1));
            let turn = match decision.verdict {
                Verdict::Pass => now,
                Verdict::Delay(delay) => now.plus(u64::try_from(delay.as_nanos()).unwrap()),
                Verdict::Refuse { .. } => continue,
            };
            match (undone_after, decision.receipt) {
                (Some(after), Some(receipt)) => due.push((index + after, receipt)),
                (Some(_) | None, _) => turns.push(turn.as_nanos()),
            }
            for (_, receipt) in due.extract_if(.., |(at, _)| *at <= index) {
                limit.undo(&mut counter, receipt, now);
            }
        }
        for pair in turns.windows(2) {
            // Turns are rounded up to whole nanoseconds.
            prop_assert!(pair[0] + SECOND / hits <= pair[1] + 1, "{:?}", pair);
        }
    }
}
