//! Which keys exclude each other, which must be given, and which integers are not 0.

use tollgate_counter::algorithm::AlgorithmName;

/// Mutually exclusive keys of `rate_limit`: none of the first list may be combined with any of the second. If the
/// second has `requests_per_unit` or `unit`, the first begins with the key that takes its place.
pub const EXCLUSIVE: &[(&[&str], &[&str])] = &[
    (&["window"], &["unit", "unit_multiplier"]),
    (&["calendar"], &["window", "unit_multiplier"]),
    (&["refill_amount", "refill_interval"], &["requests_per_unit", "unit", "unit_multiplier", "window"]),
    (&["max_in_flight", "hold_max"], &["requests_per_unit", "unit", "unit_multiplier", "window", "lease"]),
    (&["penalty"], &["lease"]),
    (&["quotas"], &["sub_windows", "count_denied", "overdraft", "penalty"]),
];

/// Keys of `rate_limit`, `penalty` and items of `quotas` whose integer is at least 1, whatever the other keys are.
pub(crate) const AT_LEAST_ONE: [&str; 7] =
    ["unit_multiplier", "refill_amount", "max_in_flight", "after", "factor", "weight", "floor"];

/// Keys without which a `penalty` is refused.
pub(crate) const REQUIRED_IN_PENALTY: [&str; 2] = ["after", "first"];

/// Keys of `rate_limit` without which a rule of their algorithm is refused.
pub(crate) const REQUIRED: [(AlgorithmName, &str); 1] = [(AlgorithmName::Concurrency, "max_in_flight")];

/// Keys of `rate_limit` that a `candidate` cannot have.
pub const NOT_IN_CANDIDATE: [&str; 10] = [
    "name",
    "replaces",
    "unlimited",
    "on_owner_unavailable",
    "lease",
    "headers",
    "quota_unit",
    "quotas",
    "denial_body",
    "candidate",
];

/// The keys that say how much passes: `requests_per_unit`, and of the algorithms that have another one, that.
pub(crate) fn amounts() -> impl Iterator<Item = &'static str> {
    in_place_of("requests_per_unit")
}

/// The keys that say in which time: `unit`, and those that take its place.
pub(crate) fn periods() -> impl Iterator<Item = &'static str> {
    in_place_of("unit")
}

/// `key`, and the first key of each list that excludes it.
fn in_place_of(key: &'static str) -> impl Iterator<Item = &'static str> {
    let in_its_place = EXCLUSIVE.iter().filter(move |(_, others)| others.contains(&key));
    [key].into_iter().chain(in_its_place.filter_map(|(ones, _)| ones.first().copied()))
}
