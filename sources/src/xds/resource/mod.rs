//! Reads a resource of a control plane as the document of a rule file, and finds fields that this version does not know.

use std::{borrow::Cow, fmt::Display, sync::Arc};

use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_types::{Struct, Value as Json, value::Kind};
use tollgate_rules::{
    DESCRIPTORS_MAX, Documents, ResourceLocation, RuleInput, RuleOrigin, Unknown, composite,
    yaml::{Located, Mark, Scalar, YamlNode, YamlPair, YamlStream, YamlValue},
};

use crate::xds::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};

/// The maximum depth of nested descriptors; a request has at most as many entries by default.
const DEPTH_MAX: usize = 128;

/// The name of a resource; empty if it cannot be read.
pub(super) fn name(bytes: &[u8]) -> String {
    RateLimitConfig::decode(bytes).map(|config| config.name).unwrap_or_default()
}

/// A resource with these bytes, as a source of rules.
pub(super) fn source(bytes: Vec<u8>) -> RuleInput {
    RuleInput::resource(bytes, |_path, bytes| documents(bytes))
}

/// The document of a resource, with its places.
fn documents(bytes: &[u8]) -> Documents<'static> {
    let mut reader = ResourceReader::default();
    let (name, documents) = match RateLimitConfig::decode(bytes) {
        Ok(config) => {
            let document = reader.document(&config, bytes);
            (config.name, vec![document])
        }
        Err(error) => {
            reader.problem(Mark::START, unreadable("resource", &error));
            (String::new(), Vec::new())
        }
    };
    let ResourceReader { places, problems, unknown } = reader;
    let origin = Arc::new(RuleOrigin::Resource { name: name.into(), locations: places });
    Documents { origin, stream: YamlStream { documents, problems }, unknown: unknown.map(described) }
}

fn unreadable(what: &str, error: &DecodeError) -> String {
    format!("the {what} cannot be read: {error}")
}

/// The warning of unknown fields, of which `first` has the name of the field at the first place.
fn described(Unknown { first, count }: Unknown) -> Unknown {
    let field = first.value;
    let others = match count - 1 {
        0 => String::new(),
        1 => ", here and at 1 other descriptor".to_owned(),
        others => format!(", here and at {others} other descriptors"),
    };
    let what = format!(
        "the field {field} is unknown to this version and is ignored{others}; the limit may not be the one that the control plane means"
    );
    Unknown { first: Located::new(first.mark, what), count }
}

#[derive(Default)]
struct ResourceReader {
    places: Vec<ResourceLocation>,
    problems: Vec<Located<String>>,
    unknown: Option<Unknown>,
}

impl ResourceReader {
    /// Adds a place and returns its mark.
    fn place(&mut self, parent: Option<Mark>, text: &str) -> Mark {
        let parent = parent.map(|parent| parent.line - 1);
        self.places.push(ResourceLocation { parent, text: text.into() });
        // At most `DESCRIPTORS_MAX` and a few more.
        Mark { line: u32::try_from(self.places.len()).unwrap_or(u32::MAX), column: 1 }
    }

    fn problem(&mut self, mark: Mark, what: String) {
        self.problems.push(Located::new(mark, what));
    }

    /// Notes the first field of the message in `bytes` that is not known.
    fn note_unknown(&mut self, bytes: &[u8], known: &KnownFields, mark: Mark) {
        let Some(what) = unknown_field(bytes, known) else { return };
        let first = Located::new(mark, what);
        self.unknown.get_or_insert(Unknown { first, count: 0 }).count += 1;
    }

    fn document(&mut self, config: &RateLimitConfig, bytes: &[u8]) -> YamlNode<'static> {
        let mark = self.place(None, &config.domain);
        self.note_unknown(bytes, &KnownFields::CONFIG, mark);
        let descriptors = self.descriptors(&config.descriptors, mark, 1);
        let domain = pair("domain", text_node(&config.domain, mark));
        mapping(mark, [domain, list("descriptors", descriptors, mark)])
    }

    fn descriptors(&mut self, descriptors: &[Vec<u8>], parent: Mark, depth: usize) -> Vec<YamlNode<'static>> {
        if depth > DEPTH_MAX && !descriptors.is_empty() {
            self.problem(parent, format!("descriptors are nested more than {DEPTH_MAX} deep"));
            return Vec::new();
        }
        let mut nodes = Vec::with_capacity(descriptors.len());
        for bytes in descriptors {
            if self.places.len() > DESCRIPTORS_MAX {
                self.problem(parent, format!("more than {DESCRIPTORS_MAX} descriptors in one resource"));
                break;
            }
            match RateLimitDescriptor::decode(&**bytes) {
                Ok(descriptor) => nodes.push(self.descriptor(descriptor, bytes, parent, depth)),
                Err(error) => self.problem(parent, unreadable("descriptor", &error)),
            }
        }
        nodes
    }

    fn descriptor(
        &mut self,
        descriptor: RateLimitDescriptor,
        bytes: &[u8],
        parent: Mark,
        depth: usize,
    ) -> YamlNode<'static> {
        let RateLimitDescriptor { key, value, rate_limit, descriptors, metadata, .. } = &descriptor;
        let mark = self.place(Some(parent), &composite(key, value));
        self.note_unknown(bytes, &KnownFields::DESCRIPTOR, mark);
        let limit = rate_limit.as_ref();
        // Control planes set these on every descriptor of a path; they count where the limit is.
        let flag = |key, is_set| if is_set && limit.is_some() { pair(key, plain(true, mark)) } else { None };
        let descriptors = self.descriptors(descriptors, mark, depth + 1);
        mapping(
            mark,
            [
                pair("key", text_node(key, mark)),
                text_pair("value", value, mark),
                limit.and_then(|limit| pair("rate_limit", limit_node(limit, mark))),
                flag("shadow_mode", descriptor.shadow_mode),
                flag("quota_mode", descriptor.quota_mode),
                flag("detailed_metric", descriptor.detailed_metric),
                metadata.as_ref().and_then(|metadata| pair("metadata", struct_node(metadata, mark))),
                list("descriptors", descriptors, mark),
            ],
        )
    }
}

fn limit_node(limit: &RateLimitPolicy, mark: Mark) -> YamlNode<'static> {
    let replaced =
        |replaced: &RateLimitReplace| mapping(mark, [pair("name", text_node(&replaced.name, mark))]);
    let unit = match limit.unit() {
        // `UNKNOWN` means that there is none.
        RateLimitUnit::Unknown if limit.unit == 0 => String::new(),
        RateLimitUnit::Unknown => limit.unit.to_string(),
        // Rule files name units in any case.
        unit => unit.as_str_name().to_owned(),
    };
    let number = if limit.unlimited {
        pair("unlimited", plain(true, mark))
    } else {
        pair("requests_per_unit", plain(limit.requests_per_unit, mark))
    };
    let replaces = list("replaces", limit.replaces.iter().map(replaced).collect(), mark);
    mapping(mark, [text_pair("name", &limit.name, mark), replaces, text_pair("unit", &unit, mark), number])
}

fn struct_node(object: &Struct, mark: Mark) -> YamlNode<'static> {
    let pairs = object.fields.iter().filter_map(|(name, value)| pair(name.clone(), json_node(value, mark)));
    Located { value: YamlValue::Mapping(pairs.collect()), mark }
}

fn json_node(value: &Json, mark: Mark) -> YamlNode<'static> {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => plain("null", mark),
        Some(Kind::BoolValue(value)) => plain(value, mark),
        Some(Kind::NumberValue(number)) => number_node(*number, mark),
        Some(Kind::StringValue(text)) => text_node(text, mark),
        Some(Kind::StructValue(object)) => struct_node(object, mark),
        Some(Kind::ListValue(list)) => {
            let items = list.values.iter().map(|item| json_node(item, mark));
            YamlNode { mark, value: YamlValue::List(items.collect()) }
        }
    }
}

fn number_node(number: f64, mark: Mark) -> YamlNode<'static> {
    /// Up to here every integer has a float of its own.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        plain(number as i64, mark)
    } else if number.is_finite() {
        plain(format_args!("{number:?}"), mark)
    } else {
        plain(".nan", mark)
    }
}

fn text_node(text: &str, mark: Mark) -> YamlNode<'static> {
    YamlNode { mark, value: YamlValue::Scalar(Scalar { text: text.to_owned().into(), quoted: true }) }
}

/// A number, a boolean or null.
fn plain(value: impl Display, mark: Mark) -> YamlNode<'static> {
    YamlNode { mark, value: YamlValue::Scalar(Scalar { text: value.to_string().into(), quoted: false }) }
}

/// A mapping with these pairs.
fn mapping<const N: usize>(mark: Mark, pairs: [Option<YamlPair<'static>>; N]) -> YamlNode<'static> {
    Located { value: YamlValue::Mapping(pairs.into_iter().flatten().collect()), mark }
}

/// A pair at the position of its value.
fn pair(key: impl Into<Cow<'static, str>>, value: YamlNode<'static>) -> Option<YamlPair<'static>> {
    Some(YamlPair { key: key.into(), mark: value.mark, value })
}

/// A pair with a text, unless that is empty.
fn text_pair(key: &'static str, text: &str, mark: Mark) -> Option<YamlPair<'static>> {
    if text.is_empty() { None } else { pair(key, text_node(text, mark)) }
}

/// A pair with a list, unless that is empty.
fn list(key: &'static str, items: Vec<YamlNode<'static>>, mark: Mark) -> Option<YamlPair<'static>> {
    if items.is_empty() { None } else { pair(key, Located { value: YamlValue::List(items), mark }) }
}

#[cfg(test)]
mod tests;

/// The fields of a message that this version knows.
pub(super) struct KnownFields {
    /// The highest known field number: the numbers from 1 to `max` are known.
    max: u32,
    /// The known fields that are messages and are searched as well: number, name and known fields of each.
    messages: &'static [(u32, &'static str, Self)],
}

impl KnownFields {
    /// The known fields of a `RateLimitConfig`. Its descriptors are read one by one.
    pub(super) const CONFIG: Self = Self { max: 3, messages: &[] };
    /// The known fields of a `RateLimitDescriptor`, without the descriptors in it.
    pub(super) const DESCRIPTOR: Self = Self { max: 8, messages: &[(3, "rate_limit", Self::POLICY)] };
    const POLICY: Self = Self { max: 5, messages: &[(5, "replaces", Self::REPLACE)] };
    const REPLACE: Self = Self { max: 1, messages: &[] };
}

/// The first field of a valid message that is not known: its number behind the names of the fields around it.
pub(super) fn unknown_field(mut bytes: &[u8], known: &KnownFields) -> Option<String> {
    while !bytes.is_empty() {
        let (number, wire_type) = decode_key(&mut bytes).ok()?;
        if number > known.max {
            return Some(number.to_string());
        }
        let message = known.messages.iter().find(|(message, ..)| *message == number);
        match message.filter(|_| wire_type == WireType::LengthDelimited) {
            None => skip_field(wire_type, number, &mut bytes, DecodeContext::default()).ok()?,
            Some((_, name, known)) => {
                let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                let (message, rest) = bytes.split_at_checked(length)?;
                if let Some(field) = unknown_field(message, known) {
                    return Some(format!("{name}.{field}"));
                }
                bytes = rest;
            }
        }
    }
    None
}
