//! The overlay: what a local file adds to rules of a control plane, whose messages know no algorithms.

use rustc_hash::FxHashMap;
use serde_json::{Map, Value as Json};

use crate::{
    OnDenied,
    denial_body::template::DenialBody,
    diagnostics::{Diagnostics, Location, Problems, RuleOrigin},
    group::NetworkGroup,
    key_values::KeyValues,
    keys::KeySection,
    network_keys,
    pattern::Pattern,
    reader,
    yaml::{self, Located, YamlNode, YamlValue},
};

/// Keys of `rate_limit` that are the control plane's.
const OF_CONTROL_PLANE: [&str; 7] =
    ["unit", "unit_multiplier", "window", "requests_per_unit", "unlimited", "name", "replaces"];

/// The content of an overlay file.
#[derive(Debug)]
pub struct Overlay {
    /// The bytes, as part of the hash of the rules.
    pub(crate) bytes: Vec<u8>,
    /// The rules, in the order of the file.
    pub(crate) rules: Vec<OverlayRule>,
    domains: FxHashMap<String, OverlayDomain>,
}

/// What is added to a domain.
#[derive(Debug, Default)]
struct OverlayDomain {
    on_denied: Option<OnDenied>,
    denial_body: Option<DenialBody>,
    /// The indices of its rules.
    rules: Vec<usize>,
}

/// What is added to the rules that match.
#[derive(Debug)]
pub(crate) struct OverlayRule {
    pub(crate) location: Location,
    pub(crate) rate_limit: Option<KeyValues>,
    pub(crate) metadata: Option<Located<Map<String, Json>>>,
    pub(crate) group: Option<Located<NetworkGroup>>,
    /// The keys of its descriptors, with their values; `None` for any value, or none.
    path: Vec<(TextPattern, Option<TextPattern>)>,
}

#[derive(Debug)]
enum TextPattern {
    Literal(String),
    Pattern(Pattern),
}

/// The rules of an overlay that match a path down to some depth.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatchingRules {
    depth: usize,
    rules: Vec<usize>,
}

impl Overlay {
    /// Reads an overlay file.
    pub(crate) fn read(path: &str, bytes: Vec<u8>) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let diagnostics = Diagnostics::new(RuleOrigin::file(path), &mut problems);
        let stream = yaml::load(&bytes);
        diagnostics.add_all(stream.problems);
        let mut overlay = Self { bytes: Vec::new(), rules: Vec::new(), domains: FxHashMap::default() };
        for document in stream.documents.iter().filter(|document| !document.is_null()) {
            let Some(keys) = reader::read(document, KeySection::Overlay, &diagnostics) else { continue };
            for item in keys.list(document, "overlay") {
                overlay.domain(item, &diagnostics);
            }
        }
        overlay.bytes = bytes;
        problems.sort();
        if problems.is_empty() { Ok(overlay) } else { Err(problems) }
    }

    fn domain(&mut self, item: &YamlNode<'_>, diagnostics: &Diagnostics<'_>) {
        let Some(keys) = reader::read(item, KeySection::OverlayDomain, diagnostics) else { return };
        let name = keys.required("domain", "the domain of the rules", diagnostics);
        let on_denied = keys.choice("on_denied", &OnDenied::NAMED);
        let denial_body = keys.denial_body().cloned();
        let first = self.rules.len();
        for item in keys.list(item, "rules") {
            self.rules.extend(OverlayRule::read(item, diagnostics));
        }
        let Some(name) = name else { return };
        let domain = self.domains.entry(name).or_default();
        domain.rules.extend(first..self.rules.len());
        set_once(&mut domain.on_denied, "on_denied", on_denied, diagnostics);
        set_once(&mut domain.denial_body, "denial_body", denial_body, diagnostics);
    }

    /// What a refused call charges in this domain, if the overlay says so.
    pub(crate) fn on_denied(&self, domain: &str) -> Option<OnDenied> {
        self.domains.get(domain)?.on_denied
    }

    /// The body of refusals in this domain, if the overlay says so.
    pub(crate) fn denial_body(&self, domain: &str) -> Option<&DenialBody> {
        self.domains.get(domain)?.denial_body.as_ref()
    }

    /// All rules of a domain.
    pub(crate) fn matching(&self, domain: &str) -> MatchingRules {
        let rules = self.domains.get(domain).map(|domain| domain.rules.clone()).unwrap_or_default();
        MatchingRules { depth: 0, rules }
    }

    /// The rules of `matching` whose paths match one more descriptor.
    pub(crate) fn narrowed(&self, matching: &MatchingRules, key: &str, value: &str) -> MatchingRules {
        let fits = |index: &usize| {
            self.rules[*index].path.get(matching.depth).is_some_and(|(wanted, of_value)| {
                wanted.matches(key) && of_value.as_ref().is_none_or(|wanted| wanted.matches(value))
            })
        };
        let rules = matching.rules.iter().copied().filter(fits).collect();
        MatchingRules { depth: matching.depth + 1, rules }
    }

    /// The first rule whose path ends here.
    pub(crate) fn first(&self, matching: &MatchingRules) -> Option<usize> {
        matching.rules.iter().copied().find(|index| self.rules[*index].path.len() == matching.depth)
    }
}

/// Sets a value, if it is given. Reports another one than before.
fn set_once<T: PartialEq>(
    shared: &mut Option<T>,
    name: &str,
    given: Option<Located<T>>,
    diagnostics: &Diagnostics<'_>,
) {
    let Some(Located { value, mark }) = given else { return };
    if shared.as_ref().is_some_and(|before| *before != value) {
        diagnostics.add(mark, format!("`{name}` of this domain has another value above; set it once"));
    }
    *shared = Some(value);
}

impl OverlayRule {
    fn read(item: &YamlNode<'_>, diagnostics: &Diagnostics<'_>) -> Option<Self> {
        let mut keys = reader::read(item, KeySection::OverlayRule, diagnostics)?;
        let rate_limit = keys.take_mapping("rate_limit");
        for name in OF_CONTROL_PLANE {
            if let Some(mark) = rate_limit.as_ref().and_then(|limit| limit.given(name)) {
                diagnostics
                    .add(mark, format!("`{name}` is the control plane's; an overlay cannot change it"));
            }
        }
        let metadata = keys.take_metadata();
        let group = network_keys::group(&keys, diagnostics);
        let items = keys.list(item, "match");
        if items.is_empty() {
            let what = "`match` is missing or empty; it lists the keys of a rule from the top, each as `key` or `key: value`";
            diagnostics.add(keys.mark, what);
        }
        let path: Vec<_> = items.iter().filter_map(|item| step(item, diagnostics)).collect();
        let location = diagnostics.location(keys.mark);
        (!path.is_empty()).then_some(Self { location, rate_limit, metadata, group, path })
    }

    /// The limit of the control plane with what this rule adds.
    pub(crate) fn added_to(&self, limit: &KeyValues) -> KeyValues {
        let Some(more) = &self.rate_limit else { return limit.clone() };
        KeyValues { mark: limit.mark, given: limit.given.iter().chain(&more.given).cloned().collect() }
    }
}

/// A descriptor of a path.
fn step(item: &YamlNode<'_>, diagnostics: &Diagnostics<'_>) -> Option<(TextPattern, Option<TextPattern>)> {
    match &item.value {
        YamlValue::Scalar(scalar) if !scalar.text.is_empty() => {
            return Some((TextPattern::new(&scalar.text), None));
        }
        YamlValue::Mapping(pairs) => {
            if let [pair] = &**pairs
                && let YamlValue::Scalar(value) = &pair.value.value
            {
                return Some((TextPattern::new(&pair.key), Some(TextPattern::new(&value.text))));
            }
        }
        YamlValue::Unreadable => return None,
        YamlValue::Scalar(_) | YamlValue::List(_) => {}
    }
    diagnostics
        .add(item.mark, format!("an item of `match` is `key` or `key: value`, not {}", item.describe()));
    None
}

impl TextPattern {
    fn new(text: &str) -> Self {
        Pattern::parse(text).map_or_else(|| Self::Literal(text.to_owned()), Self::Pattern)
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Literal(literal) => literal == text,
            Self::Pattern(pattern) => pattern.matches(text.as_bytes()),
        }
    }
}
