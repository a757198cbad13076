//! Lines of access logs: Envoy's default format, and the combined format of NGINX and Apache.

use std::borrow::Cow;

use smallvec::SmallVec;
use tollgate_wire::descriptor_template::Fields;

/// The fields of Envoy's format in their order.
const ENVOY: [&str; 15] = [
    "start_time",
    "method",
    "path",
    "protocol",
    "response_code",
    "response_flags",
    "bytes_received",
    "bytes_sent",
    "duration",
    "upstream_service_time",
    "x_forwarded_for",
    "user_agent",
    "request_id",
    "authority",
    "upstream_host",
];
/// The number of fields of Envoy's format after the request that have no quotes.
const ENVOY_BARE: usize = 6;
/// The fields of the combined format in their order. The common format ends with the size, and only the `main` format of
/// NGINX has the last one.
const COMBINED: [&str; 11] = [
    "remote_addr",
    "remote_user",
    "start_time",
    "method",
    "path",
    "protocol",
    "response_code",
    "bytes_sent",
    "referer",
    "user_agent",
    "x_forwarded_for",
];

/// A line, by the values of its fields.
#[derive(Debug)]
pub(super) struct AccessLine<'l> {
    names: &'static [&'static str],
    // Those of the names in their order, of which the last may be missing. `None` if the line has a dash.
    values: SmallVec<[Option<&'l str>; 16]>,
    has_escapes: bool,
}

impl<'l> AccessLine<'l> {
    /// Reads `[time] "METHOD path protocol" code flags received sent duration time "for" "agent" "id" "host" "to"`.
    pub(super) fn envoy(line: &'l str) -> Result<Self, String> {
        Self::envoy_parts(line).ok_or_else(|| "this is not Envoy's default access log format".to_owned())
    }

    /// Reads `address ident user [time] "METHOD path protocol" code bytes "referer" "agent"`.
    pub(super) fn combined(line: &'l str) -> Result<Self, String> {
        Self::combined_parts(line).ok_or_else(|| "this is not the combined access log format".to_owned())
    }

    fn envoy_parts(line: &'l str) -> Option<Self> {
        let (start_time, rest) = line.strip_prefix('[')?.split_once("] \"")?;
        let (method, rest) = rest.split_once(' ')?;
        let (path, rest) = rest.split_once(' ')?;
        let (protocol, rest) = rest.split_once("\" ")?;
        let (bare, quoted) = rest.split_once(" \"")?;
        let request = [start_time, method, path, protocol].into_iter();
        // Envoy does not escape quotes, so only a quote beside a space ends a field.
        let quoted = quoted.strip_suffix('"')?.split("\" \"");
        let texts = request.chain(bare.split(' ')).chain(quoted);
        let values: SmallVec<_> = texts.map(|text| Some(text).filter(|text| *text != "-")).collect();
        let is_whole = bare.split(' ').count() == ENVOY_BARE && values.len() == ENVOY.len();
        is_whole.then_some(Self { names: &ENVOY, values, has_escapes: false })
    }

    fn combined_parts(line: &'l str) -> Option<Self> {
        let (client, rest) = line.split_once(" [")?;
        let (remote_addr, user) = client.split_once(' ')?;
        // The name of a user may have spaces.
        let (_ident, remote_user) = user.split_once(' ')?;
        let (start_time, rest) = rest.split_once("] ")?;
        let (request, rest) = in_quotes(rest)?;
        let mut words = rest.strip_prefix(' ')?.splitn(3, ' ');
        let response_code = words.next()?;
        let bytes_sent = words.next()?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(response_code) || !(is_number(bytes_sent) || bytes_sent == "-") {
            return None;
        }
        let client = [remote_addr, remote_user, start_time].map(Some);
        let response = [response_code, bytes_sent].map(Some);
        let mut values: SmallVec<[_; 16]> =
            client.into_iter().chain(request_parts(request)).chain(response).collect();
        let mut rest = words.next().unwrap_or_default();
        while !rest.is_empty() && values.len() < COMBINED.len() {
            let (text, after) = in_quotes(rest)?;
            values.push(Some(text));
            rest = after.strip_prefix(' ').unwrap_or(after);
        }
        for value in &mut values {
            *value = value.filter(|text| *text != "-" && !text.is_empty());
        }
        Some(Self { names: &COMBINED, values, has_escapes: true })
    }
}

impl Fields for AccessLine<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let index = self.names.iter().position(|field| *field == name)?;
        let value = self.values.get(index).copied()??;
        Some(if self.has_escapes { unescaped(value) } else { Cow::Borrowed(value.as_bytes()) })
    }
}

/// Method, path and protocol; none if the request is malformed. Version 0.9 has no protocol.
fn request_parts(request: &str) -> [Option<&str>; 3] {
    let mut parts = request.splitn(3, ' ');
    let [method, path, protocol] = [(); 3].map(|()| parts.next());
    let is_in_method = |byte: u8| byte.is_ascii_uppercase() || byte == b'-' || byte == b'_';
    let is_valid = path.is_some() && method.is_some_and(|method| method.bytes().all(is_in_method));
    if is_valid { [method, path, protocol] } else { [None; 3] }
}

/// The text in quotes at the start, and what follows it. A backslash escapes a quote.
fn in_quotes(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((&text[..end], &text[end + 1..]))
}

/// A value as it was sent: Apache writes `\"` and `\\`, both write `\xhh` for other bytes.
fn unescaped(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('\\') {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let (byte, used) = match (first, after) {
            (b'\\', [b'x', high, low, ..]) => match hex(*high).zip(hex(*low)) {
                Some((high, low)) => (high * 16 + low, 3),
                None => (b'\\', 0),
            },
            (b'\\', [quoted @ (b'"' | b'\\'), ..]) => (*quoted, 1),
            (other, _) => (*other, 0),
        };
        bytes.push(byte);
        rest = &rest[used..];
    }
    Cow::Owned(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVOY_LINE: &str = r#"[2026-01-02T03:04:05.250Z] "GET /a/b?c=d HTTP/1.1" 200 - 0 154 12 11 "10.0.0.9, 10.0.0.1" "a "quoted" agent" "id-1" "shop.test" "-""#;
    const COMBINED_LINE: &str = r#"192.0.2.7 - joe smith [02/Mar/2026:09:00:01 +0100] "GET /a/b?c=d HTTP/1.1" 200 612 "https://shop.test/" "a \"quoted\" \x61gent\xE9""#;

    #[test]
    fn default_format_of_envoy_is_read_by_its_fields() {
        let line = AccessLine::envoy(ENVOY_LINE).unwrap();
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
    fn combined_format_is_read_by_its_fields() {
        let line = AccessLine::combined(COMBINED_LINE).unwrap();
        for (name, value) in [
            ("remote_addr", Some("192.0.2.7")),
            ("remote_user", Some("joe smith")),
            ("start_time", Some("02/Mar/2026:09:00:01 +0100")),
            ("method", Some("GET")),
            ("path", Some("/a/b?c=d")),
            ("protocol", Some("HTTP/1.1")),
            ("response_code", Some("200")),
            ("bytes_sent", Some("612")),
            ("referer", Some("https://shop.test/")),
            ("x_forwarded_for", None),
            ("other", None),
        ] {
            assert_eq!(line.get(name).as_deref(), value.map(str::as_bytes), "{name}");
        }
        assert_eq!(line.get("user_agent").as_deref(), Some(&b"a \"quoted\" agent\xe9"[..]));
    }

    #[test]
    fn common_and_main_formats_are_read_too() {
        let (common, _) = COMBINED_LINE.split_once(" \"https").unwrap();
        let line = AccessLine::combined(common).unwrap();
        assert_eq!((line.get("path").as_deref(), line.get("user_agent")), (Some(&b"/a/b?c=d"[..]), None));
        let main = format!("{COMBINED_LINE} \"10.0.0.9, 10.0.0.1\"");
        let forwarded = AccessLine::combined(&main).unwrap().get("x_forwarded_for").map(Cow::into_owned);
        assert_eq!(forwarded.as_deref(), Some(&b"10.0.0.9, 10.0.0.1"[..]));
    }

    #[test]
    fn malformed_request_has_an_address_and_no_path() {
        for request in [r"\x16\x03\x01", "-", "", "hello world 1"] {
            let text = COMBINED_LINE.replace("GET /a/b?c=d HTTP/1.1", request).replace(" 612 ", " - ");
            let line = AccessLine::combined(&text).unwrap();
            assert_eq!(
                (line.get("remote_addr").as_deref(), line.get("path")),
                (Some(&b"192.0.2.7"[..]), None)
            );
            assert_eq!(line.get("bytes_sent"), None);
        }
    }

    #[test]
    fn other_lines_are_refused() {
        let line = ENVOY_LINE;
        for other in
            ["", "[now] GET", &line[..line.len() - 4], &format!("{line} 5"), &line.replace(" 154", "")]
        {
            assert!(AccessLine::envoy(other).is_err(), "{other}");
        }
        let line = COMBINED_LINE;
        let without_end = line.trim_end_matches('"');
        for other in
            ["", "time,user", "a - - [now] GET", without_end, &line.replace(" 200 ", " ok "), &line[12..]]
        {
            assert!(AccessLine::combined(other).is_err(), "{other}");
        }
    }
}
