//! The descriptors of a request, from the fields of its record.

use std::borrow::Cow;

use tollgate_limiter::named;

use crate::{
    api::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry,
    cli::simulate::event::Event,
};

/// The values of one record by the names of its fields.
pub(super) trait Fields {
    /// `None` if the field is missing.
    fn get(&self, name: &str) -> Option<Cow<'_, str>>;
}

/// The descriptors that each record gives.
#[derive(Clone, Debug)]
pub(super) struct Template {
    descriptors: Vec<Vec<EntryTemplate>>,
}

#[derive(Clone, Debug)]
struct EntryTemplate {
    key: String,
    value: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field { name: String, filters: Vec<Filter> },
}

named! {
    /// A change of the value of a field.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Filter {
        /// The path up to its second slash, without the query.
        FirstSegment = "first_segment",
        /// The path without the query.
        WithoutQuery = "without_query",
        /// The first part of a comma list.
        First = "first",
        /// The last part of a comma list.
        Last = "last",
        /// An address without its port.
        WithoutPort = "without_port",
        /// In lower case.
        Lower = "lower",
    }
}

impl Template {
    /// The template of these descriptors, whose values contain fields as `{name}` or `{name|filter}`.
    pub(super) fn new<'d>(descriptors: impl Iterator<Item = &'d Vec<Entry>>) -> Result<Self, String> {
        let entry = |entry: &Entry| Ok(EntryTemplate { key: entry.key.clone(), value: parts(&entry.value)? });
        let descriptor = |entries: &Vec<Entry>| entries.iter().map(entry).collect();
        Ok(Self { descriptors: descriptors.map(descriptor).collect::<Result<_, String>>()? })
    }

    /// The names of all fields.
    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        self.descriptors.iter().flatten().flat_map(|entry| &entry.value).filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field { name, .. } => Some(&**name),
        })
    }

    /// Adds the descriptors to `event`. As in Envoy, a descriptor is left out if a field of it is missing or empty.
    pub(super) fn fill(&self, fields: &impl Fields, event: &mut Event, value: &mut String) {
        for entries in &self.descriptors {
            let filled = entries.iter().all(|entry| {
                value.clear();
                let filled = entry.value.iter().all(|part| part.fill(fields, value));
                if filled {
                    event.entry(&entry.key, value);
                }
                filled
            });
            if filled {
                event.end_descriptor();
            } else {
                event.drop_descriptor();
            }
        }
    }
}

impl Part {
    /// Appends its value; `false` if it has none.
    fn fill(&self, fields: &impl Fields, value: &mut String) -> bool {
        match self {
            Self::Text(text) => value.push_str(text),
            Self::Field { name, filters } => {
                let Some(found) = fields.get(name) else { return false };
                let found = filters.iter().fold(found, |found, filter| filter.apply(found));
                if found.is_empty() {
                    return false;
                }
                value.push_str(&found);
            }
        }
        true
    }
}

impl Filter {
    fn apply(self, value: Cow<'_, str>) -> Cow<'_, str> {
        match value {
            Cow::Borrowed(text) => match self {
                Self::Lower => Cow::Owned(text.to_lowercase()),
                Self::FirstSegment | Self::WithoutQuery | Self::First | Self::Last | Self::WithoutPort => {
                    Cow::Borrowed(self.part(text))
                }
            },
            Cow::Owned(text) => Cow::Owned(match self {
                Self::Lower => text.to_lowercase(),
                Self::FirstSegment | Self::WithoutQuery | Self::First | Self::Last | Self::WithoutPort => {
                    self.part(&text).to_owned()
                }
            }),
        }
    }

    /// The part of `text` that the filter keeps.
    fn part(self, text: &str) -> &str {
        match self {
            Self::FirstSegment => {
                let path = Self::WithoutQuery.part(text);
                let start = usize::from(path.starts_with('/'));
                path[start..].find('/').map_or(path, |end| &path[..start + end])
            }
            Self::WithoutQuery => text.split(['?', '#']).next().unwrap_or_default(),
            Self::First => text.split(',').next().unwrap_or_default().trim(),
            Self::Last => text.rsplit(',').next().unwrap_or_default().trim(),
            Self::WithoutPort => match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                Some((address, _)) => address,
                // More than one colon: an IPv6 address without a port.
                None if text.matches(':').count() > 1 => text,
                None => text.split(':').next().unwrap_or_default(),
            },
            Self::Lower => text,
        }
    }
}

/// The parts of the value of an entry.
fn parts(value: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = value;
    while let Some((text, after)) = rest.split_once('{') {
        let unclosed = || format!("`{value}`: a `{{` has no `}}`");
        let (field, after) = after.split_once('}').ok_or_else(unclosed)?;
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        let mut words = field.split('|').map(str::trim);
        let name = words.next().unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(format!("`{value}`: a field has no name, as in {{client_ip}}"));
        }
        let filters = words.map(filter).collect::<Result<_, _>>()?;
        parts.push(Part::Field { name, filters });
        rest = after;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

fn filter(word: &str) -> Result<Filter, String> {
    let found = Filter::NAMED.iter().find(|(name, _)| *name == word).map(|(_, filter)| *filter);
    let names = || Filter::ALL.map(Filter::name).join(", ");
    found.ok_or_else(|| format!("`{word}` is no filter; there are {}", names()))
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::time::Timestamp;

    use super::*;
    use crate::api::descriptor_text;

    struct One(&'static str);

    impl Fields for One {
        fn get(&self, name: &str) -> Option<Cow<'_, str>> {
            (name == "f").then_some(Cow::Borrowed(self.0))
        }
    }

    fn filled(templates: &[&str], value: &'static str) -> Result<Vec<String>, String> {
        let entries: Vec<_> = templates.iter().map(|text| descriptor_text::parse(text).unwrap()).collect();
        let template = Template::new(entries.iter())?;
        let mut event = Event::default();
        event.begin(Timestamp::EPOCH, "d", 1);
        template.fill(&One(value), &mut event, &mut String::new());
        let all: Vec<_> = event.entries().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        Ok(event.descriptors().map(|(range, _)| all[range].join(",")).collect())
    }

    #[test]
    fn filters_keep_their_part_of_the_value() {
        for (filter, value, kept) in [
            ("first_segment", "/a/b?c=/d", "/a"),
            ("first_segment", "/a?c=/d", "/a"),
            ("first_segment", "/", "/"),
            ("first_segment", "a/b", "a"),
            ("without_query", "/a/b?c#d", "/a/b"),
            ("first", "10.0.0.1, 10.0.0.2", "10.0.0.1"),
            ("last", "10.0.0.1, 10.0.0.2", "10.0.0.2"),
            ("without_port", "10.0.0.1:80", "10.0.0.1"),
            ("without_port", "[::1]:80", "::1"),
            ("without_port", "fe80::1", "fe80::1"),
            ("lower", "GET", "get"),
            ("last|without_port", "10.0.0.1, 10.0.0.2:5", "10.0.0.2"),
        ] {
            let descriptor = format!("k={{f|{filter}}}");
            assert_eq!(filled(&[&descriptor], value), Ok(vec![format!("k={kept}")]), "{filter} {value}");
        }
    }

    #[test]
    fn descriptor_with_missing_or_empty_field_is_left_out() {
        assert_eq!(filled(&["k={f}", "a=b,k={other}"], "v"), Ok(vec!["k=v".to_owned()]));
        assert_eq!(filled(&["k=x{f}y,c=d"], "v"), Ok(vec!["k=xvy,c=d".to_owned()]));
        assert_eq!(filled(&["k={f}", "c=d"], ""), Ok(vec!["c=d".to_owned()]));
    }

    #[test]
    fn invalid_template_is_refused_with_its_text() {
        for (text, why) in [("k={f", "no `}`"), ("k={}", "no name"), ("k={f|upper}", "`upper` is no filter")]
        {
            let error = filled(&[text], "v").unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
