//! Any limit, any history: the extremes and what lies between.

use super::*;

pub(super) fn any_instant() -> impl Strategy<Value = Timestamp> {
    // From 1970 to the year 2200, with both ends and the present well covered.
    prop_oneof![
        Just(Timestamp::EPOCH),
        (0..50 * HOUR).prop_map(Timestamp::from_nanos),
        (0..50 * HOUR).prop_map(|nanos| Timestamp::from_nanos(1_790_000_000 * SECOND + nanos)),
        (0..7_258_000_000 * SECOND).prop_map(Timestamp::from_nanos),
    ]
}

pub(super) fn any_hits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..5_u64, 2 => 1..200_u64, 1 => Just(u64::from(u32::MAX)), 1 => any::<u64>()]
}

pub(super) fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        1 => Just(Operation::Peek),
        6 => any_hits().prop_map(Operation::Charge),
        1 => any_hits().prop_map(Operation::Refund),
    ]
}

pub(super) fn any_excess() -> impl Strategy<Value = Excess> {
    prop_oneof![
        3 => Just(Excess::Refuse),
        1 => Just(Excess::Count),
        1 => (0..100_u64).prop_map(Excess::Overdraft),
    ]
}

pub(super) fn any_nanos() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(Span::NANOS_MIN),
        Just(SECOND),
        Just(60 * SECOND),
        Just(86_400 * SECOND),
        Span::NANOS_MIN..100 * SECOND,
        Just(365 * 86_400 * SECOND),
    ]
}

pub(super) fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..20_u64, 2 => 1..2_000_u64, 1 => Just(u64::from(u32::MAX)), 1 => any::<u64>()]
}

prop_compose! {
    pub(super) fn fixed_window()(limit in any_number(), nanos in any_nanos(), excess in any_excess()) -> FixedWindow {
        FixedWindow { limit, window: Window::from_nanos(nanos).unwrap(), excess }
    }
}

prop_compose! {
    pub(super) fn calendar_window()(limit in fixed_window(), calendar in any_calendar()) -> FixedWindow {
        FixedWindow { window: Window::Calendar(calendar), ..limit }
    }
}

prop_compose! {
    pub(super) fn sliding_window()(limit in any_number(), nanos in any_nanos(), excess in any_excess()) -> SlidingWindow {
        SlidingWindow { limit, span: Span::from_nanos(nanos).unwrap(), excess }
    }
}

prop_compose! {
    pub(super) fn sliding_log()(
        limit in any_number(),
        nanos in any_nanos(),
        parts in prop_oneof![2 => Just(None), 1 => (1..100_u64).prop_map(Some)],
        excess in any_excess(),
    ) -> SlidingLog {
        // As many sub-windows as there are, or none: then every nanosecond is its own.
        let (sub_window, nanos) = match parts {
            None => (1, nanos),
            Some(parts) => (nanos / parts, nanos / parts * parts),
        };
        let span = Span::from_nanos(nanos).unwrap_or(Span::from_nanos(Span::NANOS_MIN).unwrap());
        let sub_window = if span.nanos() == nanos { sub_window } else { 1 };
        SlidingLog { limit, span, sub_window: NonZeroU64::new(sub_window).unwrap(), excess }
    }
}

prop_compose! {
    pub(super) fn concurrency()(max_in_flight in any_number(), nanos in any_nanos()) -> Concurrency {
        Concurrency { max_in_flight, hold_max: Span::from_nanos(nanos).unwrap() }
    }
}

prop_compose! {
    pub(super) fn stepped_bucket()(
        amount in any_number().prop_map(|amount| amount.max(1)),
        interval in any_nanos(),
        burst in prop_oneof![0..50_u64, any_number()],
        excess in any_excess(),
    ) -> SteppedBucket {
        let steps = u128::from(burst / amount) * u128::from(interval);
        let burst = if steps < u128::from(Span::NANOS_MAX) { burst } else { amount.min(50) };
        let [amount, interval] = [amount, interval].map(|number| NonZeroU64::new(number).unwrap());
        SteppedBucket { amount, interval, burst, excess }
    }
}

prop_compose! {
    pub(super) fn leaky_queue()(
        hits in any_number().prop_map(|hits| hits.max(1)),
        nanos in any_nanos(),
        burst in prop_oneof![1 => Just(None), 4 => prop_oneof![0..50_u64, any_number()].prop_map(Some)],
        max_delay in prop::option::of((0..100 * SECOND).prop_map(Duration::from_nanos)),
    ) -> LeakyQueue {
        let rate = Rate::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(nanos).unwrap());
        let fits = |burst: &u64| rate.nanos_for(burst.saturating_add(1)) <= u128::from(Span::NANOS_MAX);
        LeakyQueue { rate, burst: burst.map(|burst| Some(burst).filter(fits).unwrap_or(1)), max_delay, timeout: None }
    }
}

prop_compose! {
    // As rules are: the whole burst is back within a hundred years.
    pub(super) fn token_bucket()(
        hits in any_number().prop_map(|hits| hits.max(1)),
        nanos in any_nanos(),
        burst in prop_oneof![0..50_u64, any_number()],
        excess in any_excess(),
    ) -> TokenBucket {
        let rate = Rate::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(nanos).unwrap());
        let burst = if rate.nanos_for(burst) <= u128::from(Span::NANOS_MAX) { burst } else { 1 };
        TokenBucket { rate, burst, excess }
    }
}

/// A time from nothing to two days.
pub(super) fn any_pause() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..SECOND, 0..100 * SECOND, 0..50 * HOUR]
}

/// Asks one after another, each some time after the one before. In some histories long windows end, too.
pub(super) fn history() -> impl Strategy<Value = (Timestamp, Vec<(u64, Operation)>)> {
    let pause = || prop_oneof![3 => Just(0), 3 => 0..SECOND, 2 => 0..100 * SECOND, 1 => 0..50 * HOUR];
    let long_pause = prop_oneof![9 => pause(), 1 => 0..800 * 24 * HOUR];
    let operations = prop_oneof![3 => asks(pause()), 1 => asks(long_pause)];
    (any_instant(), operations)
}

fn asks(pause: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<(u64, Operation)>> {
    prop::collection::vec((pause, any_operation()), 0..40)
}

pub(super) fn any_window() -> impl Strategy<Value = Window> {
    prop_oneof![
        any_nanos().prop_map(|nanos| Window::from_nanos(nanos).unwrap()),
        any_calendar().prop_map(Window::Calendar),
    ]
}

fn any_calendar() -> impl Strategy<Value = Calendar> {
    let unit = prop_oneof![
        Just(CalendarUnit::Day),
        Just(CalendarUnit::Week(jiff::civil::Weekday::Sunday)),
        Just(CalendarUnit::Month),
        Just(CalendarUnit::Year),
    ];
    let zone = prop_oneof![Just("UTC"), Just("Europe/Berlin"), Just("america/new_york")];
    (unit, zone).prop_map(|(unit, zone)| Calendar::new(unit, zone).unwrap())
}

prop_compose! {
    pub(super) fn penalty()(
        after in 1..4_u32,
        factor in 1..4_u32,
        first in any_nanos(),
        longer in [any_pause(), any_pause()],
    ) -> Penalty {
        let max = first + longer[0];
        let [first, max, forget_after] = [first, max, max + longer[1]].map(|nanos| Span::from_nanos(nanos).unwrap());
        Penalty { after, first, factor, max, forget_after }
    }
}

pub(super) fn penalized(limits: impl Strategy<Value = Limit>) -> impl Strategy<Value = Penalized> {
    (limits, penalty()).prop_map(|(limit, penalty)| Penalized::new(limit, penalty))
}

/// A limit without a penalty that lets hits pass at once or later.
pub(super) fn plain_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        fixed_window().prop_map(Limit::FixedWindow).boxed(),
        sliding_window().prop_map(Limit::SlidingWindow).boxed(),
        sliding_log().prop_map(Limit::SlidingLog).boxed(),
        token_bucket().prop_map(Limit::TokenBucket).boxed(),
        stepped_bucket().prop_map(Limit::SteppedBucket).boxed(),
        leaky_queue().prop_map(Limit::LeakyQueue).boxed(),
    ]
}
