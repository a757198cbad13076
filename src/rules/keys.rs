//! Which key may stand where, and with which algorithm: the one table behind every message about keys.

/// A kind of mapping in a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A document.
    Root,
    /// An item of `descriptors`.
    Descriptor,
    /// The value of `rate_limit`.
    RateLimit,
    /// An item of `replaces`.
    Replaced,
    /// The value of `calendar`.
    Calendar,
}

impl Level {
    /// Where it is, for a message: "`domain` belongs at the root of the document".
    pub fn described(self) -> &'static str {
        match self {
            Self::Root => "at the root of the document",
            Self::Descriptor => "in a descriptor",
            Self::RateLimit => "in `rate_limit`",
            Self::Replaced => "in an item of `replaces`",
            Self::Calendar => "in `calendar`",
        }
    }
}

/// An algorithm that a rule may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// `fixed_window`
    FixedWindow,
    /// `sliding_window`
    SlidingWindow,
    /// `sliding_log`
    SlidingLog,
    /// `token_bucket`
    TokenBucket,
    /// `leaky_bucket`
    LeakyBucket,
    /// `leaky_queue`
    LeakyQueue,
}

impl Named {
    /// All there are.
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::LeakyQueue,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::LeakyQueue => "leaky_queue",
        }
    }
}

/// Which rules a key of `rate_limit` goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Any rule, an unlimited one too.
    Any,
    /// Any rule that limits.
    Limited,
    /// Those that name no algorithm, or one of these.
    ClassicOr(&'static [Named]),
    /// Those that name one of these.
    Only(&'static [Named]),
}

/// A key that may stand in a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// Where it belongs.
    pub level: Level,
    /// Which rules it goes with. Keys outside `rate_limit` go with any.
    pub goes_with: Use,
}

/// All keys, each with where it belongs.
pub const KEYS: &[Key] = &[
    key("domain", Level::Root),
    key("descriptors", Level::Root),
    key("on_denied", Level::Root),
    key("key", Level::Descriptor),
    key("value", Level::Descriptor),
    key("rate_limit", Level::Descriptor),
    key("descriptors", Level::Descriptor),
    key("shadow_mode", Level::Descriptor),
    key("quota_mode", Level::Descriptor),
    key("detailed_metric", Level::Descriptor),
    key("value_to_metric", Level::Descriptor),
    key("share_threshold", Level::Descriptor),
    key("metadata", Level::Descriptor),
    limit("requests_per_unit", Use::Any),
    limit("unlimited", Use::Any),
    limit("name", Use::Any),
    limit("replaces", Use::Any),
    limit("unit", Use::Limited),
    limit("unit_multiplier", Use::Limited),
    limit("window", Use::Limited),
    limit("algorithm", Use::Limited),
    limit("calendar", Use::ClassicOr(&[Named::FixedWindow])),
    limit("sub_windows", Use::Only(&[Named::SlidingWindow])),
    limit("burst", Use::Only(&[Named::TokenBucket, Named::LeakyBucket, Named::LeakyQueue])),
    limit("refill_amount", Use::Only(&[Named::TokenBucket])),
    limit("refill_interval", Use::Only(&[Named::TokenBucket])),
    limit("max_delay", Use::Only(&[Named::LeakyQueue])),
    limit("count_denied", Use::Only(ANSWERED_AT_ONCE)),
    limit("overdraft", Use::Only(ANSWERED_AT_ONCE)),
    limit("overdraft_limit", Use::Only(ANSWERED_AT_ONCE)),
    limit("on_owner_unavailable", Use::Limited),
    limit("lease", Use::Limited),
    limit("candidate", Use::Any),
    key("name", Level::Replaced),
    key("timezone", Level::Calendar),
    key("week_start", Level::Calendar),
];

/// Those that never keep a request waiting. In a queue everyone has a place or none: there is nothing to count or
/// to owe beyond it.
const ANSWERED_AT_ONCE: &[Named] =
    &[Named::FixedWindow, Named::SlidingWindow, Named::SlidingLog, Named::TokenBucket, Named::LeakyBucket];

/// Keys of `rate_limit` that say the same in two ways: none of the first stands with any of the second.
pub const APART: &[(&[&str], &[&str])] = &[
    (&["window"], &["unit", "unit_multiplier"]),
    (&["calendar"], &["window", "unit_multiplier"]),
    (&["refill_amount", "refill_interval"], &["requests_per_unit", "unit", "unit_multiplier", "window"]),
];

const fn key(name: &'static str, level: Level) -> Key {
    Key { name, level, goes_with: Use::Any }
}

const fn limit(name: &'static str, goes_with: Use) -> Key {
    Key { name, level: Level::RateLimit, goes_with }
}

/// The key of that name at that level.
pub(crate) fn find(name: &str, level: Level) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.level == level && key.name == name)
}

/// What is wrong with a key that `level` does not know, and what is allowed.
pub(crate) fn stray(name: &str, level: Level) -> String {
    let shown = crate::yaml::quote(name);
    let places: Vec<_> =
        KEYS.iter().filter(|key| key.name == name).map(|key| key.level.described()).collect();
    if !places.is_empty() {
        return format!("{shown} does not belong {}; it belongs {}", level.described(), places.join(" or "));
    }
    let here: Vec<_> = KEYS.iter().filter(|key| key.level == level).map(|key| key.name).collect();
    match nearest(name, KEYS.iter().map(|key| key.name)) {
        Some(near) if here.contains(&near) => format!("unknown key {shown}; did you mean `{near}`?"),
        Some(near) => {
            let places = stray(near, level);
            format!("unknown key {shown}; did you mean `{near}`? But {places}")
        }
        None => format!("unknown key {shown}; allowed {} are {}", level.described(), list(here)),
    }
}

/// The candidate that a misspelt `word` most likely stands for.
pub(crate) fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    const LENGTH_MAX: usize = 64;
    const LIKENESS_MIN: f64 = 0.6;
    if LENGTH_MAX < word.len() {
        return None;
    }
    let word = word.to_lowercase().replace('-', "_");
    let likeness = |candidate: &'c str| {
        (strsim::normalized_damerau_levenshtein(&word, &candidate.to_lowercase()), candidate)
    };
    let best = candidates.map(likeness).reduce(|best, next| if best.0 < next.0 { next } else { best })?;
    (LIKENESS_MIN <= best.0).then_some(best.1)
}

/// Names in backquotes, for a message.
pub(crate) fn list<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
