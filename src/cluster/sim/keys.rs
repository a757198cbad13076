//! The keys of the simulation: one for every algorithm, with limits that are not reset during a script.

use std::num::NonZeroU64;

use crate::{
    algorithm::{
        Classic, Excess, FixedWindow, LeakyQueue, Limit, Rate, SlidingLog, SlidingWindow, Span,
        SteppedBucket, TokenBucket, Window,
    },
    cluster::MemberId,
    descriptor::Key,
    time::SECOND,
};

/// Hits that every key allows.
pub(super) const LIMIT: u64 = 60;
/// The length of every window, and the time in which a bucket regains a hit: longer than any script.
const LONG: u64 = 100 * 86_400 * SECOND;

/// A key and its limit.
#[derive(Clone, Debug)]
pub(super) struct TestKey {
    pub(super) key: Key,
    pub(super) limit: Limit,
}

/// One key for every algorithm, in different slots as far as there are enough.
pub(super) fn all() -> Vec<TestKey> {
    let key = |number: usize| {
        let high = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Key::from_halves(high, high.rotate_left(17))
    };
    let limits = limits();
    let test_key = |(number, limit)| TestKey { key: key(number), limit };
    limits.into_iter().enumerate().map(test_key).collect()
}

fn limits() -> Vec<Limit> {
    let (limit, excess) = (LIMIT, Excess::Refuse);
    let number = |number| NonZeroU64::new(number).expect("not 0");
    let window = Window::of_nanos(LONG).expect("a valid window length");
    let span = Span::of_nanos(LONG).expect("a valid window length");
    let pace = Rate::new(number(1), number(LONG / 1_000));
    let bucket = TokenBucket { rate: pace, burst: LIMIT, excess };
    vec![
        Limit::Classic(Classic { limit, window: window.clone() }),
        Limit::FixedWindow(FixedWindow { limit, window, excess }),
        Limit::SlidingWindow(SlidingWindow { limit, span, excess }),
        Limit::SlidingLog(SlidingLog { limit, span, grain: number(1), excess }),
        Limit::SubWindows(SlidingLog { limit, span, grain: number(LONG / 10), excess }),
        Limit::TokenBucket(bucket),
        Limit::SteppedBucket(SteppedBucket {
            amount: number(1),
            interval: number(LONG / 1_000),
            burst: LIMIT,
            excess,
        }),
        Limit::LeakyBucket(bucket),
        Limit::LeakyQueue(LeakyQueue { rate: pace, burst: Some(LIMIT - 1), max_delay: None, timeout: None }),
    ]
}

/// The id of the replica with this number.
pub(super) fn member(number: usize) -> MemberId {
    // The order of the ids differs from the order in which the replicas start.
    MemberId::from_number((number as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03))
}
