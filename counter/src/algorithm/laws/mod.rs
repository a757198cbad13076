//! Properties that every named algorithm keeps; samples and generated limits of every algorithm for other tests.

use std::{num::NonZeroU64, time::Duration};

use proptest::prelude::*;

use crate::{algorithm::*, time::timestamp::SECOND};

mod law;
mod penalties;
mod repeat;
mod serialization;
mod strategies;

use strategies::*;
use subject::{ENCODED, KINDS, Law, variant};
pub use subject::{any_limit, bound, early, every_limit, with_penalty};

const HOUR: u64 = 3_600 * SECOND;

/// The algorithms: for each variant of [`Limit`] a sample, the number of its kind, its encoding and that of the receipt
/// of one hit, a strategy, and modules of its laws, each with a strategy.
macro_rules! algorithms {
    ($($variant:ident {
        sample: $sample:expr, kind: $kind:literal, encoded: [$limit:literal, $receipt:literal], any: $any:expr,
        laws: [$($module:ident: $limits:expr),*] $(,)?
    })*) => {
        /// A limit of every variant: `allowance` hits pass at once and come back in `nanos`.
        pub fn every_limit(allowance: u64, nanos: u64) -> Vec<Limit> {
            let of = Sample { allowance, nanos };
            let mut limits = vec![$(Limit::$variant($sample(&of))),*];
            limits.push(Limit::SlidingLog(of.sub_windows()));
            limits
        }

        /// Any limit of any variant, some with a penalty.
        pub fn any_limit() -> BoxedStrategy<Limit> {
            // Boxed: together the strategies are large for a stack.
            let plain = || prop_oneof![$($any.prop_map(Limit::$variant).boxed()),*].boxed();
            prop_oneof![8 => plain(), 1 => penalized(plain()).prop_map(Limit::Penalized)].boxed()
        }

        /// The name of the variant. The match is exhaustive, so no variant is missing above.
        pub(super) fn variant(limit: &Limit) -> &'static str {
            match limit {
                $(Limit::$variant(_) => stringify!($variant),)*
                Limit::Penalized(_) => "Penalized",
            }
        }

        /// Of each variant: its name, the encoding of a sample of ten hits a minute, and that of a receipt.
        pub(super) const ENCODED: &[(&str, &str, &str)] = &[$((stringify!($variant), $limit, $receipt)),*];

        /// Of each variant: its name, and the number of its kind. The number is part of keys, which outlive versions.
        pub(super) const KINDS: &[(&str, u8)] = &[$((stringify!($variant), $kind)),*];

        $($(laws!($module, $limits);)*)*
    };
}

/// All laws, for one algorithm.
macro_rules! laws {
    ($module:ident, $limit:expr) => {
        mod $module {
            use super::*;

            proptest! {
                #[test]
                fn never_admits_above_its_bound(limit in $limit, history in history()) {
                    law::never_admits_above_its_bound(limit, history);
                }

                #[test]
                fn retry_after_of_refusal_is_exact(limit in $limit, history in history(), hits in any_hits()) {
                    law::retry_after_of_refusal_is_exact(limit, history, hits);
                }

                #[test]
                fn remaining_equals_what_would_pass(limit in $limit, history in history()) {
                    law::remaining_equals_what_would_pass(limit, history);
                }

                #[test]
                fn peek_and_refusal_change_nothing(
                    limit in $limit, history in history(), operation in any_operation(),
                ) {
                    law::peek_and_refusal_change_nothing(limit, history, operation);
                }

                #[test]
                fn idle_equals_fresh(limit in $limit, history in history(), more in history()) {
                    law::idle_equals_fresh(limit, history, more.1);
                }

                #[test]
                fn time_that_goes_back_frees_nothing(
                    limit in $limit, history in history(), back in 0..3 * HOUR, operation in any_operation(),
                ) {
                    law::time_that_goes_back_frees_nothing(limit, history, back, operation);
                }

                #[test]
                fn lead_given_up_frees_nothing_and_refuses_at_most_a_window(
                    limit in $limit, history in history(),
                    lead in any_pause(),
                    pauses in [any_pause(), any_pause()],
                ) {
                    law::lead_given_up_frees_nothing_and_refuses_at_most_a_window(limit, history, lead, pauses);
                }

                #[test]
                fn counter_without_lead_is_not_clamped(
                    limit in $limit, history in history(), pauses in [any_pause(), any_pause()],
                ) {
                    law::counter_without_lead_is_not_clamped(limit, history, pauses);
                }

                #[test]
                fn refund_gives_back_at_most_what_was_charged(
                    limit in $limit, history in history(), hits in any_hits(),
                ) {
                    law::refund_gives_back_at_most_what_was_charged(limit, history, hits);
                }

                #[test]
                fn undo_takes_back_one_charge_and_no_more(
                    limit in $limit,
                    start in any_instant(),
                    operations in prop::collection::vec(
                        (prop_oneof![Just(0), 0..2 * SECOND], any_hits(), prop::option::of(0..4_u64)),
                        0..30,
                    ),
                ) {
                    law::undo_takes_back_one_charge_and_no_more(limit, start, operations);
                }

                #[test]
                fn undo_takes_back_all_that_still_counts(
                    limit in $limit,
                    start in any_instant(),
                    hits in [any_hits(), any_hits()],
                    pause in prop_oneof![0..2 * SECOND, 0..100 * SECOND, 0..50 * HOUR],
                ) {
                    law::undo_takes_back_all_that_still_counts(limit, start, hits, pause);
                }

                #[test]
                fn absorbing_adds_consumption(
                    limit in $limit, history in history(), more in history(), remote in any_hits(),
                    later in prop_oneof![0..SECOND, 0..100 * SECOND, 0..50 * HOUR],
                ) {
                    law::absorbing_adds_consumption(limit, history, more.1, remote, later);
                }

                #[test]
                fn hits_charged_at_an_instant_count_like_a_charge(
                    limit in $limit, history in history(), hits in any_hits(),
                    later in prop_oneof![0..SECOND, 0..100 * SECOND, 0..50 * HOUR],
                ) {
                    law::hits_charged_at_an_instant_count_like_a_charge(limit, history, hits, later);
                }

                #[test]
                fn counted_refusals_refuse_for_a_bounded_time(limit in $limit, history in history()) {
                    law::counted_refusals_refuse_for_a_bounded_time(limit, history);
                }
            }
        }
    };
}

// After the macros that it uses.
mod subject;

laws!(of_penalized_limit, penalized(plain_limit()));

#[test]
fn full_log_sum_of_64_bits_absorbs_newer_entries() {
    let span = Span::from_nanos(63_194_397_563).unwrap();
    let limit = SlidingLog { limit: 1, span, sub_window: NonZeroU64::MIN, excess: Excess::Count };
    let counted =
        [14_645_823_269_385_218_074, 3_800_920_804_324_333_541].map(|hits| (0, Operation::Charge(hits)));
    for before in 0..=2 {
        let history = (Timestamp::EPOCH, counted[..before].to_vec());
        let more = [&counted[before..], &[(1, Operation::Peek)]].concat();
        law::absorbing_adds_consumption(limit.clone(), history, more, 1, span.nanos() - 1);
    }
}

/// What a concurrency limit promises, place by place: the instants at which places were taken, oldest first.
struct Places<'l> {
    limit: &'l Concurrency,
    taken: Vec<Timestamp>,
}

impl Places<'_> {
    /// Answers `operation`, and returns whether it passes and how many places are free.
    fn decide(&mut self, now: Timestamp, operation: Operation) -> (bool, u64) {
        self.taken.retain(|taken| now < taken.plus(self.limit.hold_max.nanos()));
        let free = self.limit.max_in_flight - self.taken.len() as u64;
        let passes = match operation {
            Operation::Peek => free > 0,
            Operation::Charge(places) => {
                let passes = places <= free;
                self.taken.extend((0..if passes { places } else { 0 }).map(|_| now));
                passes
            }
            Operation::Refund(places) => {
                self.taken.drain(..self.taken.len().min(usize::try_from(places).unwrap_or(usize::MAX)));
                true
            }
        };
        (passes, self.limit.max_in_flight - self.taken.len() as u64)
    }
}

proptest! {
    /// Windows begin where others end, and as many lie between two ends as there are steps.
    #[test]
    fn windows_follow_each_other_without_gap(
        window in any_window(), now in any_instant(), windows in 0..40_u64,
    ) {
        let (start, first) = (window.start(now), window.end(now));
        prop_assert!(start <= now && now < first);
        let (mut begun, mut end) = (start, first);
        for passed in 0..=windows {
            prop_assert_eq!((window.start(begun), window.start(end.minus(1))), (begun, begun));
            prop_assert_eq!(window.end_after(first, passed), end);
            prop_assert_eq!(window.windows_between(first, end), passed);
            prop_assert!(end.nanos_since(begun) <= window.nanos_max());
            (begun, end) = (end, window.end(end));
        }
    }

    /// A charge of n takes n places or none, a refund frees the oldest ones, and each place is freed exactly
    /// `hold_max` after it was taken.
    #[test]
    fn concurrency_limit_keeps_its_places(
        max_in_flight in 1..20_u64,
        start in any_instant(),
        operations in prop::collection::vec(
            (prop_oneof![2 => Just(0), 2 => 0..3 * SECOND, 1 => Just(10 * SECOND)], any_operation()),
            0..60,
        ),
    ) {
        let limit = Concurrency { max_in_flight, hold_max: Span::from_nanos(10 * SECOND).unwrap() };
        let (mut now, mut counter) = (start, LogCounter::default());
        let mut places = Places { limit: &limit, taken: Vec::new() };
        for (pause, operation) in operations {
            now = now.plus(pause);
            let decision = limit.decide(&mut counter, now, operation);
            let expected = places.decide(now, operation);
            prop_assert_eq!((decision.verdict.passes(), decision.remaining), expected);
            prop_assert!(places.taken.len() as u64 <= max_in_flight);
            if let Some(oldest) = places.taken.first() {
                let freed = oldest.plus(limit.hold_max.nanos());
                let left = |at| limit.decide(&mut counter.clone(), at, Operation::Peek).remaining;
                prop_assert!(left(freed.minus(1)) == decision.remaining && left(freed) > decision.remaining);
            }
        }
    }

    /// Admitted hits leave the queue at its rate and no faster, whatever is taken back meanwhile.
    #[test]
    fn announced_queue_delays_are_kept(
        hits in 1..50_u64,
        burst in 0..50_u64,
        start in any_instant(),
        operations in prop::collection::vec(
            (prop_oneof![2 => Just(0), 1 => 0..SECOND], prop::option::weighted(0.3, 0..4_usize)),
            0..30,
        ),
    ) {
        let rate = Rate::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(SECOND).unwrap());
        let limit = LeakyQueue { rate, burst: Some(burst), max_delay: None, timeout: None };
        let (mut now, mut counter) = (start, DebtCounter::default());
        let (mut windows_between, mut due) = (Vec::new(), Vec::new());
        for (index, (pause, undone_after)) in operations.into_iter().enumerate() {
            now = now.plus(pause);
            let decision = limit.decide(&mut counter, now, Operation::Charge(1));
            let advance = match decision.verdict {
                Verdict::Pass => now,
                Verdict::Delay(delay) => now.plus(u64::try_from(delay.as_nanos()).unwrap()),
                Verdict::Refuse { .. } => continue,
            };
            match (undone_after, decision.receipt) {
                (Some(after), Some(receipt)) => due.push((index + after, receipt)),
                (Some(_) | None, _) => windows_between.push(advance.as_nanos()),
            }
            for (_, receipt) in due.extract_if(.., |(at, _)| *at <= index) {
                limit.undo(&mut counter, receipt, now);
            }
        }
        for pair in windows_between.windows(2) {
            // Delays are rounded up to whole nanoseconds.
            prop_assert!(pair[0] + SECOND / hits <= pair[1] + 1, "{:?}", pair);
        }
    }
}
