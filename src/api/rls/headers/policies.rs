//! `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-11.

use std::{collections::HashMap, fmt::Write as _, time::Duration};

use tollgate_counter::algorithm::{Admission, Limit};
use tollgate_limiter::limiter::{ActiveView, Answer, Modes, Request, Retry};
use tollgate_rules::Rule;
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

use crate::api::rls::headers::{
    settings::HeaderSettings,
    visible::{VisibleLimit, header, seconds},
};

/// The most limits in a header. Of more, the tightest ones are listed.
const LISTED_MAX: usize = 32;
/// The largest integer of a structured field: it has 15 digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The limits in their order, each name once. Of two with one name, the tighter one.
pub(super) fn distinct<'s>(
    visible: impl Iterator<Item = VisibleLimit<'s>>,
    modes: Modes,
) -> Vec<VisibleLimit<'s>> {
    let mut listed = Vec::<VisibleLimit<'s>>::new();
    let mut places = HashMap::new();
    for limit in visible {
        let place = *places.entry(limit.status.name()).or_insert(listed.len());
        match listed.get_mut(place) {
            None => listed.push(limit),
            Some(before) if limit.rank(modes) < before.rank(modes) => *before = limit,
            Some(_) => {}
        }
    }
    if listed.len() > LISTED_MAX {
        listed.sort_by_key(|limit| limit.rank(modes));
        listed.truncate(LISTED_MAX);
        listed.sort_by_key(|limit| limit.descriptor);
    }
    listed
}

impl HeaderSettings {
    /// The two headers for the limits that are `listed`; none without limits.
    pub(super) fn policies(
        &self,
        listed: &[VisibleLimit<'_>],
        view: &ActiveView<'_>,
        request: &Request<'_>,
        answer: &Answer<'_>,
        modes: Modes,
    ) -> Option<[HeaderValue; 2]> {
        if listed.is_empty() {
            return None;
        }
        let retry = answer.retry(modes, request);
        let mut policies = String::new();
        let mut limits = String::new();
        for visible in listed {
            let name = string(visible.status.name());
            let mut partition = String::new();
            if self.partition_key
                && let Some(key) = view.partition_key(request, visible.descriptor)
            {
                partition = format!(";pk={}", byte_sequence(&key));
            }
            for list in [&mut policies, &mut limits] {
                list.push_str(if list.is_empty() { "" } else { ", " });
                list.push_str(&name);
            }
            // Writing to a string does not fail.
            let _ = write!(policies, ";q={}", integer(visible.limit.requests_per_unit));
            if let Some(window) = visible.window().filter(|window| *window <= self.window_max) {
                let _ = write!(policies, ";w={}", seconds(window));
            }
            let _ = write!(policies, ";qu={}{partition}", string(visible.quota_unit()));
            let _ = write!(limits, ";r={}", integer(visible.status.remaining));
            let reset = visible.resets_after(answer, retry).map(seconds);
            if let Some(reset) = reset.filter(|reset| *reset <= self.window_max.as_secs()) {
                let _ = write!(limits, ";t={reset}");
            }
            limits.push_str(&partition);
        }
        Some([header("RateLimit-Policy", policies), header("RateLimit", limits)])
    }
}

impl VisibleLimit<'_> {
    /// The window, if it is a whole number of seconds. Places in flight have none.
    fn window(&self) -> Option<Duration> {
        if let Some(unit) = self.limit.unit {
            return Some(Duration::from_secs(unit.seconds().into()));
        }
        let limit = self.rule_limit().filter(|limit| limit.admission() != Admission::InFlight);
        limit.and_then(Limit::period).filter(|period| period.subsec_nanos() == 0)
    }

    /// What it counts.
    fn quota_unit(&self) -> &str {
        let named = self.status.rule.and_then(|rule| rule.options().quota_unit.as_deref());
        named.unwrap_or_else(|| match self.rule_limit().map(Limit::admission) {
            Some(Admission::InFlight) => "concurrent-requests",
            Some(Admission::AtOnce | Admission::Delayed) | None => "requests",
        })
    }

    /// A time after which the request passes if it is sent again, as far as one is known. After a refusal it is that of
    /// the request, and limits that have not refused have none: it must be neither earlier nor later than
    /// `Retry-After`.
    fn resets_after(&self, answer: &Answer<'_>, retry: Retry) -> Option<Duration> {
        match retry {
            Retry::After(wait) if answer.passes => Some(self.reset_after.max(wait)),
            Retry::After(wait) if !self.status.passes => Some(wait),
            Retry::After(_) | Retry::Unknown | Retry::Never => None,
        }
    }

    fn rule_limit(&self) -> Option<&Limit> {
        self.status.rule.and_then(Rule::limit)
    }
}

/// An integer of a structured field (RFC 9651). Larger ones become the largest.
fn integer(number: u64) -> u64 {
    number.min(INTEGER_MAX)
}

/// A string of a structured field. It can hold printable ASCII only, so the bytes of other characters, and `%`, are written as `%XX`.
fn string(text: &str) -> String {
    let mut string = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => string.extend(['\\', char::from(byte)]),
            b' '..=b'~' if byte != b'%' => string.push(char::from(byte)),
            _other => {
                // Writing to a string does not fail.
                let _ = write!(string, "%{byte:02X}");
            }
        }
    }
    string.push('"');
    string
}

/// A byte sequence of a structured field: Base64 between colons.
fn byte_sequence(bytes: &[u8]) -> String {
    let mut sequence = String::from(":");
    for chunk in bytes.chunks(3) {
        let filled = chunk.iter().chain([0; 2].iter()).take(3);
        let block = filled.fold(0_usize, |block, byte| block << 8 | usize::from(*byte));
        let digits = [18, 12, 6, 0].map(|shift| char::from(BASE64[block >> shift & 63]));
        sequence.extend(digits.iter().take(chunk.len() + 1));
        sequence.extend((chunk.len()..3).map(|_| '='));
    }
    sequence.push(':');
    sequence
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{BareItem, Item, Parser};

    use super::*;

    fn parsed(text: &str) -> BareItem {
        Parser::new(text).parse::<Item>().unwrap_or_else(|error| panic!("{text}: {error}")).bare_item
    }

    proptest! {
        #[test]
        fn string_is_parsed_to_its_text(text in "[ -$&-~]{0,40}") {
            let item = parsed(&string(&text));
            prop_assert_eq!(item.as_string().unwrap().as_str(), text);
        }

        #[test]
        fn any_text_is_a_string_of_its_own(one in ".{0,8}", other in ".{0,8}") {
            let strings = [&one, &other].map(|text| parsed(&string(text)));
            prop_assert_eq!(strings[0] == strings[1], one == other);
        }

        #[test]
        fn byte_sequence_is_parsed_to_its_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let item = parsed(&byte_sequence(&bytes));
            prop_assert_eq!(item.as_byte_sequence().unwrap(), bytes);
        }

        #[test]
        fn integer_has_at_most_15_digits(number: u64) {
            let text = integer(number).to_string();
            prop_assert!(parsed(&text).as_integer().is_some() && text.len() <= 15);
        }
    }

    #[test]
    fn characters_beyond_ascii_are_written_as_bytes() {
        assert_eq!(string("é 50%\n"), r#""%C3%A9 50%25%0A""#);
    }
}
