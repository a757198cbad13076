//! One request of the replayed traffic.

use std::ops::Range;

use tollgate_counter::{descriptor::Entry, time::Timestamp};
use tollgate_wire::descriptor_template::{DescriptorTemplate, Fields};

/// The number of requests that are read before they are decided. Each has up to a line, which is at most 1 MiB.
pub(super) const READ_AHEAD: usize = 64;

/// A request: instant, domain, descriptors and hits. Its memory is reused for the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct Event {
    /// The instant of the request, as recorded.
    pub(super) at: Timestamp,
    /// The hits of each descriptor without its own, at least 1.
    hits: u64,
    /// Which request of a generator this is; replayed files leave it at its default.
    pub(super) origin: GeneratedOrigin,
    domain: String,
    // The text of all entries.
    bytes: Vec<u8>,
    // The keys and values of each entry.
    entries: Vec<[Range<usize>; 2]>,
    // The number of entries up to the end of each descriptor, and its hits.
    ends: Vec<(usize, u64)>,
}

/// A generated request: its key and the number of earlier attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GeneratedOrigin {
    /// The number of the key; `None` for the attacker.
    pub(super) key: Option<u64>,
    /// The number of earlier attempts.
    pub(super) attempt: u32,
}

impl Event {
    /// Begins another request.
    pub(super) fn begin(&mut self, at: Timestamp, domain: &str, hits: u64) {
        self.at = at;
        self.hits = hits;
        self.bytes.clear();
        self.entries.clear();
        self.ends.clear();
        domain.clone_into(&mut self.domain);
    }

    /// Adds an entry to the descriptor that is not ended yet.
    pub(super) fn entry(&mut self, key: &[u8], value: &[u8]) {
        let key = self.append(key);
        let value = self.append(value);
        self.entries.push([key, value]);
    }

    /// Adds the descriptors of these fields. As in Envoy, a descriptor is left out if a field of it is missing or
    /// empty.
    pub(super) fn fill(&mut self, template: &DescriptorTemplate, fields: &impl Fields) {
        for entries in template.descriptors() {
            let is_complete = entries.iter().all(|entry| {
                let key = self.append(&entry.key);
                let start = self.bytes.len();
                let is_filled = entry.fill(fields, &mut self.bytes).is_ok();
                self.entries.push([key, start..self.bytes.len()]);
                is_filled
            });
            if is_complete {
                self.end_descriptor();
            } else {
                self.drop_descriptor();
            }
        }
    }

    /// Ends a descriptor with the hits of the request.
    pub(super) fn end_descriptor(&mut self) {
        self.end_descriptor_with(self.hits);
    }

    /// Ends a descriptor with its own hits.
    pub(super) fn end_descriptor_with(&mut self, hits: u64) {
        self.ends.push((self.entries.len(), hits));
    }

    /// Drops the entries of the descriptor that is not ended yet.
    pub(super) fn drop_descriptor(&mut self) {
        self.entries.truncate(self.ends.last().map_or(0, |(entries, _)| *entries));
    }

    pub(super) fn domain(&self) -> &str {
        &self.domain
    }

    /// Whether the event has no descriptors: no limit can apply.
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The entries of all descriptors.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let part = |range: &Range<usize>| &self.bytes[range.clone()];
        self.entries.iter().map(move |[key, value]| Entry::new(part(key), part(value)))
    }

    /// The indices of the entries of each descriptor, and its hits.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (Range<usize>, u64)> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(entries, _)| *entries));
        starts.zip(&self.ends).map(|(start, (end, hits))| (start..*end, *hits))
    }

    fn append(&mut self, part: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(part);
        start..self.bytes.len()
    }
}

/// The traffic that is replayed.
pub(super) trait Source {
    /// Reads the next request into `event`; `false` at the end.
    fn next(&mut self, event: &mut Event) -> Result<bool, String>;

    /// The number of requests that may be read before the outcome of the first is known.
    fn read_ahead(&self) -> usize {
        READ_AHEAD
    }

    /// Reports that `event` was refused, and when it would pass.
    fn refused(&mut self, _event: &Event, _retry_after: Option<std::time::Duration>) {}

    /// What was left out so far.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }
}

/// What a source has left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Skipped {
    /// The number of lines that cannot be read.
    pub(super) bad_lines: u64,
    /// The first lines that cannot be read.
    pub(super) first_bad_lines: Vec<BadLine>,
    /// The number of lines that give no descriptor: a field is missing or empty in each.
    pub(super) without_descriptor: u64,
    /// The number of requests that the service did not record or log.
    pub(super) unrecorded: u64,
    /// The number of retries that a generator dropped because too many were pending.
    pub(super) dropped_retries: u64,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct BadLine {
    /// The number of the line, from 1.
    pub(super) line: u64,
    pub(super) why: String,
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tollgate_counter::descriptor;

    use super::*;
    use tollgate_wire::descriptor_text;

    struct One(&'static str);

    impl Fields for One {
        fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
            (name == "f").then_some(Cow::Borrowed(self.0.as_bytes()))
        }
    }

    fn filled(templates: &[&str], value: &'static str) -> Vec<String> {
        let entries: Vec<_> = templates.iter().map(|text| descriptor_text::parse(text).unwrap()).collect();
        let mut event = Event::default();
        event.begin(Timestamp::EPOCH, "d", 1);
        event.fill(&DescriptorTemplate::new(entries.iter()).unwrap(), &One(value));
        let all: Vec<_> = event.entries().collect();
        let text =
            |entries: &[Entry<'_>]| descriptor::format(entries.iter().map(|entry| (entry.key, entry.value)));
        event.descriptors().map(|(range, _)| text(&all[range])).collect()
    }

    #[test]
    fn descriptor_with_missing_or_empty_field_is_left_out() {
        assert_eq!(filled(&["k={f}", "a=b,k={other}"], "v"), ["k=v"]);
        assert_eq!(filled(&["a=b,k={other|optional}", "k=x{f|optional}y,c=d"], "v"), ["k=xvy,c=d"]);
        assert_eq!(filled(&["k={f}", "c=d"], ""), ["c=d"]);
    }
}
