//! Lines of the combined access log format of NGINX and Apache.

use std::borrow::Cow;

use smallvec::SmallVec;
use tollgate_wire::descriptor_template::Fields;

/// The fields up to the size, in order.
const BARE: [&str; 8] =
    ["remote_addr", "remote_user", "start_time", "method", "path", "protocol", "response_code", "bytes_sent"];
/// The fields after the size, in order. The common format has none, and only the `main` format of NGINX has the last one.
const QUOTED: [&str; 3] = ["referer", "user_agent", "x_forwarded_for"];

/// A line, by the values of its fields.
#[derive(Debug)]
pub(super) struct CombinedLine<'l>(SmallVec<[Option<&'l str>; 16]>);

impl<'l> CombinedLine<'l> {
    /// Reads `address ident user [time] "METHOD path protocol" code bytes "referer" "agent"`.
    pub(super) fn read(line: &'l str) -> Result<Self, String> {
        Self::parts(line).ok_or_else(|| "this is not the combined access log format".to_owned())
    }

    fn parts(line: &'l str) -> Option<Self> {
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
        let mut values: SmallVec<_> =
            client.into_iter().chain(request_parts(request)).chain(response).collect();
        let mut rest = words.next().unwrap_or_default();
        while !rest.is_empty() && values.len() < BARE.len() + QUOTED.len() {
            let (text, after) = in_quotes(rest)?;
            values.push(Some(text));
            rest = after.strip_prefix(' ').unwrap_or(after);
        }
        Some(Self(values))
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

impl Fields for CombinedLine<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let index = BARE.iter().chain(&QUOTED).position(|field| *field == name)?;
        let value = self.0.get(index).copied()??;
        // Both servers write a dash for what is missing.
        (value != "-" && !value.is_empty()).then(|| unescaped(value))
    }
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

    const LINE: &str = r#"192.0.2.7 - joe smith [02/Mar/2026:09:00:01 +0100] "GET /a/b?c=d HTTP/1.1" 200 612 "https://shop.test/" "a \"quoted\" \x61gent\xE9""#;

    #[test]
    fn combined_format_is_read_by_its_fields() {
        let line = CombinedLine::read(LINE).unwrap();
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
        let (common, _) = LINE.split_once(" \"https").unwrap();
        let line = CombinedLine::read(common).unwrap();
        assert_eq!((line.get("path").as_deref(), line.get("user_agent")), (Some(&b"/a/b?c=d"[..]), None));
        let main = format!("{LINE} \"10.0.0.9, 10.0.0.1\"");
        let forwarded = CombinedLine::read(&main).unwrap().get("x_forwarded_for").map(Cow::into_owned);
        assert_eq!(forwarded.as_deref(), Some(&b"10.0.0.9, 10.0.0.1"[..]));
    }

    #[test]
    fn malformed_request_has_an_address_and_no_path() {
        for request in [r"\x16\x03\x01", "-", "", "hello world 1"] {
            let text = LINE.replace("GET /a/b?c=d HTTP/1.1", request).replace(" 612 ", " - ");
            let line = CombinedLine::read(&text).unwrap();
            assert_eq!(
                (line.get("remote_addr").as_deref(), line.get("path")),
                (Some(&b"192.0.2.7"[..]), None)
            );
            assert_eq!(line.get("bytes_sent"), None);
        }
    }

    #[test]
    fn other_lines_are_refused() {
        let without_end = LINE.trim_end_matches('"');
        for line in
            ["", "time,user", "a - - [now] GET", without_end, &LINE.replace(" 200 ", " ok "), &LINE[12..]]
        {
            assert!(CombinedLine::read(line).is_err(), "{line}");
        }
    }
}
