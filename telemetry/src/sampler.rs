//! Samples events: the first few of each second pass, the others are counted.

use std::{
    num::NonZeroU16,
    sync::atomic::{AtomicU64, Ordering},
};

/// The low bits of `window`, which count the events taken; 16, so that every `per_second` fits.
const TAKEN_BITS: u32 = 16;

/// Takes the first events of each second over all threads.
#[derive(Debug)]
pub struct Sampler {
    per_second: u64,
    /// The second of the last event taken, and in the low bits the number of events taken in it.
    // Invariant: never decreases, and the low bits never exceed `per_second`.
    window: AtomicU64,
    left_out: AtomicU64,
}

impl Sampler {
    /// A sampler that takes `per_second` events of each second.
    pub fn new(per_second: NonZeroU16) -> Self {
        let per_second = u64::from(per_second.get());
        Self { per_second, window: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether to take an event of `second`: if so, the number of events left out since the last one taken.
    pub fn take(&self, second: u64) -> Option<u64> {
        let next = |window: u64| {
            let taken = window & ((1 << TAKEN_BITS) - 1);
            if window >> TAKEN_BITS < second {
                Some((second << TAKEN_BITS) | 1)
            } else if taken < self.per_second {
                Some(window + 1)
            } else {
                None
            }
        };
        if self.window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
            Some(self.left_out.swap(0, Ordering::Relaxed))
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, thread};

    use super::*;

    fn sample(per_second: u16) -> Sampler {
        Sampler::new(NonZeroU16::new(per_second).unwrap())
    }

    #[test]
    fn first_events_are_taken_and_others_reported_with_the_next() {
        let sample = sample(2);
        let taken = [7, 7, 7, 7, 8, 8, 8, 20].map(|second| sample.take(second));
        assert_eq!(taken, [Some(0), Some(0), None, None, Some(2), Some(0), None, Some(1)]);
    }

    #[test]
    fn event_of_an_earlier_second_counts_in_the_current_one() {
        let sample = sample(2);
        assert_eq!([8, 7, 7].map(|second| sample.take(second)), [Some(0), Some(0), None]);
    }

    #[test]
    fn concurrent_threads_take_the_bound_and_lose_no_count() {
        let sample = sample(1_000);
        let taken = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        taken.fetch_add(usize::from(sample.take(1).is_some()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), 1_000);
        assert_eq!(sample.take(2), Some(39_000));
    }
}
