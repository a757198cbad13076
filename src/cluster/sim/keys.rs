//! What the simulation asks for: a key for every algorithm, whose limit is not reset while it runs.

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

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) key: Key,
    pub(super) limit: Limit,
}

/// One key for every algorithm, in slots of their own as far as there are enough.
pub(super) fn all() -> Vec<Asked> {
    let key = |number: usize| {
        let high = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Key::from_halves(high, high.rotate_left(17))
    };
    let limits = limits();
    let asked = |(number, limit)| Asked { key: key(number), limit };
    limits.into_iter().enumerate().map(asked).collect()
}

fn limits() -> Vec<Limit> {
    let (limit, excess) = (LIMIT, Excess::Refuse);
    let number = |number| NonZeroU64::new(number).expect("a number that is not 0");
    let window = Window::of_nanos(LONG).expect("a length that a window may have");
    let span = Span::of_nanos(LONG).expect("a length that a window may have");
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

/// The identity of the replica of this number.
pub(super) fn member(number: usize) -> MemberId {
    // Not in the order in which they start.
    MemberId::from_number((number as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03))
}
