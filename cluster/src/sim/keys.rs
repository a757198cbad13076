//! The keys of the simulation: two for every algorithm. The limits of the first are not reset during a script, so every
//! hit shows; the windows of the second turn and their buckets refill within it. Two more have penalties, which end soon
//! enough for all hits to pass.

use tollgate_counter::{
    algorithm::{
        Limit,
        laws::{every_limit, with_penalty},
    },
    descriptor::Key,
    time::SECOND,
};

use crate::member::MemberId;

/// Hits that a key with a long period allows.
pub(super) const LIMIT: u64 = 60;
/// The length of every long window, and the time in which such a bucket refills: longer than any script.
pub(super) const LONG: u64 = 100 * 86_400 * SECOND;
/// Hits that a key with a short period allows in it.
const SHORT_LIMIT: u64 = 20;
/// The short period.
pub(super) const SHORT: u64 = 2 * SECOND;

/// How many keys have penalties.
const PENALIZED: usize = 2;

/// A key and its limit.
#[derive(Clone, Debug)]
pub(super) struct TestKey {
    pub(super) key: Key,
    pub(super) limit: Limit,
    /// Whether hits come back during a script.
    pub(super) is_short: bool,
}

/// The keys, those with long periods first, in different slots as far as there are enough.
pub(super) fn all() -> Vec<TestKey> {
    let long = every_limit(LIMIT, LONG).into_iter().map(|limit| (limit, false));
    let penalized = every_limit(LIMIT, LONG).into_iter().filter(|limit| !limit.is_classic()).take(PENALIZED);
    let penalized = penalized.map(|limit| (with_penalty(limit, SECOND / 10), false));
    let short = every_limit(SHORT_LIMIT, SHORT).into_iter().map(|limit| (limit, true));
    let test_key = |(number, (limit, is_short))| TestKey { key: key(number), limit, is_short };
    long.chain(penalized).chain(short).enumerate().map(test_key).collect()
}

/// The key with this number.
pub(super) fn key(number: usize) -> Key {
    let high = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Key::from_halves(high, high.rotate_left(17))
}

/// The id of the replica with this number.
pub(super) fn member(number: usize) -> MemberId {
    // The order of the ids differs from the order in which the replicas start.
    MemberId::from_number((number as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03))
}
