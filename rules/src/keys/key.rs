//! A key of a rule file: its section, the values that it takes, and the rules to which it applies.

use tollgate_counter::algorithm::AlgorithmName;

/// A key of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleKey {
    /// The name in rule files.
    pub name: &'static str,
    /// The section in which the key is allowed.
    pub section: KeySection,
    /// The values that it takes.
    pub takes: Takes,
    /// The rules to which the key applies; `Any` outside `rate_limit`.
    pub applies_to: AppliesTo,
    /// What the key means, as a sentence.
    pub help: &'static str,
}

/// A kind of mapping in a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySection {
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
    /// The value of `group`.
    Group,
    /// The value of `penalty`.
    Penalty,
    /// An item of `quotas`.
    Quota,
    /// The value of `own`.
    Own,
    /// A number in it.
    OwnBound,
    /// The value of `denial_body`.
    DenialBody,
    /// The document of an overlay file.
    Overlay,
    /// An item of `overlay`.
    OverlayDomain,
    /// An item of `rules` in it.
    OverlayRule,
}

impl KeySection {
    /// The section in words, for messages such as "`domain` belongs at the root of the document".
    pub fn described(self) -> &'static str {
        match self {
            Self::Root => "at the root of the document",
            Self::Descriptor => "in a descriptor",
            Self::RateLimit => "in `rate_limit`",
            Self::Replaced => "in an item of `replaces`",
            Self::Calendar => "in `calendar`",
            Self::Group => "in `group`",
            Self::Penalty => "in `penalty`",
            Self::Quota => "in an item of `quotas`",
            Self::Own => "in `own`",
            Self::OwnBound => "in a number of `own`",
            Self::DenialBody => "in `denial_body`",
            Self::Overlay => "at the root of the overlay",
            Self::OverlayDomain => "in an item of `overlay`",
            Self::OverlayRule => "in an item of `rules`",
        }
    }

    /// Whether it is part of overlay files only.
    pub(crate) fn is_of_overlay(self) -> bool {
        match self {
            Self::Overlay | Self::OverlayDomain | Self::OverlayRule => true,
            Self::Root
            | Self::Descriptor
            | Self::RateLimit
            | Self::Replaced
            | Self::Calendar
            | Self::Group
            | Self::Penalty
            | Self::Quota
            | Self::Own
            | Self::OwnBound
            | Self::DenialBody => false,
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
    /// An integer from 0 to 2^64 - 1.
    Integer,
    /// An integer from 1 to this number of bits of an address.
    PrefixLength(u8),
    /// `true` or `false`.
    Boolean,
    /// What a refused call charges.
    OnDenied,
    /// The name of a unit, in any case.
    Unit,
    /// The name of an algorithm.
    Algorithm,
    /// The decision for a request whose owner cannot be reached.
    OnOwnerUnavailable,
    /// Where the limits of keys are read.
    LimitSource,
    /// The name of a day of the week.
    Weekday,
    /// How values are compared, if not as text.
    Match,
    /// A mapping with any content.
    Anything,
    /// Any value.
    Json,
    /// The body of refusals: the name of a format, or a mapping.
    DenialBody,
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
        match self {
            Self::Required
            | Self::Text
            | Self::OnDenied
            | Self::Unit
            | Self::Algorithm
            | Self::OnOwnerUnavailable
            | Self::LimitSource
            | Self::Weekday
            | Self::Match
            | Self::DenialBody => true,
            Self::Integer
            | Self::PrefixLength(_)
            | Self::Boolean
            | Self::Anything
            | Self::Json
            | Self::Mapping(_)
            | Self::Candidate
            | Self::List(_)
            | Self::Path => false,
        }
    }

    /// Whether the value is a list.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::List(_) | Self::Path)
    }
}
