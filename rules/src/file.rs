//! The content of a rule file as written, each value with its location, before it is interpreted.

use serde_json::{Map, Value as Json};

use crate::{
    OnDenied,
    denial_body::template::DenialBody,
    diagnostics::Diagnostics,
    dialect,
    group::{GroupedKey, NetworkGroup},
    key_values::KeyValues,
    keys::KeySection,
    network_keys,
    prefix_tree::{MatchKind, composite},
    reader, spelling,
    yaml::{Located, Mark, YamlNode, YamlValue, quote},
};

/// One document.
pub(crate) struct DocumentDraft<'t> {
    /// The location of `domain`.
    pub(crate) mark: Mark,
    /// The domain, never empty.
    pub(crate) domain: String,
    pub(crate) on_denied: Option<Located<OnDenied>>,
    pub(crate) denial_body: Option<Located<DenialBody>>,
    /// What a text probably means instead.
    pub(crate) misspellings: Vec<Located<String>>,
    /// The descriptors, read and dropped one by one: there may be many.
    pub(crate) descriptors: Vec<YamlNode<'t>>,
}

/// One item of `descriptors`.
pub(crate) struct DescriptorDraft<'n> {
    pub(crate) mark: Mark,
    /// The key, never empty; `None` if it is invalid and was reported.
    pub(crate) key: Option<String>,
    /// The value, empty if any value matches. A network in its one spelling.
    pub(crate) value: String,
    /// How the value matches; `None` if that is invalid and was reported.
    pub(crate) kind: Option<MatchKind>,
    /// The location of a `value` that is given without a text, as if it were absent.
    pub(crate) empty_value: Option<Mark>,
    pub(crate) rate_limit: Option<KeyValues>,
    pub(crate) group: Option<Located<NetworkGroup>>,
    pub(crate) metadata: Option<Located<Map<String, Json>>>,
    /// What the texts of the descriptor probably mean instead.
    pub(crate) misspellings: Vec<Located<String>>,
    /// The nested descriptors, read one by one.
    pub(crate) descriptors: &'n [YamlNode<'n>],
    /// The keys of the descriptor, without the values that are in other fields.
    pub(crate) keys: KeyValues,
}

impl<'t> DocumentDraft<'t> {
    /// Reads a document; `None` if the domain is unknown, or if it is one of another program.
    pub(crate) fn read(mut node: YamlNode<'t>, diagnostics: &Diagnostics<'_>) -> Option<Self> {
        if let Some(problem) = dialect::recognise(&node) {
            diagnostics.add(problem.mark, problem.value);
            return None;
        }
        let keys = reader::read(&node, KeySection::Root, diagnostics)?;
        let mark = keys.given("domain").unwrap_or(keys.mark);
        let domain = keys.required("domain", "the name that requests ask under", diagnostics);
        let Some(domain) = domain else {
            // The descriptors cannot be used without a domain, but their problems are reported.
            DescriptorDraft::report_all(keys.list(&node, "descriptors"), None, diagnostics);
            return None;
        };
        let descriptors = keys.index("descriptors").map(|index| node.take_items(index)).unwrap_or_default();
        let on_denied = keys.choice("on_denied", &OnDenied::NAMED);
        let denial_body = keys.denial_body().cloned();
        let misspellings = spelling::misspelling(&domain).map(|value| Located { value, mark });
        let misspellings = misspellings.into_iter().collect();
        Some(Self { mark, domain, on_denied, denial_body, misspellings, descriptors })
    }
}

impl<'n> DescriptorDraft<'n> {
    /// Reads a descriptor without the nested ones; `None` if the node is not a mapping. `above` names the descriptor in
    /// which it is nested.
    pub(crate) fn read(
        node: &'n YamlNode<'n>,
        above: Option<&str>,
        diagnostics: &Diagnostics<'_>,
    ) -> Option<Self> {
        let mut keys = reader::read(node, KeySection::Descriptor, diagnostics)?;
        let key = match above {
            Some(above) if keys.given("key").is_none() && keys.given("rate_limit").is_some() => {
                let what = format!(
                    "`key` is missing; the limit of {} itself stands beside its `key`, not below its `descriptors`",
                    quote(above)
                );
                diagnostics.add(keys.mark, what);
                None
            }
            Some(_) | None => keys.required("key", "the key of a descriptor entry", diagnostics),
        };
        let (value, kind) = network_keys::value_and_kind(&keys, key.as_deref(), diagnostics);
        Some(Self {
            mark: keys.mark,
            misspellings: misspellings(&keys, key.as_deref(), &value),
            key,
            value,
            kind,
            empty_value: empty_value(node),
            rate_limit: keys.take_mapping("rate_limit"),
            group: network_keys::group(&keys, diagnostics),
            metadata: keys.take_metadata(),
            descriptors: keys.list(node, "descriptors"),
            keys,
        })
    }
}

impl DescriptorDraft<'_> {
    /// Whether the value reads like a network, but is compared as text, and no caller is known to send such texts.
    pub(crate) fn is_network_as_text(&self) -> bool {
        self.kind == Some(MatchKind::Exact)
            && self.key.as_deref() != Some(network_keys::MASKED_ADDRESS)
            && network_keys::reads_like_network(&self.value)
    }

    /// The key with its group; `None` without a group or a valid key.
    pub(crate) fn grouped_key(&self) -> Option<GroupedKey> {
        let key = self.key.as_ref()?;
        let group = self.group.as_ref()?;
        Some(GroupedKey { key: key.clone(), group: group.value })
    }

    /// Reports the problems of descriptors and of those nested in them.
    fn report_all(nodes: &[YamlNode<'_>], above: Option<&str>, diagnostics: &Diagnostics<'_>) {
        for node in nodes {
            if let Some(descriptor) = DescriptorDraft::read(node, above, diagnostics) {
                let path = composite(descriptor.key.as_deref().unwrap_or_default(), &descriptor.value);
                Self::report_all(descriptor.descriptors, Some(&path), diagnostics);
            }
        }
    }
}

/// What the texts of a descriptor probably mean instead.
fn misspellings(keys: &KeyValues, key: Option<&str>, value: &str) -> Vec<Located<String>> {
    let texts = [("key", key.unwrap_or_default()), ("value", value)].into_iter();
    let found = texts.filter_map(|(name, text)| {
        let mark = keys.text(name)?.mark;
        let is_address = name == "value" && key == Some(network_keys::ADDRESS);
        let what = if is_address { spelling::misspelt_address(text) } else { None };
        Some(Located { value: what.or_else(|| spelling::misspelling(text))?, mark })
    });
    found.collect()
}

/// The location of a `value` without a text. `KeyValues` leave out keys without a value.
fn empty_value(descriptor: &YamlNode<'_>) -> Option<Mark> {
    let YamlValue::Mapping(pairs) = &descriptor.value else { return None };
    let pair = pairs.iter().find(|pair| *pair.key == *"value")?;
    let is_empty = match &pair.value.value {
        YamlValue::Scalar(scalar) => scalar.text.is_empty() || pair.value.is_null(),
        YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => false,
    };
    is_empty.then_some(pair.mark)
}
