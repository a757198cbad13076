//! Worked examples: the known behaviour of each algorithm, in numbers.

use std::{num::NonZeroU64, time::Duration};

use crate::{algorithm::*, time::timestamp::SECOND};

mod buckets;
mod every_algorithm;
mod windows;

const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;

/// 02:00 UTC on an arbitrary day.
const TWO: Timestamp = Timestamp::from_nanos(20_000 * DAY + 2 * 60 * MINUTE);

fn at(seconds: u64) -> Timestamp {
    TWO.plus(seconds * SECOND)
}

fn classic(limit: u64, nanos: u64) -> Classic {
    Classic::new(limit, Window::from_nanos(nanos).unwrap())
}

fn fixed_window(limit: u64, nanos: u64) -> FixedWindow {
    FixedWindow { limit, window: Window::from_nanos(nanos).unwrap(), excess: Excess::Refuse }
}

fn token_bucket(hits: u64, nanos: u64, burst: u64) -> TokenBucket {
    let rate = Rate::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(nanos).unwrap());
    TokenBucket { rate, burst, excess: Excess::Refuse }
}

fn stepped_bucket(amount: u64, interval: u64, burst: u64) -> SteppedBucket {
    let [amount, interval] = [amount, interval].map(|number| NonZeroU64::new(number).unwrap());
    SteppedBucket { amount, interval, burst, excess: Excess::Refuse }
}

fn leaky_queue(hits: u64, nanos: u64, burst: u64) -> LeakyQueue {
    let rate = token_bucket(hits, nanos, 0).rate;
    LeakyQueue { rate, burst: Some(burst), max_delay: None, timeout: None }
}

fn sliding_window(limit: u64, nanos: u64) -> SlidingWindow {
    SlidingWindow { limit, span: Span::from_nanos(nanos).unwrap(), excess: Excess::Refuse }
}

fn sliding_log(limit: u64, nanos: u64, sub_window: u64) -> SlidingLog {
    let (span, sub_window) = (Span::from_nanos(nanos).unwrap(), NonZeroU64::new(sub_window).unwrap());
    SlidingLog { limit, span, sub_window, excess: Excess::Refuse }
}

/// Every named algorithm, each with an allowance of ten hits in a minute.
fn ten_each() -> impl Iterator<Item = Limit> {
    laws::every_limit(10, MINUTE).into_iter().filter(|limit| !limit.is_classic())
}

/// The number of single hits that pass at `now`, of `asked` attempts.
fn passed<A: Algorithm>(limit: &A, counter: &mut A::Counter, now: Timestamp, asked: u64) -> u64 {
    let hits = (0..asked).map(|_| limit.decide(counter, now, Operation::Charge(1)).verdict.passes());
    hits.map(u64::from).sum()
}
