//! Decides on a packed counter in place: the common case of `update`, without unpacking.

use crate::{
    algorithm::{Algorithm, DebtCounter, Decision, Excess, Limit, Operation, Window, WindowCounter},
    store::packed_counter::{ApproxNumber, PackedCounter, UsedShare},
    time::Timestamp,
};

impl PackedCounter {
    /// The same as [`Self::update`] for a counter in its current window without an overdraft, and for a debt of a
    /// bucket. `None` for any other, which stays unchanged.
    // `inline(always)`: a decision is too large to move.
    #[inline(always)]
    pub(in crate::store) fn decide_in_place(
        &mut self,
        limit: &Limit,
        now: Timestamp,
        operation: Operation,
    ) -> Option<Decision<()>> {
        match (self, limit) {
            (Self::Window { used, count, end }, _) => {
                let Some(Window::Aligned(span)) = limit.window() else { return None };
                // The span is part of the key, so `end` is a window end of this limit: no division is needed.
                let start = end.minus(span.nanos());
                if now < start || *end <= now {
                    return None;
                }
                let before = WindowCounter { start, count: (*count).into() };
                let mut counter = before;
                let decision = match limit {
                    Limit::Classic(limit) => {
                        limit.decide_in_window(&mut counter, before, *end, now, operation).without_receipt()
                    }
                    Limit::FixedWindow(limit) if !matches!(limit.excess, Excess::Overdraft(_)) => {
                        limit.decide_in_window(&mut counter, before, *end, now, operation).without_receipt()
                    }
                    _owing_or_of_another_kind => return None,
                };
                *count = u32::try_from(counter.count).ok()?;
                *used = UsedShare::of(limit, &decision);
                Some(decision)
            }
            (
                Self::Debt { passing_debt_max, rest, paid_at },
                Limit::TokenBucket(bucket) | Limit::LeakyBucket(bucket),
            ) => {
                let mut counter = DebtCounter { paid_at: *paid_at, rest: (*rest).into() };
                let decision = bucket.decide(&mut counter, now, operation).without_receipt();
                *rest = u32::try_from(counter.rest).ok()?;
                *paid_at = counter.paid_at;
                *passing_debt_max = ApproxNumber::of(bucket.passing_debt_max());
                Some(decision)
            }
            _of_another_kind => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Classic, FixedWindow, Rate, TokenBucket};

    proptest! {
        #[test]
        fn decision_in_place_equals_update(
            (kind, overdraft, limit, nanos) in (0..4_u8, any::<bool>(), 0..20_u64, 1_000_000..9_000_000_u64),
            steps in prop::collection::vec((0..3_u8, 0..1_u64 << 33, 0_u32..33, 0..5_000_000_u64), 1..20),
        ) {
            let window = Window::of_nanos(nanos).unwrap();
            let excess = if overdraft { Excess::Overdraft(3) } else { Excess::Refuse };
            let hits = NonZeroU64::new(if overdraft { 1 << 33 } else { 7 }).unwrap();
            let rate = Rate::new(hits, NonZeroU64::new(nanos).unwrap());
            let limit = match kind {
                0 => Limit::Classic(Classic { limit, window }),
                1 => Limit::FixedWindow(FixedWindow { limit, window, excess }),
                2 => Limit::TokenBucket(TokenBucket { rate, burst: limit, excess }),
                _leaky => Limit::LeakyBucket(TokenBucket { rate, burst: limit, excess: Excess::Count }),
            };
            let (mut now, mut counter) = (Timestamp::from_nanos(1 << 60), limit.fresh());
            let decision = limit.decide(&mut counter, now, Operation::Charge(1));
            let mut packed = PackedCounter::new(&limit, counter, &decision);
            for (kind, hits, cut, pass) in steps {
                now = now.plus(pass);
                let operation = [Operation::Peek, Operation::Charge(hits >> cut), Operation::Refund(hits >> cut)][usize::from(kind)];
                let mut in_place = packed.clone();
                let answer = in_place.decide_in_place(&limit, now, operation);
                let before = format!("{packed:?}");
                let decision = packed.update(&limit, |counter| limit.decide(counter, now, operation));
                let expected = if answer.is_some() { format!("{packed:?}") } else { before };
                prop_assert_eq!(format!("{in_place:?}"), expected);
                prop_assert!(answer.is_none_or(|answer| answer == decision.without_receipt()));
            }
        }
    }
}
