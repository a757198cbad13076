//! Descriptors whose values contain fields of a request, as `{name}` or `{name|filter}`.

use std::borrow::Cow;

use tollgate_counter::descriptor::escaped;

use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

pub use filter::ValueFilter;

mod filter;

/// The word behind a field that requests may lack.
const OPTIONAL: &str = "optional";

/// The values of one request by the names of its fields.
pub trait Fields {
    /// `None` if the field is missing.
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>>;
}

/// The descriptors that each request gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorTemplate {
    descriptors: Vec<Vec<EntryTemplate>>,
}

/// An entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryTemplate {
    /// The key of the entry.
    pub key: Vec<u8>,
    value: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Field(TemplateField),
}

/// A field with its filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateField {
    /// The name of the field.
    pub name: String,
    /// The filters of its value, in the order in which they apply.
    pub filters: Vec<ValueFilter>,
    /// What a request without the field means.
    pub presence: FieldPresence,
}

/// What a request without a field means, or with one of which its filters keep nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPresence {
    /// A missing field is a mistake, where requests can be refused.
    Required,
    /// A descriptor whose field is missing is left out.
    Optional,
}

impl DescriptorTemplate {
    /// The template of these descriptors.
    pub fn new<'d>(descriptors: impl Iterator<Item = &'d Vec<Entry>>) -> Result<Self, String> {
        let entry = |entry: &Entry| Ok(EntryTemplate { key: entry.key.clone(), value: parts(&entry.value)? });
        let descriptor = |entries: &Vec<Entry>| entries.iter().map(entry).collect();
        Ok(Self { descriptors: descriptors.map(descriptor).collect::<Result<_, String>>()? })
    }

    /// The entries of each descriptor.
    pub fn descriptors(&self) -> impl Iterator<Item = &[EntryTemplate]> {
        self.descriptors.iter().map(Vec::as_slice)
    }

    /// All fields of all descriptors.
    pub fn fields(&self) -> impl Iterator<Item = &TemplateField> {
        self.descriptors.iter().flatten().flat_map(|entry| &entry.value).filter_map(|part| match part {
            TemplatePart::Text(_) => None,
            TemplatePart::Field(field) => Some(field),
        })
    }

    /// All fields of all descriptors, to be changed.
    pub fn fields_mut(&mut self) -> impl Iterator<Item = &mut TemplateField> {
        let entries = self.descriptors.iter_mut().flatten();
        entries.flat_map(|entry| &mut entry.value).filter_map(|part| match part {
            TemplatePart::Text(_) => None,
            TemplatePart::Field(field) => Some(field),
        })
    }
}

impl EntryTemplate {
    /// Appends the value of the entry, or returns the first field that is missing or empty.
    pub fn fill(&self, fields: &impl Fields, value: &mut Vec<u8>) -> Result<(), &TemplateField> {
        self.value.iter().try_for_each(|part| part.fill(fields, value))
    }
}

impl TemplatePart {
    fn fill(&self, fields: &impl Fields, value: &mut Vec<u8>) -> Result<(), &TemplateField> {
        match self {
            Self::Text(text) => value.extend_from_slice(text.as_bytes()),
            Self::Field(field) => {
                let found = fields.get(&field.name).ok_or(field)?;
                let found = field.filters.iter().fold(found, |found, filter| filter.apply(found));
                if found.is_empty() {
                    return Err(field);
                }
                value.extend_from_slice(&found);
            }
        }
        Ok(())
    }
}

/// The parts of the value of an entry.
fn parts(value: &[u8]) -> Result<Vec<TemplatePart>, String> {
    let value = str::from_utf8(value).map_err(|_| format!("`{}` is not UTF-8", escaped(value)))?;
    let mut parts = Vec::new();
    let mut rest = value;
    while let Some((text, after)) = rest.split_once('{') {
        let unclosed = || format!("`{value}`: a `{{` has no `}}`");
        let (inner, after) = after.split_once('}').ok_or_else(unclosed)?;
        if !text.is_empty() {
            parts.push(TemplatePart::Text(text.to_owned()));
        }
        let unnamed = || format!("`{value}`: a field has no name, as in {{client_ip}}");
        parts.push(TemplatePart::Field(field(inner)?.ok_or_else(unnamed)?));
        rest = after;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(TemplatePart::Text(rest.to_owned()));
    }
    Ok(parts)
}

/// The field of this text without its braces; `None` if it has no name.
fn field(text: &str) -> Result<Option<TemplateField>, String> {
    let mut words = text.split('|').map(str::trim);
    let Some(name) = words.next().filter(|name| !name.is_empty()) else { return Ok(None) };
    let mut field =
        TemplateField { name: name.to_owned(), filters: Vec::new(), presence: FieldPresence::Required };
    for word in words {
        if word == OPTIONAL {
            field.presence = FieldPresence::Optional;
        } else {
            field.filters.push(ValueFilter::parse(word)?);
        }
    }
    Ok(Some(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor_text;

    struct One(&'static str);

    impl Fields for One {
        fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
            (name == "f").then_some(Cow::Borrowed(self.0.as_bytes()))
        }
    }

    fn template(text: &str) -> Result<DescriptorTemplate, String> {
        DescriptorTemplate::new([descriptor_text::parse(text).unwrap()].iter())
    }

    fn filled(text: &str, value: &'static str) -> Result<String, TemplateField> {
        let template = template(text).unwrap();
        let mut filled = Vec::new();
        let mut entries = template.descriptors().flatten();
        entries.try_for_each(|entry| entry.fill(&One(value), &mut filled)).map_err(Clone::clone)?;
        Ok(String::from_utf8(filled).unwrap())
    }

    #[test]
    fn values_are_texts_and_filtered_fields() {
        assert_eq!(filled("k={f}", "v").unwrap(), "v");
        assert_eq!(filled("k=x{f}y{ f | lower }z", "V").unwrap(), "xVyvz");
        assert_eq!(filled("k=x,l={f|path|first_segment}", "/a/b?c").unwrap(), "x/a");
    }

    #[test]
    fn missing_or_empty_field_is_returned() {
        let missing = filled("k={other|lower|optional}", "v").unwrap_err();
        assert_eq!((&*missing.name, missing.presence), ("other", FieldPresence::Optional));
        assert_eq!(missing.filters, [ValueFilter::Lower]);
        for (text, value) in [("k={f}", ""), ("k={f|nth-trusted:2}", "10.0.0.1"), ("k={f|path}", "?a")] {
            let missing = filled(text, value).unwrap_err();
            assert_eq!((&*missing.name, missing.presence), ("f", FieldPresence::Required), "{text}");
        }
    }

    #[test]
    fn invalid_template_is_refused_with_its_text() {
        for (text, why) in [
            ("k={f", "no `}`"),
            ("k={}", "no name"),
            ("k={|lower}", "no name"),
            ("k={f|upper}", "`upper` is no filter"),
            ("k={f|}", "`` is no filter"),
            (r"k={f}\xE9", r"`{f}\xE9` is not UTF-8"),
        ] {
            let error = template(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
