//! Text of others, made safe to print: characters that move a cursor, reorder a line or cannot be seen are escaped.

/// `text` with hidden characters escaped as in Rust: `\n`, `\u{1b}`. Escaping twice changes nothing.
pub fn escaped(text: &str) -> String {
    text.chars().flat_map(visible).collect()
}

/// `character`, or its escape if it is hidden.
pub fn visible(character: char) -> impl Iterator<Item = char> {
    let is_hidden = is_hidden(character);
    let escaped = is_hidden.then(|| character.escape_default());
    let plain = (!is_hidden).then_some(character);
    escaped.into_iter().flatten().chain(plain)
}

/// Whether a terminal or an editor acts on the character instead of showing it.
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            // Soft hyphen, zero width, line and paragraph ends, order of writing, joiners, and tags.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Addresses without the user and the password in front of their hosts.
pub fn without_login(addresses: &str) -> String {
    // A password may contain anything, so all text up to the last host is left out.
    match addresses.rsplit_once('@') {
        None => addresses.to_owned(),
        Some((before, hosts)) => {
            let scheme = before.find("//").map_or("", |at| &before[..at + 2]);
            format!("{scheme}(not shown)@{hosts}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_in_an_address_is_not_shown() {
        for (given, shown) in [
            ("redis://host:1", "redis://host:1"),
            ("redis://user:pa@s/s@host:1", "redis://(not shown)@host:1"),
            ("redis://:a@one:1,redis://:b@two:2", "redis://(not shown)@two:2"),
            (":secret@host", "(not shown)@host"),
        ] {
            assert_eq!(without_login(given), shown);
        }
    }

    #[test]
    fn hidden_characters_are_escaped_and_others_kept() {
        assert_eq!(escaped("\x1b]0;x\x07\r\u{9b}2J\u{202e}"), r"\u{1b}]0;x\u{7}\r\u{9b}2J\u{202e}");
        for plain in ["a=b,c\\d'\"", "µ.é", "日本語", "e\u{301}", "🚦"] {
            assert_eq!(escaped(plain), plain);
        }
    }
}
