//! What the tests need of each algorithm: a sample, and the parameters of its laws.

use super::*;

/// What the laws need of an algorithm besides its own functions. A law that an algorithm keeps only in part has a
/// parameter with a default: override it with the reason, never weaken the law for all.
pub(super) trait Law:
    Algorithm<Counter: Clone + PartialEq + std::fmt::Debug, Receipt: Clone> + std::fmt::Debug
{
    /// A fresh counter.
    fn fresh(&self) -> Self::Counter {
        Self::Counter::default()
    }

    /// The most hits that may be admitted between two instants, both included, without overdrafts. This is the promise
    /// of the algorithm in docs/algorithms.md.
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128;

    /// The latest instant until which hits that were charged under a lead of the clock may refuse others after the lead
    /// is given up at `now`, without overdrafts: an allowance that is used up at `now`, plus at most a window.
    fn refilled_at(&self, now: Timestamp) -> Timestamp;

    /// The latest instant until which hits that were counted up to `now` may refuse others if refused hits count too
    /// (`count_denied`), however many there were.
    fn counts_until(&self, now: Timestamp) -> Timestamp {
        self.refilled_at(now)
    }

    /// Hits that may have come back too early because of a charge that was taken back. Not 0 if a charge fixes an
    /// instant that later charges rely on, such as the start of a step.
    fn early(&self) -> u64 {
        0
    }

    /// Whether undo restores the state before the charge. `false` for a debt that time pays: other charges may have been
    /// paid meanwhile, so undo takes back only what surely still counts.
    fn undoes_all(&self) -> bool {
        true
    }

    /// Whether the refund of one hit may make room for several: `true` if a bound on the delay refuses hits that would
    /// otherwise fit.
    fn can_free_several(&self) -> bool {
        false
    }

    /// Whether refusals are remembered beside what is counted. `true` for a limit with a penalty.
    fn remembers_refusals(&self) -> bool {
        false
    }
}

/// What a sample of each algorithm admits.
pub(super) struct Sample {
    /// Hits that pass at once.
    pub(super) allowance: u64,
    /// The time in which they come back, in nanoseconds; a multiple of ten and of `allowance`.
    pub(super) nanos: u64,
}

impl Sample {
    pub(super) fn classic(&self) -> Classic {
        Classic::new(self.allowance, Window::from_nanos(self.nanos).unwrap())
    }

    pub(super) fn fixed_window(&self) -> FixedWindow {
        let window = Window::from_nanos(self.nanos).unwrap();
        FixedWindow { limit: self.allowance, window, excess: Excess::Refuse }
    }

    pub(super) fn sliding_window(&self) -> SlidingWindow {
        let span = Span::from_nanos(self.nanos).unwrap();
        SlidingWindow { limit: self.allowance, span, excess: Excess::Refuse }
    }

    pub(super) fn sliding_log(&self) -> SlidingLog {
        let span = Span::from_nanos(self.nanos).unwrap();
        SlidingLog { limit: self.allowance, span, sub_window: NonZeroU64::MIN, excess: Excess::Refuse }
    }

    pub(super) fn sub_windows(&self) -> SlidingLog {
        SlidingLog { sub_window: NonZeroU64::new(self.nanos / 10).unwrap(), ..self.sliding_log() }
    }

    pub(super) fn token_bucket(&self) -> TokenBucket {
        TokenBucket { rate: self.rate(), burst: self.allowance, excess: Excess::Refuse }
    }

    pub(super) fn stepped_bucket(&self) -> SteppedBucket {
        let interval = NonZeroU64::new(self.nanos / self.allowance).unwrap();
        SteppedBucket { amount: NonZeroU64::MIN, interval, burst: self.allowance, excess: Excess::Refuse }
    }

    pub(super) fn leaky_queue(&self) -> LeakyQueue {
        LeakyQueue { rate: self.rate(), burst: Some(self.allowance - 1), max_delay: None, timeout: None }
    }

    pub(super) fn concurrency(&self) -> Concurrency {
        Concurrency { max_in_flight: self.allowance, hold_max: Span::from_nanos(self.nanos).unwrap() }
    }

    fn rate(&self) -> Rate {
        Rate::new(NonZeroU64::new(self.allowance).unwrap(), NonZeroU64::new(self.nanos).unwrap())
    }
}

impl<E> Law for FixedWindow<E>
where
    Self: Algorithm<Counter = WindowCounter, Receipt = WindowReceipt> + std::fmt::Debug,
{
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        // Not from their starts: the first window of a calendar may have begun before 1970.
        let windows_between = self.window.windows_between(self.window.end(from), self.window.end(to));
        u128::from(self.limit) * (1 + u128::from(windows_between))
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        self.window.end_after(self.window.end(now), 1)
    }

    fn counts_until(&self, now: Timestamp) -> Timestamp {
        self.window.end(now)
    }
}

impl Law for SlidingWindow {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let windows_between = self.span.start(to).nanos_since(self.span.start(from)) / self.span.nanos();
        u128::from(self.limit) * (1 + u128::from(windows_between))
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        self.span.start(now).plus(3 * self.span.nanos())
    }

    fn counts_until(&self, now: Timestamp) -> Timestamp {
        self.span.start(now).plus(2 * self.span.nanos())
    }
}

impl Law for SlidingLog {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        // Hits less than a window minus a sub-window apart never exceed the limit together. Each such span adds one
        // limit.
        let exact = self.span.nanos() - (self.sub_window.get() - 1);
        u128::from(self.limit) * (1 + u128::from(span / exact))
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.plus(self.span.nanos())
    }
}

impl Law for TokenBucket {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        let paid = u128::from(span) * u128::from(self.rate.hits()) / u128::from(self.rate.nanos());
        u128::from(self.burst) + paid + 1
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.after(self.rate.time_for(self.rate.cost(self.burst)))
    }

    // Refused hits owe at most a second burst.
    fn counts_until(&self, now: Timestamp) -> Timestamp {
        now.after(self.rate.time_for(2 * self.rate.cost(self.burst)))
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for SteppedBucket {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        let steps = 1 + u128::from(span / self.interval);
        u128::from(self.burst) + steps * u128::from(self.amount.get())
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.plus(self.interval.get().saturating_mul(self.burst.div_ceil(self.amount.get())))
    }

    // Refused hits owe at most a second burst.
    fn counts_until(&self, now: Timestamp) -> Timestamp {
        let steps = (u128::from(self.burst) * 2).div_ceil(u128::from(self.amount.get()));
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        now.plus(self.interval.get().saturating_mul(steps))
    }

    // The step that the charge opened has passed for later charges, too.
    fn early(&self) -> u64 {
        self.amount.get()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for LeakyQueue {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        let paid = u128::from(span) * u128::from(self.rate.hits()) / u128::from(self.rate.nanos());
        u128::from(self.allowance()) + paid + 1
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.after(self.rate.time_for(self.rate.cost(self.allowance())))
    }

    // Nothing is admitted until the delay is short enough; then everything behind it fits.
    fn can_free_several(&self) -> bool {
        self.max_delay.is_some()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for Concurrency {
    // Places are not freed earlier unless their callers do so.
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        u128::from(self.max_in_flight) * (1 + u128::from(to.nanos_since(from) / self.hold_max.nanos()))
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.plus(self.hold_max.nanos())
    }
}

/// The laws of the limit, except that refusals are remembered.
impl Law for Penalized {
    fn fresh(&self) -> Counter {
        self.limit().fresh()
    }

    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        bound(self.limit(), from, to)
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        each_algorithm!(self.limit(), limit => limit.refilled_at(now)).max(self.forgotten_at(now))
    }

    fn counts_until(&self, now: Timestamp) -> Timestamp {
        each_algorithm!(self.limit(), limit => limit.counts_until(now)).max(self.forgotten_at(now))
    }

    fn early(&self) -> u64 {
        early(self.limit())
    }

    fn undoes_all(&self) -> bool {
        each_algorithm!(self.limit(), limit => limit.undoes_all())
    }

    fn can_free_several(&self) -> bool {
        each_algorithm!(self.limit(), limit => limit.can_free_several())
    }

    fn remembers_refusals(&self) -> bool {
        true
    }
}

impl Penalized {
    /// The latest instant at which a refusal at `now` is forgotten.
    fn forgotten_at(&self, now: Timestamp) -> Timestamp {
        let Penalty { max, forget_after, .. } = self.penalty();
        now.plus(max.nanos().max(forget_after.nanos()))
    }
}

/// `limit` with a penalty: two refusals in a row refuse for a hundredth of `nanos`, then twice as long, at most a
/// tenth. They are forgotten after half of it.
pub fn with_penalty(limit: Limit, nanos: u64) -> Limit {
    let [first, max, forget_after] = [100, 10, 2].map(|part| Span::from_nanos(nanos / part).unwrap());
    Limit::Penalized(Penalized::new(limit, Penalty { after: 2, first, factor: 2, max, forget_after }))
}

/// The most hits that `limit` may admit between two instants, both included: see `Law::bound`.
pub fn bound(limit: &Limit, from: Timestamp, to: Timestamp) -> u128 {
    each_algorithm!(limit, limit => limit.bound(from, to))
}

/// Hits that may come back too early because of a charge that was taken back: see `Law::early`.
pub fn early(limit: &Limit) -> u64 {
    each_algorithm!(limit, limit => limit.early())
}

algorithms! {
    Classic {
        sample: Sample::classic,
        kind: 0,
        encoded: ["000a0080b09dc2df01", "0080b0e2aca9aec7fd1701"],
        any: (any_number(), any_window()).prop_map(|(limit, window)| Classic::new(limit, window)),
        laws: []
    }
    FixedWindow {
        sample: Sample::fixed_window,
        kind: 2,
        encoded: ["010a0080b09dc2df0100", "0080b0e2aca9aec7fd1701"],
        any: (fixed_window(), any_window()).prop_map(|(limit, window)| FixedWindow { window, ..limit }),
        laws: [of_fixed_window: fixed_window(), of_calendar_window: calendar_window()]
    }
    SlidingWindow {
        sample: Sample::sliding_window,
        kind: 4,
        encoded: ["020a80b09dc2df0100", "0180b0e2aca9aec7fd1701"],
        any: sliding_window(),
        laws: [of_sliding_window: sliding_window()]
    }
    SlidingLog {
        sample: Sample::sliding_log,
        kind: 6,
        encoded: ["030a80b09dc2df010100", "028080c5eac9acc7fd1701"],
        any: sliding_log(),
        laws: [of_sliding_log: sliding_log()]
    }
    TokenBucket {
        sample: Sample::token_bucket,
        kind: 7,
        encoded: ["040a80b09dc2df010a00", "038080c5eac9acc7fd170180f8c797e0acc7fd1700"],
        any: token_bucket(),
        laws: [of_token_bucket: token_bucket()]
    }
    SteppedBucket {
        sample: Sample::stepped_bucket,
        kind: 8,
        encoded: ["050180f882ad160a00", "048080c5eac9acc7fd170101"],
        any: stepped_bucket(),
        laws: [of_stepped_bucket: stepped_bucket()]
    }
    // The arithmetic of a token bucket, whose laws stand for both.
    LeakyBucket {
        sample: Sample::token_bucket,
        kind: 9,
        encoded: ["060a80b09dc2df010a00", "038080c5eac9acc7fd170180f8c797e0acc7fd1700"],
        any: token_bucket(),
        laws: []
    }
    LeakyQueue {
        sample: Sample::leaky_queue,
        kind: 10,
        encoded: ["070a80b09dc2df0101090000", "038080c5eac9acc7fd170180f8c797e0acc7fd1700"],
        any: (leaky_queue(), prop::option::of(any_pause().prop_map(Duration::from_nanos)))
            .prop_map(|(queue, timeout)| LeakyQueue { timeout, ..queue }),
        laws: [of_leaky_queue: leaky_queue()]
    }
    Concurrency {
        sample: Sample::concurrency,
        kind: 11,
        encoded: ["080a80b09dc2df01", "028080c5eac9acc7fd1701"],
        any: concurrency(),
        laws: [of_concurrency: concurrency()]
    }
}
