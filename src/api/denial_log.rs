//! Logs a sample of denials: the first few of each second.

use std::num::NonZeroU16;

use tollgate_counter::{
    algorithm::Operation,
    descriptor::{self, Entry},
    time::{SECOND, Timestamp},
};
use tollgate_limiter::limiter::{Answer, Request};
use tollgate_telemetry::{logs, sampler::Sampler};
use tracing::info;

/// Maximum length of a logged descriptor, in bytes.
const DESCRIPTOR_BYTES_MAX: usize = 256;

/// Logs a bounded number of denials per second.
#[derive(Debug)]
pub(crate) struct DenialLog(Sampler);

impl DenialLog {
    /// Logs at most `per_second` denials, the first of each second.
    pub(crate) fn new(per_second: NonZeroU16) -> Self {
        Self(Sampler::new(per_second))
    }

    /// Logs the denied descriptors of a request that was decided at `now`, within the bound.
    pub(super) fn log(&self, request: &Request<'_>, answer: &Answer<'_>, now: Timestamp) {
        let second = now.as_nanos() / SECOND;
        let denied = request.descriptors().iter().zip(&answer.statuses).filter(|(_, status)| !status.passes);
        for (descriptor, status) in denied {
            let Some(left_out) = self.0.take(second) else { continue };
            info!(
                name: logs::UNLIMITED,
                domain = request.domain(),
                rule = &*status.label(),
                // Logged as a string, which is quoted and escaped, so that a client cannot forge log lines.
                descriptor = text(descriptor.entries).as_str(),
                hits = match descriptor.operation {
                    Operation::Charge(hits) => hits,
                    Operation::Peek | Operation::Refund(_) => 0,
                },
                limit = status.limit.map(|limit| limit.requests_per_unit),
                retry_after = status.retry_after.map(|wait| wait.as_secs_f64()),
                call_passes = answer.passes,
                left_out,
                "denied"
            );
        }
    }
}

/// Formats entries as `key=value,key=value`, truncated to the maximum length.
fn text<'e>(entries: &[Entry<'e>]) -> String {
    // Parts are cut before they are formatted, because a message may have megabytes of them. A character that is cut
    // here begins beyond the maximum.
    let cut = |part: &'e [u8]| &part[..part.len().min(DESCRIPTOR_BYTES_MAX + char::MAX_LEN_UTF8)];
    let first = &entries[..entries.len().min(DESCRIPTOR_BYTES_MAX)];
    let mut text = descriptor::format(first.iter().map(|entry| (cut(entry.key), cut(entry.value))));
    if text.len() > DESCRIPTOR_BYTES_MAX {
        text.truncate(text.floor_char_boundary(DESCRIPTOR_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(entries: &[(&str, &str)]) -> String {
        text(&entries.iter().map(|(key, value)| Entry::new(key, value)).collect::<Vec<_>>())
    }

    #[test]
    fn descriptor_is_logged_as_its_entries() {
        assert_eq!(shown(&[("a", "1"), ("b", "")]), "a=1,b=");
        assert_eq!(shown(&[("a,", "1=2")]), r"a\,=1\=2");
    }

    #[test]
    fn long_descriptor_is_truncated_between_characters() {
        let long = "é".repeat(DESCRIPTOR_BYTES_MAX);
        let exact = "x".repeat(DESCRIPTOR_BYTES_MAX - 2);
        let cut = shown(&[("a", &long), ("b", "2")]);
        assert_eq!(cut, format!("a={}…", "é".repeat((DESCRIPTOR_BYTES_MAX - 2) / 2)));
        assert_eq!(shown(&[("a", &exact)]).len(), DESCRIPTOR_BYTES_MAX);
        assert_eq!(shown(&[("a", &exact), ("b", "2")]), format!("a={exact}…"));
    }
}
