//! The table of all keys: where each is allowed and with which algorithms. All messages about keys are derived from
//! it.

/// A kind of mapping in a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
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

impl Section {
    /// The section in words, for messages such as "`domain` belongs at the root of the document".
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

/// The name of an algorithm in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmName {
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

impl AlgorithmName {
    /// All algorithms.
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::LeakyQueue,
    ];

    /// The name in rule files.
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

/// The rules to which a key of `rate_limit` applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliesTo {
    /// Any rule, including unlimited ones.
    Any,
    /// Any rule with a limit.
    Limited,
    /// Rules without an algorithm or with one of these.
    ClassicOr(&'static [AlgorithmName]),
    /// Rules with one of these algorithms.
    Only(&'static [AlgorithmName]),
}

/// A key of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name in rule files.
    pub name: &'static str,
    /// The section in which the key is allowed.
    pub section: Section,
    /// The rules to which the key applies; `Any` outside `rate_limit`.
    pub applies_to: AppliesTo,
}

/// All keys.
pub const KEYS: &[Key] = &[
    key("domain", Section::Root),
    key("descriptors", Section::Root),
    key("on_denied", Section::Root),
    key("key", Section::Descriptor),
    key("value", Section::Descriptor),
    key("rate_limit", Section::Descriptor),
    key("descriptors", Section::Descriptor),
    key("shadow_mode", Section::Descriptor),
    key("quota_mode", Section::Descriptor),
    key("detailed_metric", Section::Descriptor),
    key("value_to_metric", Section::Descriptor),
    key("share_threshold", Section::Descriptor),
    key("metadata", Section::Descriptor),
    limit("requests_per_unit", AppliesTo::Any),
    limit("unlimited", AppliesTo::Any),
    limit("name", AppliesTo::Any),
    limit("replaces", AppliesTo::Any),
    limit("unit", AppliesTo::Limited),
    limit("unit_multiplier", AppliesTo::Limited),
    limit("window", AppliesTo::Limited),
    limit("algorithm", AppliesTo::Limited),
    limit("calendar", AppliesTo::ClassicOr(&[AlgorithmName::FixedWindow])),
    limit("sub_windows", AppliesTo::Only(&[AlgorithmName::SlidingWindow])),
    limit(
        "burst",
        AppliesTo::Only(&[AlgorithmName::TokenBucket, AlgorithmName::LeakyBucket, AlgorithmName::LeakyQueue]),
    ),
    limit("refill_amount", AppliesTo::Only(&[AlgorithmName::TokenBucket])),
    limit("refill_interval", AppliesTo::Only(&[AlgorithmName::TokenBucket])),
    limit("max_delay", AppliesTo::Only(&[AlgorithmName::LeakyQueue])),
    limit("count_denied", AppliesTo::Only(WITHOUT_DELAY)),
    limit("overdraft", AppliesTo::Only(WITHOUT_DELAY)),
    limit("overdraft_limit", AppliesTo::Only(WITHOUT_DELAY)),
    limit("on_owner_unavailable", AppliesTo::Limited),
    limit("lease", AppliesTo::Limited),
    limit("candidate", AppliesTo::Any),
    key("name", Section::Replaced),
    key("timezone", Section::Calendar),
    key("week_start", Section::Calendar),
];

/// The algorithms that never delay a request. A queue either has room or has not: it can neither count denied hits
/// nor owe any.
const WITHOUT_DELAY: &[AlgorithmName] = &[
    AlgorithmName::FixedWindow,
    AlgorithmName::SlidingWindow,
    AlgorithmName::SlidingLog,
    AlgorithmName::TokenBucket,
    AlgorithmName::LeakyBucket,
];

/// Mutually exclusive keys of `rate_limit`: none of the first list may be combined with any of the second.
pub const EXCLUSIVE: &[(&[&str], &[&str])] = &[
    (&["window"], &["unit", "unit_multiplier"]),
    (&["calendar"], &["window", "unit_multiplier"]),
    (&["refill_amount", "refill_interval"], &["requests_per_unit", "unit", "unit_multiplier", "window"]),
];

const fn key(name: &'static str, section: Section) -> Key {
    Key { name, section, applies_to: AppliesTo::Any }
}

const fn limit(name: &'static str, applies_to: AppliesTo) -> Key {
    Key { name, section: Section::RateLimit, applies_to }
}

/// The key with this name in `section`.
pub(crate) fn find(name: &str, section: Section) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

/// The message for a key that is not allowed in `section`.
pub(crate) fn misplaced_key(name: &str, section: Section) -> String {
    let quoted = crate::yaml::quote(name);
    let sections: Vec<_> =
        KEYS.iter().filter(|key| key.name == name).map(|key| key.section.described()).collect();
    if !sections.is_empty() {
        return format!(
            "{quoted} does not belong {}; it belongs {}",
            section.described(),
            sections.join(" or ")
        );
    }
    let here: Vec<_> = KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
    match nearest(name, KEYS.iter().map(|key| key.name)) {
        Some(near) if here.contains(&near) => format!("unknown key {quoted}; did you mean `{near}`?"),
        Some(near) => {
            let sections = misplaced_key(near, section);
            format!("unknown key {quoted}; did you mean `{near}`? But {sections}")
        }
        None => format!("unknown key {quoted}; allowed {} are {}", section.described(), quoted_list(here)),
    }
}

/// The candidate that a misspelt `word` most likely means.
pub(crate) fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    const LENGTH_MAX: usize = 64;
    const SIMILARITY_MIN: f64 = 0.6;
    if word.len() > LENGTH_MAX {
        return None;
    }
    let word = word.to_lowercase().replace('-', "_");
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
