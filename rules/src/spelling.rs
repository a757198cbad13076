//! Texts of rules that probably equal no text of a request, although they look like one.

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use tollgate_counter::printable::is_hidden;

use crate::yaml::quote;

/// Characters that look like those of ASCII, each beside the one that it looks like: Cyrillic, Greek, and what editors
/// write in place of typed characters.
const LOOKALIKES: [(&str, &str); 8] = [
    ("аеорсухіјѕһԁԛԝ", "aeopcyxijshdqw"),
    ("АВЕКМНОРСТХІЈЅУ", "ABEKMHOPCTXIJSY"),
    ("αινκορυχ", "aivkopux"),
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX"),
    ("‐‑‒–—―−", "-------"),
    ("‘’‚‛′“”„‟″", "'''''\"\"\"\"\""),
    ("∗", "*"),
    ("⁄∕", "//"),
];
/// Accents that follow their letter, with the letters that have one character together with the accent, and these.
const ACCENTS: [(char, &str, &str); 8] = [
    ('\u{300}', "aeiouAEIOU", "àèìòùÀÈÌÒÙ"),
    ('\u{301}', "aceinosuyzACEINOSUYZ", "áćéíńóśúýźÁĆÉÍŃÓŚÚÝŹ"),
    ('\u{302}', "aeiouAEIOU", "âêîôûÂÊÎÔÛ"),
    ('\u{303}', "anoANO", "ãñõÃÑÕ"),
    ('\u{306}', "иИaAgG", "йЙăĂğĞ"),
    ('\u{308}', "aeiouyAEIOUеЕ", "äëïöüÿÄËÏÖÜёЁ"),
    ('\u{30a}', "aAuU", "åÅůŮ"),
    ('\u{30c}', "cdenrstzCDENRSTZ", "čďěňřšťžČĎĚŇŘŠŤŽ"),
];
/// Quotes of typography, the opening ones beside their closing ones.
const QUOTES: [(char, char); 6] = [('“', '”'), ('„', '“'), ('„', '”'), ('«', '»'), ('‘', '’'), ('»', '«')];

/// Why a text probably equals no text of a request, and what to write; `None` if nothing is conspicuous.
pub(crate) fn misspelling(text: &str) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || (*byte == b' ' && !text.starts_with('/'));
    if text.as_bytes().iter().all(is_plain) && !text.starts_with(' ') && !text.ends_with(' ') {
        return None;
    }
    let (why, meant) = without_invisible(text)
        .or_else(|| without_quotes(text))
        .or_else(|| percent_encoded(text))
        .or_else(|| in_ascii(text))
        .or_else(|| composed(text))?;
    Some(format!("{} {why}; write {}", quote(text), quote(&meant)))
}

/// Why a text is an address as Envoy never sends it, and what to write.
pub(crate) fn misspelt_address(text: &str) -> Option<String> {
    let without_brackets = text.trim_start_matches('[').trim_end_matches(']');
    let address = text.parse().map(|socket: SocketAddr| socket.ip()).or_else(|_| without_brackets.parse());
    let sent = address.ok().as_ref().map(IpAddr::to_string).filter(|sent| sent != text)?;
    Some(format!(
        "{} is not how Envoy sends this address, which is without a port and in its shortest form; write {}",
        quote(text),
        quote(&sent)
    ))
}

fn without_invisible(text: &str) -> Option<(String, String)> {
    // Joiners and tags are part of some scripts and of some emoji.
    let has_other_scripts =
        text.chars().any(|one| !one.is_ascii() && !is_hidden(one) && !one.is_whitespace());
    let is_joiner = |one| matches!(one, '\u{200c}' | '\u{200d}' | '\u{e0020}'..='\u{e007f}');
    let is_invisible = |one: char| is_hidden(one) && !(has_other_scripts && is_joiner(one));
    let is_wide_space = |one: char| one.is_whitespace() && !one.is_ascii();
    let meant: String = text
        .chars()
        .filter(|one| !is_invisible(*one))
        .map(|one| if is_wide_space(one) { ' ' } else { one })
        .collect();
    let meant = meant.trim();
    if meant == text || meant.is_empty() {
        return None;
    }
    let first = text.chars().find(|one| is_invisible(*one) || is_wide_space(*one));
    let why = first.map_or_else(
        || "begins or ends with a space, which no header does".to_owned(),
        |first| format!("has the invisible character U+{:04X}, which requests hardly have", u32::from(first)),
    );
    Some((why, meant.to_owned()))
}

fn without_quotes(text: &str) -> Option<(String, String)> {
    let inner = QUOTES.iter().find_map(|(open, close)| text.strip_prefix(*open)?.strip_suffix(*close))?;
    let why =
        "has typographic quotes, which YAML does not read as quotes but as a part of the text".to_owned();
    (!inner.is_empty()).then(|| (why, inner.to_owned()))
}

fn percent_encoded(text: &str) -> Option<(String, String)> {
    if !text.starts_with('/') || text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut meant = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_graphic() {
            meant.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            let _ = write!(meant, "%{byte:02X}");
        }
    }
    Some(("looks like a path, which clients and Envoy send percent-encoded".to_owned(), meant))
}

/// The text as it looks, if that is ASCII.
fn in_ascii(text: &str) -> Option<(String, String)> {
    let meant: String = text.chars().map(|one| ascii_lookalike(one).unwrap_or(one)).collect();
    let is_mixed = text.bytes().any(|byte| byte.is_ascii_alphabetic());
    let first = text.chars().find(|one| ascii_lookalike(*one).is_some())?;
    (meant.is_ascii() && is_mixed).then(|| {
        let number = u32::from(first);
        let looks = ascii_lookalike(first).unwrap_or(first);
        (format!("has U+{number:04X}, which only looks like `{looks}`"), meant)
    })
}

fn ascii_lookalike(one: char) -> Option<char> {
    if let full_width @ '\u{ff01}'..='\u{ff5e}' = one {
        return char::from_u32(u32::from(full_width) - 0xfee0);
    }
    LOOKALIKES
        .iter()
        .find_map(|(those, ascii)| those.chars().zip(ascii.chars()).find(|(other, _)| *other == one))
        .map(|(_, ascii)| ascii)
}

/// The text with each letter and its accent as one character.
fn composed(text: &str) -> Option<(String, String)> {
    let mut meant = String::with_capacity(text.len());
    for one in text.chars() {
        let together =
            ACCENTS.iter().find(|(accent, ..)| *accent == one).and_then(|(_, letters, composed)| {
                let before = meant.chars().next_back()?;
                letters
                    .chars()
                    .zip(composed.chars())
                    .find(|(letter, _)| *letter == before)
                    .map(|(_, composed)| composed)
            });
        if together.is_some() {
            meant.pop();
        }
        meant.push(together.unwrap_or(one));
    }
    let why = "has an accent as a character of its own, and is not equal to the text that looks the same, which most clients send";
    (meant != text).then(|| (why.to_owned(), meant))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(text: &str) -> Option<String> {
        let message = misspelling(text)?;
        Some(message.rsplit_once("; write `")?.1.strip_suffix('`')?.to_owned())
    }

    #[test]
    fn text_that_only_looks_like_another_is_reported_with_that_one() {
        for (text, expected) in [
            ("ab\u{200b}c", "abc"),
            ("\u{feff}user", "user"),
            ("us\u{ad}er", "user"),
            ("first\u{a0}class", "first class"),
            ("gold ", "gold"),
            ("gold\n", "gold"),
            ("“crawler”", "crawler"),
            ("«东京»", "东京"),
            ("/café", "/caf%C3%A9"),
            ("/日/*", "/%E6%97%A5/*"),
            ("/new shoes", "/new%20shoes"),
            ("р\u{61}ypal", "paypal"),
            ("api–v1", "api-v1"),
            ("ｕser", "user"),
            ("user-∗", "user-*"),
            ("Zu\u{308}rich", "Zürich"),
            ("cafe\u{301}", "café"),
            ("и\u{306}", "й"),
        ] {
            assert_eq!(meant(text).as_deref(), Some(expected), "{text:?}");
            assert_eq!(misspelling(expected), None, "{expected:?}");
        }
    }

    #[test]
    fn misspelt_address_is_reported_with_its_shortest_form() {
        for (text, expected) in [
            ("203.0.113.7:443", "203.0.113.7"),
            ("2001:DB8::1", "2001:db8::1"),
            ("2001:db8:0:0:0:0:0:1", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
        ] {
            let found = misspelt_address(text);
            assert!(found.is_some_and(|what| what.ends_with(&format!("; write `{expected}`"))), "{text}");
            assert_eq!(misspelt_address(expected), None, "{expected}");
        }
        for text in ["", "localhost", "10.0.0.0/8", "10.0.*", "/search"] {
            assert_eq!(misspelt_address(text), None, "{text}");
        }
    }

    #[test]
    fn text_of_any_script_is_not_reported() {
        for text in [
            "",
            "user",
            "a b",
            "/search",
            "магазин",
            "рак",
            "国家",
            "Zürich",
            "🚀*",
            "👩\u{200d}🚀",
            "می\u{200c}خواهم",
            "Straße – Weg",
            "日本語",
            "ελλάδα",
            "/caf%C3%A9",
            "µ",
            "'x'",
            "\"x\"",
            "क\u{93f}",
        ] {
            assert_eq!(misspelling(text), None, "{text:?}");
        }
    }

    #[test]
    fn tables_have_a_character_for_each_one() {
        for (those, ascii) in LOOKALIKES {
            assert!(ascii.is_ascii() && those.chars().count() == ascii.len(), "{those}");
            assert!(those.chars().all(|one| !one.is_ascii()), "{those}");
        }
        for (_, letters, composed) in ACCENTS {
            assert_eq!(letters.chars().count(), composed.chars().count(), "{letters}");
        }
    }
}
