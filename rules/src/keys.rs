//! The table of all keys: where each is allowed, what it takes, and with which algorithms, and what it means. All
//! messages about keys and the JSON Schema of rule files are derived from it.

use jiff::civil::Weekday;
use tollgate_counter::{algorithm::AlgorithmName, named};

use crate::{Unit, group::NetworkGroup, yaml::quote};

named! {
    /// Which descriptors of a refused call are charged, of those that would have passed, with its name in rule files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnDenied {
        /// All descriptors that would have passed, as envoyproxy/ratelimit does.
        ChargeAll = "charge_all",
        /// No descriptor.
        ChargeNone = "charge_none",
    }
}

named! {
    /// The decision for a request whose owner cannot be reached, with its name in rule files.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnOwnerUnavailable {
        /// The local replica admits its share of the limit.
        #[default]
        LocalShare = "local_share",
        /// The request passes without being counted.
        Allow = "allow",
        /// The request is refused.
        Deny = "deny",
    }
}

/// The values of `unit`.
const UNITS: [&str; 7] = names(Unit::NAMED);
/// The values of `week_start`.
pub(crate) const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// A key of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleKey {
    /// The name in rule files.
    pub name: &'static str,
    /// The section in which the key is allowed.
    pub section: KeySection,
    /// The values that the key takes.
    pub takes: Takes,
    /// The rules to which the key applies; `Any` outside `rate_limit`.
    pub applies_to: AppliesTo,
    /// What the key means, as a sentence.
    pub help: &'static str,
}

/// The rules to which a key of `rate_limit` applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliesTo {
    /// Any rule, including unlimited ones.
    Any,
    /// Any rule with a limit.
    Limited,
    /// Rules with an algorithm.
    Named,
    /// Rules without an algorithm or with one of these.
    ClassicOr(&'static [AlgorithmName]),
    /// Rules with one of these algorithms.
    Only(&'static [AlgorithmName]),
}

/// The values that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A text that must be given and not be empty.
    Required,
    /// A text.
    Text,
    /// An integer from this one to 2^64 - 1. Smaller ones are refused where the key is interpreted.
    Integer(u64),
    /// An integer from 1 to this number of bits of an address.
    PrefixLength(u8),
    /// `true` or `false`.
    Boolean,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// The name of a unit, in any case.
    Unit,
    /// A mapping with any content.
    Anything,
    /// Any value.
    Json,
    /// The body of refusals: one of these texts, or a mapping.
    DenialBody(&'static [&'static str]),
    /// A mapping.
    Mapping(KeySection),
    /// A limit on trial: a mapping without some keys.
    Candidate,
    /// A list of mappings.
    List(KeySection),
    /// The path of a rule in an overlay: a list of keys, or of keys with values.
    Path,
}

impl Takes {
    /// Whether the value is read as text, of which some have only certain ones.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Required | Self::Text) || !self.choices().is_empty()
    }

    /// The texts of which the value is one, if there are only some.
    pub(crate) fn choices(self) -> &'static [&'static str] {
        match self {
            Self::Choice(names) | Self::DenialBody(names) => names,
            Self::Unit => &UNITS,
            Self::Required
            | Self::Text
            | Self::Integer(_)
            | Self::PrefixLength(_)
            | Self::Boolean
            | Self::Anything
            | Self::Json
            | Self::Mapping(_)
            | Self::Candidate
            | Self::List(_)
            | Self::Path => &[],
        }
    }

    /// Whether the value is an integer.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Self::Integer(_) | Self::PrefixLength(_))
    }

    /// Whether the value is a list.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::List(_) | Self::Path)
    }
}

impl KeySection {
    /// Whether the section is part of overlay files only.
    pub(crate) fn is_of_overlay(self) -> bool {
        matches!(self, Self::Overlay | Self::OverlayDomain | Self::OverlayRule)
    }
}

/// The names of values.
const fn names<T: Copy, const N: usize>(named: [(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut index = 0;
    while index < N {
        names[index] = named[index].0;
        index += 1;
    }
    names
}

/// Defines the sections with their texts in messages, as in "`domain` belongs at the root of the document", and the keys
/// of each with their values and, after `if`, the rules to which they apply if not to any.
macro_rules! keys {
    (@rules) => { AppliesTo::Any };
    (@rules $rules:ident) => { AppliesTo::$rules };
    (@rules $rules:ident [$($algorithm:ident),*]) => { AppliesTo::$rules(&[$(AlgorithmName::$algorithm),*]) };
    ($($(#[$of_section:meta])* $section:ident = $described:literal {
        $($(#[doc = $help:literal])+ $name:literal:
            $takes:ident $(($of:expr))? $(if $rules:ident $([$($algorithm:ident),*])?)?,)*
    })*) => {
        /// A kind of mapping in a rule file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum KeySection {
            $($(#[$of_section])* $section,)*
        }

        impl KeySection {
            /// The section in words, for messages such as "`domain` belongs at the root of the document".
            pub fn described(self) -> &'static str {
                match self {
                    $(Self::$section => $described,)*
                }
            }
        }

        /// All keys.
        pub const KEYS: &[RuleKey] = &[$($(RuleKey {
            name: $name,
            section: KeySection::$section,
            takes: Takes::$takes $(($of))?,
            applies_to: keys!(@rules $($rules $([$($algorithm),*])?)?),
            help: concat!($($help),+).trim_ascii_start(),
        },)*)*];
    };
}

keys! {
    /// A document.
    Root = "at the root of the document" {
        /// The domain of requests to which the rules apply.
        "domain": Required,
        /// The first level of the tree of rules.
        "descriptors": List(KeySection::Descriptor),
        /// Whether a refused call charges those of its rules that would have passed.
        "on_denied": Choice(&names(OnDenied::NAMED)),
        /// The body of refusals by rules of the domain that have no other one.
        "denial_body": DenialBody(&["off", "problem"]),
    }
    /// An item of `descriptors`.
    Descriptor = "in a descriptor" {
        /// The key of the entry.
        "key": Required,
        /// The value of the entry, or a pattern with `*`, or a network. Without it, any value matches.
        "value": Text,
        /// With `cidr` the value is a network, which matches the addresses in it.
        "match": Choice(&["cidr"]),
        /// Counts all addresses of a network as one key.
        "group": Mapping(KeySection::Group),
        /// The limit of calls that match this descriptor.
        "rate_limit": Mapping(KeySection::RateLimit),
        /// The next level of the tree of rules.
        "descriptors": List(KeySection::Descriptor),
        /// The rule counts and reports, but lets pass what it would refuse.
        "shadow_mode": Boolean,
        /// Rules with this key refuse a call only if all of them refuse.
        "quota_mode": Boolean,
        /// The rule's name in metrics shows the value of every entry.
        "detailed_metric": Boolean,
        /// The rule's name in metrics shows the value of this entry.
        "value_to_metric": Boolean,
        /// All values that match this pattern or network share one counter.
        "share_threshold": Boolean,
        /// Returned in the dynamic metadata of the answer if the rule passes.
        "metadata": Anything,
    }
    /// The value of `rate_limit`.
    RateLimit = "in `rate_limit`" {
        /// How many hits pass in a unit or window. 0 lets nothing pass.
        "requests_per_unit": Integer(0),
        /// Everything passes and nothing is counted.
        "unlimited": Boolean,
        /// The name of the limit, for `replaces` and in answers.
        "name": Text,
        /// The limits that are ignored if they match in the same call as this rule.
        "replaces": List(KeySection::Replaced),
        /// The window. Units are counted from 1970-01-01 00:00 UTC, or are those of `calendar`.
        "unit": Unit if Limited,
        /// The number of units in a window.
        "unit_multiplier": Integer(1) if Limited,
        /// The window by its length, as in `90s`, `250ms` or `1h 30m`.
        "window": Text if Limited,
        /// How requests are decided.
        "algorithm": Choice(&names(AlgorithmName::NAMED)) if Limited,
        /// Makes the unit that of the calendar in a time zone.
        "calendar": Mapping(KeySection::Calendar) if ClassicOr[FixedWindow],
        /// The number of parts of the window that are counted separately.
        "sub_windows": Integer(0) if Only[SlidingWindow],
        /// How many requests a full token bucket lets pass, a leaky bucket takes in, or a queue lets wait.
        "burst": Integer(0) if Only[TokenBucket, LeakyBucket, LeakyQueue],
        /// How many tokens are refilled at once.
        "refill_amount": Integer(1) if Only[TokenBucket],
        /// The time between two refills, as in `500ms`.
        "refill_interval": Text if Only[TokenBucket],
        /// The longest that a request waits. A request whose turn is later is refused.
        "max_delay": Text if Only[LeakyQueue],
        /// How many calls may be in flight.
        "max_in_flight": Integer(1) if Only[Concurrency],
        /// The time after which a place that was not freed is free again.
        "hold_max": Text if Only[Concurrency],
        // A queue and a concurrency limit either have room or have not, so they count no denied hits and owe none.
        /// Refused requests count too.
        "count_denied": Boolean if Only[FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket],
        /// A request that is larger than what is left passes and leaves a debt.
        "overdraft": Boolean if Only[FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket],
        /// The largest debt.
        "overdraft_limit": Integer(0) if Only[FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket],
        /// Refuses a key that was refused too often in a row, for longer each time.
        "penalty": Mapping(KeySection::Penalty) if Named,
        /// How a request is decided if the owner of its counter cannot be reached.
        "on_owner_unavailable": Choice(&names(OnOwnerUnavailable::NAMED)) if Limited,
        /// Whether the owner may lend a part of what is left to another replica.
        "lease": Boolean if Limited,
        /// Whether response headers and bodies of refusals show the limit.
        "headers": Boolean if Limited,
        /// What the limit counts, for the header `RateLimit-Policy`, as in `requests` or `tokens`.
        "quota_unit": Text if Limited,
        /// How the limit is divided over the buckets of the rate limit quota service.
        "quotas": List(KeySection::Quota) if ClassicOr[FixedWindow, SlidingWindow, TokenBucket, LeakyBucket],
        /// The body of refusals by this limit.
        "denial_body": DenialBody(&["off", "problem"]) if Limited,
        /// The numbers that a key may have in place of those of the rule, each up to its `max`.
        "own": Mapping(KeySection::Own) if Limited,
        /// A limit that is evaluated beside this one and decides nothing.
        "candidate": Candidate,
    }
    /// An item of `replaces`.
    Replaced = "in an item of `replaces`" {
        /// The name of the limit that is replaced.
        "name": Required,
    }
    /// The value of `calendar`.
    Calendar = "in `calendar`" {
        /// The name of a time zone in the IANA database, as in `Europe/Berlin`.
        "timezone": Required,
        /// The day on which a week begins.
        "week_start": Choice(&names(WEEKDAYS)),
    }
    /// The value of `own`.
    Own = "in `own`" {
        /// Where the limits of keys are read: `source` for the store that the settings `limits.*` name.
        "from": Choice(&["source"]),
        /// Whether a key may have its own `requests_per_unit`.
        "requests_per_unit": Mapping(KeySection::OwnBound),
        /// Whether a key may have its own `burst`.
        "burst": Mapping(KeySection::OwnBound),
        /// Whether a key may have its own `refill_amount`.
        "refill_amount": Mapping(KeySection::OwnBound),
        /// Whether a key may have its own `max_in_flight`.
        "max_in_flight": Mapping(KeySection::OwnBound),
        /// Whether a key may have its own `overdraft_limit`.
        "overdraft_limit": Mapping(KeySection::OwnBound),
        /// Whether a key may be without a limit. Its hits are counted.
        "unlimited": Boolean,
    }
    /// A number in it.
    OwnBound = "in a number of `own`" {
        /// The largest number that a key may have.
        "max": Integer(1),
    }
    /// An item of `quotas`.
    Quota = "in an item of `quotas`" {
        /// The key of a pair of a bucket.
        "key": Required,
        /// The value of the pair.
        "value": Required,
        /// The weight of each bucket with the pair, from 1 to 1000; 1 by default.
        "weight": Integer(1),
        /// Hits a second of a rate, or hits of a budget, that each bucket with the pair has at least.
        "floor": Integer(1),
    }
    /// The value of `denial_body`.
    DenialBody = "in `denial_body`" {
        /// The text of the body, with variables in braces.
        "text": Text,
        /// The body as JSON, whose texts may have variables in braces.
        "json": Json,
        /// The content type, if it is not `text/plain` or `application/json`.
        "content_type": Text,
    }
    /// The value of `group`.
    Group = "in `group`" {
        /// The prefix length of the IPv4 networks that are counted as one key.
        "ipv4": PrefixLength(NetworkGroup::EACH.ipv4),
        /// The prefix length of the IPv6 networks that are counted as one key.
        "ipv6": PrefixLength(NetworkGroup::EACH.ipv6),
    }
    /// The value of `penalty`.
    Penalty = "in `penalty`" {
        /// The refusals in a row, with no pass between, after which a penalty begins.
        "after": Integer(1),
        /// The length of the first penalty, as in `2m`.
        "first": Text,
        /// Each penalty is this many times as long as the one before; 2 by default.
        "factor": Integer(1),
        /// The greatest length of a penalty; `1h` by default.
        "max": Text,
        /// How long after the last refusal all refusals and penalties are forgotten; `24h` by default.
        "forget_after": Text,
    }
    /// The document of an overlay file.
    Overlay = "at the root of the overlay" {
        /// The domains to which the overlay adds.
        "overlay": List(KeySection::OverlayDomain),
    }
    /// An item of `overlay`.
    OverlayDomain = "in an item of `overlay`" {
        /// The domain of the control plane.
        "domain": Required,
        /// Whether a refused call charges those of its rules that would have passed.
        "on_denied": Choice(&names(OnDenied::NAMED)),
        /// The body of refusals by rules of the domain that have no other one.
        "denial_body": DenialBody(&["off", "problem"]),
        /// The rules to which the overlay adds.
        "rules": List(KeySection::OverlayRule),
    }
    /// An item of `rules` in it.
    OverlayRule = "in an item of `rules`" {
        /// The path of a rule: a list of keys, or of keys with values.
        "match": Path,
        /// The keys that the overlay adds to the limit.
        "rate_limit": Mapping(KeySection::RateLimit),
        /// Counts all addresses of a network as one key, for the last descriptor of the path.
        "group": Mapping(KeySection::Group),
        /// Returned in the dynamic metadata of the answer if the rule passes.
        "metadata": Anything,
    }
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
