//! Lines of Envoy's default access log format.

use std::borrow::Cow;

use smallvec::SmallVec;
use tollgate_wire::descriptor_template::Fields;

/// The fields in their order: those up to the end of the request, and those after it without and with quotes.
const REQUEST: [&str; 4] = ["start_time", "method", "path", "protocol"];
const BARE: [&str; 6] =
    ["response_code", "response_flags", "bytes_received", "bytes_sent", "duration", "upstream_service_time"];
const QUOTED: [&str; 5] = ["x_forwarded_for", "user_agent", "request_id", "authority", "upstream_host"];

/// A line, by the values of its fields.
#[derive(Debug)]
pub(super) struct AccessLine<'l>(SmallVec<[&'l str; 16]>);

impl<'l> AccessLine<'l> {
    /// Reads `[time] "METHOD path protocol" code flags received sent duration time "for" "agent" "id" "host" "to"`.
    pub(super) fn read(line: &'l str) -> Result<Self, String> {
        Self::parts(line).ok_or_else(|| "this is not Envoy's default access log format".to_owned())
    }

    fn parts(line: &'l str) -> Option<Self> {
        let (start_time, rest) = line.strip_prefix('[')?.split_once("] \"")?;
        let (method, rest) = rest.split_once(' ')?;
        let (path, rest) = rest.split_once(' ')?;
        let (protocol, rest) = rest.split_once("\" ")?;
        let (bare_text, quoted_text) = rest.split_once(" \"")?;
        let mut values = SmallVec::from_slice(&[start_time, method, path, protocol]);
        values.extend(bare_text.split(' '));
        let has_bare = values.len() == REQUEST.len() + BARE.len();
        // Envoy does not escape quotes, so only a quote beside a space ends a field.
        values.extend(quoted_text.strip_suffix('"')?.split("\" \""));
        let is_whole = has_bare && values.len() == REQUEST.len() + BARE.len() + QUOTED.len();
        is_whole.then_some(Self(values))
    }
}

impl Fields for AccessLine<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut names = REQUEST.iter().chain(&BARE).chain(&QUOTED);
        let value = self.0[names.position(|field| *field == name)?];
        // Envoy writes a dash for what is missing.
        (value != "-").then_some(Cow::Borrowed(value.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"[2026-01-02T03:04:05.250Z] "GET /a/b?c=d HTTP/1.1" 200 - 0 154 12 11 "10.0.0.9, 10.0.0.1" "a "quoted" agent" "id-1" "shop.test" "-""#;

    #[test]
    fn default_format_is_read_by_its_fields() {
        let line = AccessLine::read(LINE).unwrap();
        for (name, value) in [
            ("start_time", Some("2026-01-02T03:04:05.250Z")),
            ("method", Some("GET")),
            ("path", Some("/a/b?c=d")),
            ("response_code", Some("200")),
            ("response_flags", None),
            ("duration", Some("12")),
            ("x_forwarded_for", Some("10.0.0.9, 10.0.0.1")),
            ("user_agent", Some("a \"quoted\" agent")),
            ("authority", Some("shop.test")),
            ("upstream_host", None),
            ("other", None),
        ] {
            assert_eq!(line.get(name).as_deref(), value.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for line in
            ["", "[now] GET", &LINE[..LINE.len() - 4], &format!("{LINE} 5"), &LINE.replace(" 154", "")]
        {
            assert!(AccessLine::read(line).is_err(), "{line}");
        }
    }
}
