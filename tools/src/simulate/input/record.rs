//! One line of a log as a record of named fields.

use std::borrow::Cow;

use serde_json::Value as Json;
use tollgate_counter::{descriptor, named};
use tollgate_wire::descriptor_template::Fields;

use crate::{
    columns::Columns,
    simulate::{
        event::Event,
        input::{access_log::AccessLine, instant},
    },
};

named! {
    /// A format of recorded traffic.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FormatName {
        /// An object in each line.
        Json = "json",
        /// Columns, separated by commas.
        Csv = "csv",
        /// Envoy's default access log format.
        Envoy = "envoy",
        /// The combined access log format of NGINX and Apache.
        Combined = "combined",
    }
}

/// A format, with what it keeps from line to line.
#[derive(Debug)]
pub(super) struct RecordFormat {
    // `None` until it is found by the first line.
    name: Option<FormatName>,
    // Those of CSV.
    columns: Columns,
}

/// The fields of one line.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, without an allocation")]
pub(super) enum Record<'l> {
    Json(Json),
    Columns(&'l Columns),
    AccessLog(AccessLine<'l>),
}

impl RecordFormat {
    /// The format with this name; columns have these names, or those of the first line.
    pub(super) fn new(name: Option<FormatName>, columns: Option<Vec<String>>) -> Self {
        let name = name.or(columns.is_some().then_some(FormatName::Csv));
        Self { name, columns: Columns::new(columns) }
    }

    /// The record of a line; `None` for a header.
    pub(super) fn read<'l>(&'l mut self, line: &'l str) -> Result<Option<Record<'l>>, String> {
        let name = *self.name.get_or_insert_with(|| match line.trim_start().as_bytes().first() {
            Some(b'{') => FormatName::Json,
            Some(b'[') => FormatName::Envoy,
            Some(_) if AccessLine::combined(line).is_ok() => FormatName::Combined,
            Some(_) | None => FormatName::Csv,
        });
        match name {
            FormatName::Json => match serde_json::from_str(line) {
                Ok(value @ Json::Object(_)) => Ok(Some(Record::Json(value))),
                Ok(_) => Err("the line is JSON, but no object".to_owned()),
                Err(error) => Err(format!("the line is not JSON: {error}")),
            },
            FormatName::Envoy => AccessLine::envoy(line).map(|line| Some(Record::AccessLog(line))),
            FormatName::Combined => AccessLine::combined(line).map(|line| Some(Record::AccessLog(line))),
            FormatName::Csv => {
                self.columns.read(line).map(|is_record| is_record.then_some(Record::Columns(&self.columns)))
            }
        }
    }
}

impl Record<'_> {
    /// The domain that the record names.
    pub(super) fn domain(&self) -> Option<&str> {
        match self {
            Self::Json(value) => value["domain"].as_str().filter(|domain| !domain.is_empty()),
            Self::Columns(_) | Self::AccessLog(_) => None,
        }
    }

    /// Adds the descriptors that the record contains, in the form of `POST /json`.
    pub(super) fn descriptors(&self, event: &mut Event) -> Result<(), String> {
        let Self::Json(value) = self else {
            return Err("the format has no descriptors; --descriptor makes them of its fields".to_owned());
        };
        let form = || {
            "`descriptors` has not the form [{\"entries\": [{\"key\": ..., \"value\": ...}]}], and --descriptor is not given".to_owned()
        };
        for descriptor in value["descriptors"].as_array().ok_or_else(form)? {
            for entry in descriptor["entries"].as_array().ok_or_else(form)? {
                let key = entry["key"].as_str().ok_or_else(form)?;
                let value = entry["value"].as_str().unwrap_or_default();
                // Recordings escape entries that are not UTF-8.
                if entry["escaped"] == true {
                    event.entry(&descriptor::unescaped(key)?, &descriptor::unescaped(value)?);
                } else {
                    event.entry(key.as_bytes(), value.as_bytes());
                }
            }
            // The JSON form of a message has this name, and number fields of 64 bits are texts.
            match in_json(descriptor, "hitsAddend").or_else(|| in_json(descriptor, "hits_addend")) {
                None => event.end_descriptor(),
                Some(text) => event.end_descriptor_with(hits_of(&text)?),
            }
        }
        Ok(())
    }

    /// The requests that a recorder left out, if the record is the end of a recording.
    pub(super) fn recording_left_out(&self) -> Option<u64> {
        let Self::Json(value) = self else { return None };
        value.get("recording")?.get("left_out")?.as_u64()
    }

    /// Makes a request of a denial in the log of the service, and returns how many denials the log left out before it;
    /// `None` if the record is another event.
    pub(super) fn denial(&self, event: &mut Event) -> Result<Option<u64>, String> {
        let Self::Json(value) = self else {
            return Err("--from-denials reads the log of the service with log.format: json".to_owned());
        };
        if value["message"] != "denied" {
            return Ok(None);
        }
        if value["hits"] == 0 {
            // A peek or a refund, which charges nothing.
            return Ok(None);
        }
        let missing = "a denial without `timestamp`, `domain` or `descriptor`";
        let text = |name: &str| value[name].as_str().ok_or(missing);
        let at = text("timestamp")?;
        let domain = text("domain")?;
        let descriptor = text("descriptor")?;
        let at = instant::required(at)?;
        if descriptor.ends_with('…') {
            return Err("the log has cut the descriptor".to_owned());
        }
        event.begin(at, domain, value["hits"].as_u64().unwrap_or(1));
        for (key, value) in descriptor::parse(descriptor)? {
            event.entry(&key, &value);
        }
        event.end_descriptor();
        Ok(Some(value["left_out"].as_u64().unwrap_or_default()))
    }
}

/// A number of hits.
pub(super) fn hits_of(text: &str) -> Result<u64, String> {
    let hits = text.parse().ok().filter(|hits| *hits > 0);
    hits.ok_or_else(|| format!("`{text}` is no number of hits; whole numbers from 1 are"))
}

impl Fields for Record<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::Json(value) => in_json(value, name).map(|text| match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }),
            Self::AccessLog(line) => line.get(name),
            Self::Columns(columns) => columns.get(name).map(|value| Cow::Borrowed(value.as_bytes())),
        }
    }
}

/// The value with this name, or the one that a path with dots leads to.
fn in_json<'v>(value: &'v Json, name: &str) -> Option<Cow<'v, str>> {
    let found = value.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(value.get(first)?, |value, part| value.get(part))
    });
    match found? {
        // Envoy writes a dash for what is missing.
        Json::String(text) if text == "-" => None,
        Json::String(text) => Some(Cow::Borrowed(text)),
        Json::Number(number) => Some(Cow::Owned(number.to_string())),
        Json::Bool(boolean) => Some(Cow::Borrowed(if *boolean { "true" } else { "false" })),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}
