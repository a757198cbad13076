//! Changes of the value of a field.

use std::{borrow::Cow, net::IpAddr, num::NonZeroU8};

/// A change of the value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueFilter {
    /// The path up to its second slash.
    FirstSegment,
    /// The path of a URI: without scheme and host, query and fragment.
    Path,
    /// The first part of a comma list.
    First,
    /// The part at this place of a comma list, counted from its end.
    FromEnd(NonZeroU8),
    /// An address without its port and brackets.
    WithoutPort,
    /// The value in lower case.
    Lower,
    /// The whole value.
    Whole,
}

/// How the filters are written.
const NAMES: &str = "first_segment, path, first, last, nth-trusted:N, without_port, lower, whole";

impl ValueFilter {
    /// The last part of a comma list.
    pub const LAST: Self = Self::FromEnd(NonZeroU8::MIN);

    /// The filter of this name.
    pub(super) fn parse(word: &str) -> Result<Self, String> {
        Ok(match word {
            "first_segment" => Self::FirstSegment,
            "path" => Self::Path,
            "first" => Self::First,
            "last" => Self::LAST,
            "without_port" => Self::WithoutPort,
            "lower" => Self::Lower,
            "whole" => Self::Whole,
            _ => match word.split_once(':') {
                Some(("nth-trusted", number)) => Self::FromEnd(number.parse().map_err(|_| {
                    format!("`{word}`: the number of proxies is from 1 to 255, as in nth-trusted:2")
                })?),
                Some(_) | None => return Err(format!("`{word}` is no filter; there are {NAMES}")),
            },
        })
    }

    /// What the filter keeps of the value; empty if that is missing. Bytes that are not UTF-8 stay as they are.
    pub(super) fn apply(self, value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
        match (self, value) {
            (Self::Lower, value) => Cow::Owned(lower(&value)),
            (_, Cow::Borrowed(value)) => Cow::Borrowed(self.part(value)),
            (_, Cow::Owned(value)) => Cow::Owned(self.part(&value).to_owned()),
        }
    }

    fn part(self, value: &[u8]) -> &[u8] {
        match self {
            Self::FirstSegment => {
                let path = path(value);
                let start = usize::from(path.starts_with(b"/"));
                position(&path[start..], b"/").map_or(path, |end| &path[..start + end])
            }
            Self::Path => path(value),
            Self::First => address(elements(value).next().unwrap_or_default()),
            Self::FromEnd(place) => {
                let element = elements(value).rev().nth(usize::from(place.get()) - 1);
                address(element.unwrap_or_default())
            }
            Self::WithoutPort => without_port(value),
            Self::Lower | Self::Whole => value,
        }
    }
}

fn lower(value: &[u8]) -> Vec<u8> {
    let chunks = value.utf8_chunks();
    chunks.flat_map(|chunk| [chunk.valid().to_lowercase().as_bytes(), chunk.invalid()].concat()).collect()
}

/// The elements of a comma list. As in HTTP, empty ones do not count.
fn elements(list: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

fn path(uri: &[u8]) -> &[u8] {
    let uri = uri.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
    match position(uri, b"://") {
        Some(scheme) if !uri[..scheme].contains(&b'/') => {
            let rest = &uri[scheme + 3..];
            position(rest, b"/").map_or(b"/", |start| &rest[start..])
        }
        Some(_) | None => uri,
    }
}

/// An IP address without its port and brackets, and any other value as it is.
fn address(value: &[u8]) -> &[u8] {
    let address = without_port(value);
    // The zone of an IPv6 address stays part of it.
    let number = address.split(|byte| *byte == b'%').next().unwrap_or_default();
    let is_address = str::from_utf8(number).is_ok_and(|number| number.parse::<IpAddr>().is_ok());
    if is_address { address } else { value }
}

fn without_port(value: &[u8]) -> &[u8] {
    let bracketed = value.strip_prefix(b"[").and_then(|rest| Some(&rest[..position(rest, b"]")?]));
    match bracketed {
        Some(address) => address,
        // More than one colon: an IPv6 address without a port.
        None if value.iter().filter(|byte| **byte == b':').count() > 1 => value,
        None => value.split(|byte| *byte == b':').next().unwrap_or_default(),
    }
}

/// Where `part` begins.
fn position(value: &[u8], part: &[u8]) -> Option<usize> {
    value.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept<'v>(words: &str, value: &'v (impl AsRef<[u8]> + ?Sized)) -> Cow<'v, [u8]> {
        let filters = words.split('|').map(|word| ValueFilter::parse(word).unwrap());
        filters.fold(Cow::Borrowed(value.as_ref()), |value, filter| filter.apply(value))
    }

    #[test]
    fn filters_keep_their_part_of_the_value() {
        for (filter, value, expected) in [
            ("first_segment", "/a/b?c=/d", "/a"),
            ("first_segment", "/a?c=/d", "/a"),
            ("first_segment", "/", "/"),
            ("first_segment", "a/b", "a"),
            ("path", "/a/b?c#d", "/a/b"),
            ("path", "/a?u=http://b/c", "/a"),
            ("path", "https://shop:8/a/b?c", "/a/b"),
            ("path", "https://shop?c", "/"),
            ("path", "/redirect/http://b/c", "/redirect/http://b/c"),
            ("path", "?a", ""),
            ("first", "10.0.0.1, 10.0.0.2", "10.0.0.1"),
            ("last", "10.0.0.1, 10.0.0.2", "10.0.0.2"),
            ("last", "a b", "a b"),
            ("last", " , ", ""),
            ("last", "10.0.0.1,,", "10.0.0.1"),
            ("nth-trusted:1", "1.1.1.1, 2.2.2.2", "2.2.2.2"),
            ("nth-trusted:2", "0.0.0.0, 1.1.1.1, 2.2.2.2", "1.1.1.1"),
            ("nth-trusted:3", "1.1.1.1, 2.2.2.2", ""),
            ("without_port", "10.0.0.1:80", "10.0.0.1"),
            ("without_port", "[::1]:80", "::1"),
            ("without_port", "fe80::1", "fe80::1"),
            ("without_port", "shop:80", "shop"),
            ("lower", "GET", "get"),
            ("whole", "a, b", "a, b"),
            ("last|lower", "A, B", "b"),
        ] {
            assert_eq!(*kept(filter, value), *expected.as_bytes(), "{filter} {value}");
        }
    }

    #[test]
    fn filters_keep_bytes_that_are_not_utf8() {
        for (filter, value, expected) in [
            ("lower", &b"\xe9 \xc3\x89 \xff"[..], &b"\xe9 \xc3\xa9 \xff"[..]),
            ("last", b"a, \xe9:80", b"\xe9:80"),
            ("without_port", b"\xe9:80", b"\xe9"),
            ("path", b"/\xe9?q", b"/\xe9"),
            ("first_segment", b"/\xe9/b", b"/\xe9"),
            ("whole", b"\xe9", b"\xe9"),
        ] {
            assert_eq!(*kept(filter, value), *expected, "{filter}");
        }
    }

    #[test]
    fn address_of_list_loses_port_and_brackets() {
        for (element, address) in [
            ("10.0.0.2:5", "10.0.0.2"),
            ("[2001:db8::1]:5", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[fe80::1%eth0]:5", "fe80::1%eth0"),
            ("shop:80", "shop:80"),
            ("[shop]:80", "[shop]:80"),
            ("unknown", "unknown"),
            ("10.0.0.256:5", "10.0.0.256:5"),
        ] {
            let list = format!("1.1.1.1,\t{element}");
            let address = address.as_bytes();
            assert_eq!(*kept("last", &list), *address);
            assert_eq!(*kept("nth-trusted:2", &format!("{list}, 10.0.0.1")), *address);
            assert_eq!(*kept("first", &format!("{element},10.0.0.1")), *address);
        }
    }

    #[test]
    fn unknown_filter_is_an_error_with_the_names_of_all() {
        for word in ["upper", "", "nth", "nth-trusted", "last:2"] {
            let error = ValueFilter::parse(word).unwrap_err();
            assert!(error.contains(&format!("`{word}` is no filter")) && error.contains(NAMES), "{error}");
        }
        for word in ["nth-trusted:0", "nth-trusted:256", "nth-trusted:-1", "nth-trusted:", "nth-trusted:a"] {
            assert!(ValueFilter::parse(word).unwrap_err().contains("from 1 to 255"), "{word}");
        }
        for word in NAMES.split(", ").map(|name| name.replace(":N", ":9")) {
            assert!(ValueFilter::parse(&word).is_ok(), "{word}");
        }
    }
}
