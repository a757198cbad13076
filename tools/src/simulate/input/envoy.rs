//! Lines of Envoy's default access log format.

use std::borrow::Cow;

use tollgate_wire::descriptor_template::Fields;

/// The fields after the request, in order, without quotes and in quotes.
const BARE: [&str; 6] =
    ["response_code", "response_flags", "bytes_received", "bytes_sent", "duration", "upstream_service_time"];
const QUOTED: [&str; 5] = ["x_forwarded_for", "user_agent", "request_id", "authority", "upstream_host"];

/// A line, by its fields.
#[derive(Debug)]
pub(super) struct AccessLine<'l> {
    start_time: &'l str,
    method: &'l str,
    path: &'l str,
    protocol: &'l str,
    bare: [&'l str; BARE.len()],
    quoted: [&'l str; QUOTED.len()],
}

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
        let mut bare = [""; BARE.len()];
        let mut words = bare_text.split(' ');
        for field in &mut bare {
            *field = words.next()?;
        }
        // Envoy does not escape quotes, so only a quote beside a space ends a field.
        let mut quoted = [""; QUOTED.len()];
        let mut texts = quoted_text.strip_suffix('"')?.split("\" \"");
        for field in &mut quoted {
            *field = texts.next()?;
        }
        let is_whole = words.next().is_none() && texts.next().is_none();
        is_whole.then_some(Self { start_time, method, path, protocol, bare, quoted })
    }
}

impl Fields for AccessLine<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let at = |names: &[&str]| names.iter().position(|field| *field == name);
        let value = match name {
            "start_time" => self.start_time,
            "method" => self.method,
            "path" => self.path,
            "protocol" => self.protocol,
            _ => match at(&BARE) {
                Some(index) => self.bare[index],
                None => self.quoted[at(&QUOTED)?],
            },
        };
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
