//! The table of all keys: where each is allowed, what it takes, and with which algorithms, and what it means. All
//! messages about keys and the JSON Schema of rule files are derived from it.

use tollgate_counter::algorithm::AlgorithmName;

use crate::{group::NetworkGroup, yaml::quote};

mod key;

pub use key::{AppliesTo, KeySection, RuleKey, Takes};

/// All keys.
pub const KEYS: &[RuleKey] = &[
    key("domain", KeySection::Root, Takes::Required, "The domain of requests to which the rules apply."),
    key(
        "descriptors",
        KeySection::Root,
        Takes::List(KeySection::Descriptor),
        "The first level of the tree of rules.",
    ),
    key(
        "on_denied",
        KeySection::Root,
        Takes::OnDenied,
        "Whether a refused call charges those of its rules that would have passed.",
    ),
    key(
        "denial_body",
        KeySection::Root,
        Takes::DenialBody,
        "The body of refusals by rules of the domain that have no other one.",
    ),
    key("key", KeySection::Descriptor, Takes::Required, "The key of the entry."),
    key(
        "value",
        KeySection::Descriptor,
        Takes::Text,
        "The value of the entry, or a pattern with `*`, or a network. Without it, any value matches.",
    ),
    key(
        "match",
        KeySection::Descriptor,
        Takes::Match,
        "With `cidr` the value is a network, which matches the addresses in it.",
    ),
    key(
        "group",
        KeySection::Descriptor,
        Takes::Mapping(KeySection::Group),
        "Counts all addresses of a network as one key.",
    ),
    key(
        "rate_limit",
        KeySection::Descriptor,
        Takes::Mapping(KeySection::RateLimit),
        "The limit of calls that match this descriptor.",
    ),
    key(
        "descriptors",
        KeySection::Descriptor,
        Takes::List(KeySection::Descriptor),
        "The next level of the tree of rules.",
    ),
    key(
        "shadow_mode",
        KeySection::Descriptor,
        Takes::Boolean,
        "The rule counts and reports, but lets pass what it would refuse.",
    ),
    key(
        "quota_mode",
        KeySection::Descriptor,
        Takes::Boolean,
        "Rules with this key refuse a call only if all of them refuse.",
    ),
    key(
        "detailed_metric",
        KeySection::Descriptor,
        Takes::Boolean,
        "The rule's name in metrics shows the value of every entry.",
    ),
    key(
        "value_to_metric",
        KeySection::Descriptor,
        Takes::Boolean,
        "The rule's name in metrics shows the value of this entry.",
    ),
    key(
        "share_threshold",
        KeySection::Descriptor,
        Takes::Boolean,
        "All values that match this pattern or network share one counter.",
    ),
    key(
        "metadata",
        KeySection::Descriptor,
        Takes::Anything,
        "Returned in the dynamic metadata of the answer if the rule passes.",
    ),
    limit(
        "requests_per_unit",
        Takes::Integer,
        AppliesTo::Any,
        "How many hits pass in a unit or window. 0 lets nothing pass.",
    ),
    limit("unlimited", Takes::Boolean, AppliesTo::Any, "Everything passes and nothing is counted."),
    limit("name", Takes::Text, AppliesTo::Any, "The name of the limit, for `replaces` and in answers."),
    limit(
        "replaces",
        Takes::List(KeySection::Replaced),
        AppliesTo::Any,
        "The limits that are ignored if they match in the same call as this rule.",
    ),
    limit(
        "unit",
        Takes::Unit,
        AppliesTo::Limited,
        "The window. Units are counted from 1970-01-01 00:00 UTC, or are those of `calendar`.",
    ),
    limit("unit_multiplier", Takes::Integer, AppliesTo::Limited, "The number of units in a window."),
    limit(
        "window",
        Takes::Text,
        AppliesTo::Limited,
        "The window by its length, as in `90s`, `250ms` or `1h 30m`.",
    ),
    limit("algorithm", Takes::Algorithm, AppliesTo::Limited, "How requests are decided."),
    limit(
        "calendar",
        Takes::Mapping(KeySection::Calendar),
        AppliesTo::ClassicOr(&[AlgorithmName::FixedWindow]),
        "Makes the unit that of the calendar in a time zone.",
    ),
    limit(
        "sub_windows",
        Takes::Integer,
        AppliesTo::Only(&[AlgorithmName::SlidingWindow]),
        "The number of parts of the window that are counted separately.",
    ),
    limit(
        "burst",
        Takes::Integer,
        AppliesTo::Only(&[AlgorithmName::TokenBucket, AlgorithmName::LeakyBucket, AlgorithmName::LeakyQueue]),
        "How many requests a full token bucket lets pass, a leaky bucket takes in, or a queue lets wait.",
    ),
    limit(
        "refill_amount",
        Takes::Integer,
        AppliesTo::Only(&[AlgorithmName::TokenBucket]),
        "How many tokens are refilled at once.",
    ),
    limit(
        "refill_interval",
        Takes::Text,
        AppliesTo::Only(&[AlgorithmName::TokenBucket]),
        "The time between two refills, as in `500ms`.",
    ),
    limit(
        "max_delay",
        Takes::Text,
        AppliesTo::Only(&[AlgorithmName::LeakyQueue]),
        "The longest that a request waits. A request whose turn is later is refused.",
    ),
    limit(
        "max_in_flight",
        Takes::Integer,
        AppliesTo::Only(&[AlgorithmName::Concurrency]),
        "How many calls may be in flight.",
    ),
    limit(
        "hold_max",
        Takes::Text,
        AppliesTo::Only(&[AlgorithmName::Concurrency]),
        "The time after which a place that was not freed is free again.",
    ),
    limit("count_denied", Takes::Boolean, AppliesTo::Only(WITH_EXCESS), "Refused requests count too."),
    limit(
        "overdraft",
        Takes::Boolean,
        AppliesTo::Only(WITH_EXCESS),
        "A request that is larger than what is left passes and leaves a debt.",
    ),
    limit("overdraft_limit", Takes::Integer, AppliesTo::Only(WITH_EXCESS), "The largest debt."),
    limit(
        "penalty",
        Takes::Mapping(KeySection::Penalty),
        AppliesTo::Named,
        "Refuses a key that was refused too often in a row, for longer each time.",
    ),
    limit(
        "on_owner_unavailable",
        Takes::OnOwnerUnavailable,
        AppliesTo::Limited,
        "How a request is decided if the owner of its counter cannot be reached.",
    ),
    limit(
        "lease",
        Takes::Boolean,
        AppliesTo::Limited,
        "Whether the owner may lend a part of what is left to another replica.",
    ),
    limit(
        "headers",
        Takes::Boolean,
        AppliesTo::Limited,
        "Whether response headers and bodies of refusals show the limit.",
    ),
    limit(
        "quota_unit",
        Takes::Text,
        AppliesTo::Limited,
        "What the limit counts, for the header `RateLimit-Policy`, as in `requests` or `tokens`.",
    ),
    limit(
        "quotas",
        Takes::List(KeySection::Quota),
        AppliesTo::ClassicOr(&[
            AlgorithmName::FixedWindow,
            AlgorithmName::SlidingWindow,
            AlgorithmName::TokenBucket,
            AlgorithmName::LeakyBucket,
        ]),
        "How the limit is divided over the buckets of the rate limit quota service.",
    ),
    limit("denial_body", Takes::DenialBody, AppliesTo::Limited, "The body of refusals by this limit."),
    limit(
        "own",
        Takes::Mapping(KeySection::Own),
        AppliesTo::Limited,
        "The numbers that a key may have in place of those of the rule, each up to its `max`.",
    ),
    limit(
        "candidate",
        Takes::Candidate,
        AppliesTo::Any,
        "A limit that is evaluated beside this one and decides nothing.",
    ),
    key("name", KeySection::Replaced, Takes::Required, "The name of the limit that is replaced."),
    key(
        "timezone",
        KeySection::Calendar,
        Takes::Required,
        "The name of a time zone in the IANA database, as in `Europe/Berlin`.",
    ),
    key("week_start", KeySection::Calendar, Takes::Weekday, "The day on which a week begins."),
    key(
        "from",
        KeySection::Own,
        Takes::LimitSource,
        "Where the limits of keys are read: `source` for the store that the settings `limits.*` name.",
    ),
    key(
        "requests_per_unit",
        KeySection::Own,
        Takes::Mapping(KeySection::OwnBound),
        "Whether a key may have its own `requests_per_unit`.",
    ),
    key(
        "burst",
        KeySection::Own,
        Takes::Mapping(KeySection::OwnBound),
        "Whether a key may have its own `burst`.",
    ),
    key(
        "refill_amount",
        KeySection::Own,
        Takes::Mapping(KeySection::OwnBound),
        "Whether a key may have its own `refill_amount`.",
    ),
    key(
        "max_in_flight",
        KeySection::Own,
        Takes::Mapping(KeySection::OwnBound),
        "Whether a key may have its own `max_in_flight`.",
    ),
    key(
        "overdraft_limit",
        KeySection::Own,
        Takes::Mapping(KeySection::OwnBound),
        "Whether a key may have its own `overdraft_limit`.",
    ),
    key(
        "unlimited",
        KeySection::Own,
        Takes::Boolean,
        "Whether a key may be without a limit. Its hits are counted.",
    ),
    key("max", KeySection::OwnBound, Takes::Integer, "The largest number that a key may have."),
    key("key", KeySection::Quota, Takes::Required, "The key of a pair of a bucket."),
    key("value", KeySection::Quota, Takes::Required, "The value of the pair."),
    key(
        "weight",
        KeySection::Quota,
        Takes::Integer,
        "The weight of each bucket with the pair, from 1 to 1000; 1 by default.",
    ),
    key(
        "floor",
        KeySection::Quota,
        Takes::Integer,
        "Hits a second of a rate, or hits of a budget, that each bucket with the pair has at least.",
    ),
    key("text", KeySection::DenialBody, Takes::Text, "The text of the body, with variables in braces."),
    key(
        "json",
        KeySection::DenialBody,
        Takes::Json,
        "The body as JSON, whose texts may have variables in braces.",
    ),
    key(
        "content_type",
        KeySection::DenialBody,
        Takes::Text,
        "The content type, if it is not `text/plain` or `application/json`.",
    ),
    key(
        "ipv4",
        KeySection::Group,
        Takes::PrefixLength(NetworkGroup::EACH.ipv4),
        "The prefix length of the IPv4 networks that are counted as one key.",
    ),
    key(
        "ipv6",
        KeySection::Group,
        Takes::PrefixLength(NetworkGroup::EACH.ipv6),
        "The prefix length of the IPv6 networks that are counted as one key.",
    ),
    key(
        "after",
        KeySection::Penalty,
        Takes::Integer,
        "The refusals in a row, with no pass between, after which a penalty begins.",
    ),
    key("first", KeySection::Penalty, Takes::Text, "The length of the first penalty, as in `2m`."),
    key(
        "factor",
        KeySection::Penalty,
        Takes::Integer,
        "Each penalty is this many times as long as the one before; 2 by default.",
    ),
    key("max", KeySection::Penalty, Takes::Text, "The greatest length of a penalty; `1h` by default."),
    key(
        "forget_after",
        KeySection::Penalty,
        Takes::Text,
        "How long after the last refusal all refusals and penalties are forgotten; `24h` by default.",
    ),
    key(
        "overlay",
        KeySection::Overlay,
        Takes::List(KeySection::OverlayDomain),
        "The domains to which the overlay adds.",
    ),
    key("domain", KeySection::OverlayDomain, Takes::Required, "The domain of the control plane."),
    key(
        "on_denied",
        KeySection::OverlayDomain,
        Takes::OnDenied,
        "Whether a refused call charges those of its rules that would have passed.",
    ),
    key(
        "denial_body",
        KeySection::OverlayDomain,
        Takes::DenialBody,
        "The body of refusals by rules of the domain that have no other one.",
    ),
    key(
        "rules",
        KeySection::OverlayDomain,
        Takes::List(KeySection::OverlayRule),
        "The rules to which the overlay adds.",
    ),
    key(
        "match",
        KeySection::OverlayRule,
        Takes::Path,
        "The path of a rule: a list of keys, or of keys with values.",
    ),
    key(
        "rate_limit",
        KeySection::OverlayRule,
        Takes::Mapping(KeySection::RateLimit),
        "The keys that the overlay adds to the limit.",
    ),
    key(
        "group",
        KeySection::OverlayRule,
        Takes::Mapping(KeySection::Group),
        "Counts all addresses of a network as one key, for the last descriptor of the path.",
    ),
    key(
        "metadata",
        KeySection::OverlayRule,
        Takes::Anything,
        "Returned in the dynamic metadata of the answer if the rule passes.",
    ),
];

/// The algorithms that can count denied hits and owe some. A queue and a concurrency limit either have room or have
/// not.
const WITH_EXCESS: &[AlgorithmName] = &[
    AlgorithmName::FixedWindow,
    AlgorithmName::SlidingWindow,
    AlgorithmName::SlidingLog,
    AlgorithmName::TokenBucket,
    AlgorithmName::LeakyBucket,
];

const fn key(name: &'static str, section: KeySection, takes: Takes, help: &'static str) -> RuleKey {
    RuleKey { name, section, takes, applies_to: AppliesTo::Any, help }
}

const fn limit(name: &'static str, takes: Takes, applies_to: AppliesTo, help: &'static str) -> RuleKey {
    RuleKey { name, section: KeySection::RateLimit, takes, applies_to, help }
}

/// The key with this name in `section`.
pub(crate) fn find(name: &str, section: KeySection) -> Option<&'static RuleKey> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

/// The key of `section` that `name` is but for case and separators, as in `rateLimit`.
pub(crate) fn find_misspelt(name: &str, section: KeySection) -> Option<&'static RuleKey> {
    let letters = |text: &'_ str| {
        let letters = text.chars().filter(|letter| !matches!(letter, '_' | '-'));
        letters.map(|letter| letter.to_ascii_lowercase()).collect::<String>()
    };
    let written = letters(name);
    KEYS.iter().find(|key| key.section == section && letters(key.name) == written)
}

/// The message for a key that is not allowed in `section`.
pub(crate) fn misplaced_key(name: &str, section: KeySection) -> String {
    let quoted = quote(name);
    let known = || KEYS.iter().filter(|key| section.is_of_overlay() || !key.section.is_of_overlay());
    // The numbers of `own` are those of `rate_limit`.
    let is_of_own =
        |key: &RuleKey| key.section == KeySection::Own && find(name, KeySection::RateLimit).is_some();
    let is_place = |key: &&RuleKey| key.name == name && !is_of_own(key);
    let sections: Vec<_> = known().filter(is_place).map(|key| key.section.described()).collect();
    if !sections.is_empty() {
        return format!(
            "{quoted} does not belong {}; it belongs {}",
            section.described(),
            sections.join(" or ")
        );
    }
    let here: Vec<_> = KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
    match nearest(name, known().map(|key| key.name)) {
        Some(near) if here.contains(&near) => format!("unknown key {quoted}; did you mean `{near}`?"),
        Some(near) => {
            let sections = misplaced_key(near, section);
            format!("unknown key {quoted}; did you mean `{near}`? But {sections}")
        }
        None => format!("unknown key {quoted}; allowed {} are {}", section.described(), quoted_list(here)),
    }
}

/// The end of a message about a misspelt `word`: what it most likely means, if anything.
pub(crate) fn hint<'c>(word: &str, candidates: impl Iterator<Item = &'c str> + Clone) -> String {
    nearest(word, candidates).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

/// The candidate that a misspelt `word` most likely means.
pub fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str> + Clone) -> Option<&'c str> {
    const LENGTH_MAX: usize = 64;
    const SIMILARITY_MIN: f64 = 0.6;
    const ABBREVIATION_MIN: usize = 3;
    if word.len() > LENGTH_MAX {
        return None;
    }
    let word = word.to_lowercase().replace('-', "_");
    let mut longer = candidates.clone().filter(|candidate| candidate.starts_with(&word));
    if let (Some(only), None) = (longer.next().filter(|_| word.len() >= ABBREVIATION_MIN), longer.next()) {
        return Some(only);
    }
    let similarity = |candidate: &'c str| {
        (strsim::normalized_damerau_levenshtein(&word, &candidate.to_lowercase()), candidate)
    };
    let best = candidates.map(similarity).reduce(|best, next| if best.0 < next.0 { next } else { best })?;
    (best.0 >= SIMILARITY_MIN).then_some(best.1)
}

/// Quoted names for a message.
pub(crate) fn quoted_list<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

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
pub(crate) const AT_LEAST_ONE: [&str; 8] =
    ["unit_multiplier", "refill_amount", "max_in_flight", "after", "factor", "weight", "floor", "max"];

/// Keys without which a `penalty` is refused.
pub(crate) const REQUIRED_IN_PENALTY: [&str; 2] = ["after", "first"];

/// Keys of `rate_limit` without which a rule of their algorithm is refused.
pub(crate) const REQUIRED: [(AlgorithmName, &str); 1] = [(AlgorithmName::Concurrency, "max_in_flight")];

/// Keys of `rate_limit` that a `candidate` cannot have.
pub const NOT_IN_CANDIDATE: [&str; 11] = [
    "name",
    "replaces",
    "unlimited",
    "on_owner_unavailable",
    "lease",
    "headers",
    "quota_unit",
    "quotas",
    "denial_body",
    "own",
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
