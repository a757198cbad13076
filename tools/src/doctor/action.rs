//! The actions of `rate_limits`, each of which makes an entry of a descriptor.

use serde_json::{Map, Value};
use tollgate_wire::finding::EnvoyEntry;

use crate::doctor::located::{field, is_true, message, text};

/// Headers without which Envoy accepts no request.
pub(super) const REQUIRED_HEADERS: [&str; 5] = [":authority", ":method", ":path", ":scheme", "host"];

/// A kind of actions: the field with the action, the key of its entry unless the action names one, the field with the name
/// of the part of a request that it sends with what that is, and otherwise which requests have the entry.
type ActionKind = (&'static str, Option<&'static str>, Option<[&'static str; 2]>, EntryPresence);

/// All kinds of actions.
const KINDS: [ActionKind; 12] = [
    ("remote_address", Some("remote_address"), None, EntryPresence::Always),
    ("masked_remote_address", Some("masked_remote_address"), None, EntryPresence::Always),
    ("source_cluster", Some("source_cluster"), None, EntryPresence::Always),
    ("destination_cluster", Some("destination_cluster"), None, EntryPresence::Always),
    ("generic_key", Some("generic_key"), None, EntryPresence::Always),
    ("header_value_match", Some("header_match"), None, EntryPresence::Unknown),
    ("query_parameter_value_match", Some("query_match"), None, EntryPresence::Unknown),
    ("request_headers", None, Some(["header_name", "header"]), EntryPresence::Unknown),
    ("query_parameters", None, Some(["query_parameter_name", "query parameter"]), EntryPresence::Unknown),
    ("metadata", None, None, EntryPresence::Unknown),
    ("dynamic_metadata", None, None, EntryPresence::Unknown),
    ("extension", None, None, EntryPresence::Unknown),
];

/// An action, which makes one entry.
#[derive(Debug)]
pub(super) struct EntryAction<'v> {
    /// The key of the entry as written, or the name of the action.
    pub(super) label: &'v str,
    /// The entry; `None` if its key is not known.
    pub(super) entry: Option<EnvoyEntry>,
    /// The header or the query parameter whose value the action sends.
    pub(super) part: Option<String>,
    pub(super) presence: EntryPresence,
}

/// Which requests have the entry of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryPresence {
    Always,
    /// Requests with its part have the entry. Other requests have no descriptor, or with `is_skipped` the descriptor
    /// without the entry.
    WithPart {
        is_skipped: bool,
    },
    /// Whether a request has the entry depends on more than a header.
    Unknown,
}

impl<'v> EntryAction<'v> {
    /// The action with these fields; `None` without any.
    pub(super) fn from_fields(fields: &'v Map<String, Value>) -> Option<Self> {
        let (name, config) = fields.iter().next()?;
        let key = config.as_object().and_then(|config| field(config, "descriptor_key")?.as_str());
        let label = key.unwrap_or(name);
        let known = KINDS.iter().find_map(|kind| Some((kind, message(fields, kind.0)?)));
        let Some(((_, default_key, part, presence), config)) = known else {
            return Some(Self { label, entry: None, part: None, presence: EntryPresence::Unknown });
        };
        // Only an extension has it.
        let config = message(config, "typed_config").unwrap_or(config);
        let key = text(config, "descriptor_key").filter(|key| !key.is_empty());
        let key = key.or_else(|| default_key.map(str::to_owned));
        let entry = key.map(|key| EnvoyEntry { key, value: fixed(text(config, "descriptor_value")) });
        let part = part.and_then(|[field, kind]| Some((kind, text(config, field)?)));
        let is_required = |name: &str| REQUIRED_HEADERS.iter().any(|one| name.eq_ignore_ascii_case(one));
        let presence = match &part {
            None => *presence,
            Some((_, name)) if is_required(name) => EntryPresence::Always,
            Some(_) => EntryPresence::WithPart { is_skipped: is_true(config, "skip_if_absent") },
        };
        let part = part.map(|(kind, name)| format!("{kind} {name:?}"));
        Some(Self { label, entry, part, presence })
    }
}

/// A value that does not depend on the request.
pub(super) fn fixed(value: Option<String>) -> Option<String> {
    value.filter(|value| !value.contains('%'))
}
