//! Recorded traffic: access logs, JSON lines and CSV, line by line.

use std::{io::BufRead, path::PathBuf};

use tollgate_counter::time::Timestamp;
use tollgate_wire::descriptor_template::{DescriptorTemplate, Fields as _};

use crate::simulate::{
    event::{BadLine, Event, Skipped, Source},
    input::{
        lines::{Line, Lines},
        record::{FormatName, Record, RecordFormat},
    },
};

mod access_log;
pub(super) mod file;
pub(super) mod instant;
mod lines;
pub(super) mod record;

/// The number of bad lines that are named.
const NAMED_MAX: usize = 5;
/// The fields of the instant, unless one is named.
const TIME_FIELDS: [&str; 5] = ["time", "timestamp", "start_time", "@timestamp", "ts"];
/// The field of the hits, unless one is named.
const HITS_FIELD: &str = "hits";

/// The file of requests, and how its records become requests.
#[derive(Clone, Debug)]
pub(super) struct RecordedTerms {
    pub(super) path: PathBuf,
    /// The format of the file; `None` if the first line is to tell.
    pub(super) format: Option<FormatName>,
    /// The columns of CSV without a header.
    pub(super) columns: Option<Vec<String>>,
    /// The domain of records that name none.
    pub(super) domain: Option<String>,
    pub(super) content: RecordContent,
    pub(super) time_field: Option<String>,
    pub(super) hits_field: Option<String>,
    /// Whether a line that cannot be read ends the replay; otherwise it is counted and left out.
    pub(super) is_strict: bool,
}

/// What the records are.
#[derive(Clone, Debug)]
pub(super) enum RecordContent {
    /// Requests with their descriptors.
    Requests,
    /// Fields of which the descriptors are made.
    Fields(DescriptorTemplate),
    /// Events of the service's log, of which denials are requests.
    Denials,
}

/// The requests of a file.
pub(super) struct Recorded {
    lines: Lines<Box<dyn BufRead + Send>>,
    terms: RecordedTerms,
    // That of the terms, with what is found by the first line.
    format: RecordFormat,
    skipped: Skipped,
}

impl Recorded {
    /// The requests in `bytes`, which are those of the file.
    pub(super) fn new(bytes: Box<dyn BufRead + Send>, terms: RecordedTerms) -> Self {
        let lines = Lines::new(bytes);
        let format = RecordFormat::new(terms.format, terms.columns.clone());
        Self { lines, terms, format, skipped: Skipped::default() }
    }
}

impl Source for Recorded {
    fn next(&mut self, event: &mut Event) -> Result<bool, String> {
        loop {
            let line = self.lines.next().map_err(|(line, error)| format!("line {line}: {error}"))?;
            let read = match line {
                Line::End => return Ok(false),
                Line::Text("") => continue,
                Line::Text(text) => match self.format.read(text) {
                    Ok(None) => continue,
                    Ok(Some(record)) => match self.terms.content {
                        RecordContent::Denials => match record.denial(event) {
                            Ok(Some(left_out)) => {
                                self.skipped.unrecorded += left_out;
                                Ok(())
                            }
                            Ok(None) => continue,
                            Err(why) => Err(why),
                        },
                        RecordContent::Requests | RecordContent::Fields(_) => {
                            match record.recording_left_out() {
                                Some(left_out) => {
                                    self.skipped.unrecorded += left_out;
                                    continue;
                                }
                                None => fill(&record, &self.terms, event),
                            }
                        }
                    },
                    Err(why) => Err(why),
                },
                Line::Bad(why) => Err(why.to_owned()),
            };
            match read {
                Ok(()) if event.is_empty() => self.skipped.without_descriptor += 1,
                Ok(()) => return Ok(true),
                Err(why) => {
                    let line = self.lines.number;
                    if self.terms.is_strict {
                        return Err(format!("line {line}: {why}"));
                    }
                    self.skipped.bad_lines += 1;
                    if self.skipped.first_bad_lines.len() < NAMED_MAX {
                        self.skipped.first_bad_lines.push(BadLine { line, why });
                    }
                }
            }
        }
    }

    fn skipped(&self) -> Skipped {
        self.skipped.clone()
    }
}

/// Makes the request of a record.
fn fill(record: &Record<'_>, terms: &RecordedTerms, event: &mut Event) -> Result<(), String> {
    let at = time(record, terms.time_field.as_deref())?;
    let hits = hits(record, terms.hits_field.as_deref())?;
    let domain = record.domain().or(terms.domain.as_deref());
    let domain = domain.ok_or("the record names no `domain`, and --domain is not given")?;
    event.begin(at, domain, hits);
    match &terms.content {
        RecordContent::Fields(template) => event.fill(template, record),
        RecordContent::Requests | RecordContent::Denials => record.descriptors(event)?,
    }
    Ok(())
}

fn time(record: &Record<'_>, field: Option<&str>) -> Result<Timestamp, String> {
    let found = match field {
        Some(field) => record.get(field).ok_or_else(|| format!("there is no field `{field}`, the time"))?,
        None => {
            let missing = || {
                format!(
                    "there is no time; --time names its field, or it is one of {}",
                    TIME_FIELDS.join(", ")
                )
            };
            TIME_FIELDS.iter().find_map(|field| record.get(field)).ok_or_else(missing)?
        }
    };
    instant::required(&String::from_utf8_lossy(&found))
}

fn hits(record: &Record<'_>, field: Option<&str>) -> Result<u64, String> {
    let Some(found) = record.get(field.unwrap_or(HITS_FIELD)) else {
        return match field {
            None => Ok(1),
            Some(field) => Err(format!("there is no field `{field}`, the hits")),
        };
    };
    record::hits_of(&String::from_utf8_lossy(&found))
}

#[cfg(test)]
mod tests;
