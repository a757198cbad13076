//! Patterns, in which each `*` stands for any text, including the empty one.

use std::ops::ControlFlow;

use rustc_hash::{FxBuildHasher, FxHashMap};

/// A pattern, split at its `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    // Invariant: at least two pieces; the first is the prefix, the last the suffix.
    pieces: Vec<Box<[u8]>>,
}

impl Pattern {
    /// Parses a pattern; `None` if `text` contains no `*`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // Most texts are no pattern, and cost no allocation.
        let is_pattern = text.as_bytes().contains(&b'*');
        is_pattern.then(|| Self { pieces: text.split('*').map(|piece| piece.as_bytes().into()).collect() })
    }

    /// Whether the pattern matches `text`.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        let inner = text.strip_prefix(self.prefix()).and_then(|rest| rest.strip_suffix(self.suffix()));
        inner.is_some_and(|inner| fits(self.middle(), inner))
    }

    fn prefix(&self) -> &[u8] {
        &self.pieces[0]
    }

    fn suffix(&self) -> &[u8] {
        &self.pieces[self.pieces.len() - 1]
    }

    fn middle(&self) -> &[Box<[u8]>] {
        &self.pieces[1..self.pieces.len() - 1]
    }
}

/// A set of patterns indexed by prefix and suffix, so that a lookup tries only patterns that can differ from the text
/// between their first and last `*`.
#[derive(Debug)]
pub(crate) struct Patterns {
    prefixes: Affixes<Affixes<Vec<Numbered>>>,
}

/// A map keyed by affixes, with the lengths that occur among them.
#[derive(Debug, Default)]
struct Affixes<T> {
    lengths: Vec<usize>,
    of: FxHashMap<Box<[u8]>, T>,
}

#[derive(Debug)]
struct Numbered {
    number: u32,
    middle: Vec<Box<[u8]>>,
}

impl<T: Default> Affixes<T> {
    fn entry(&mut self, affix: &[u8]) -> &mut T {
        if let Err(place) = self.lengths.binary_search(&affix.len()) {
            self.lengths.insert(place, affix.len());
        }
        self.of.entry(affix.into()).or_default()
    }
}

impl Patterns {
    /// A set without patterns.
    pub(crate) const fn new() -> Self {
        Self { prefixes: Affixes { lengths: Vec::new(), of: FxHashMap::with_hasher(FxBuildHasher) } }
    }

    /// Adds a pattern. Numbers must be added in ascending order.
    pub(crate) fn add(&mut self, number: u32, pattern: &Pattern) {
        let middle = pattern.middle().iter().filter(|piece| !piece.is_empty()).cloned().collect();
        let numbered = self.prefixes.entry(pattern.prefix()).entry(pattern.suffix());
        numbered.push(Numbered { number, middle });
    }

    /// The matching pattern with the lowest number. Adds the number of tables and patterns tried to `visits`.
    pub(crate) fn first_match(&self, text: &[u8], visits: &mut usize) -> Option<u32> {
        let mut best = None;
        for &length in self.prefixes.lengths.iter().take_while(|&&length| length <= text.len()) {
            let (prefix, rest) = text.split_at(length);
            *visits += 1;
            if let Some(suffixes) = self.prefixes.of.get(prefix) {
                suffixes.search(rest, &mut best, visits);
            }
        }
        best
    }
}

impl Affixes<Vec<Numbered>> {
    /// Searches for a pattern whose suffix and middle match `rest`, the text after the prefix.
    fn search(&self, rest: &[u8], best: &mut Option<u32>, visits: &mut usize) {
        for &length in self.lengths.iter().take_while(|&&length| length <= rest.len()) {
            let (inner, suffix) = rest.split_at(rest.len() - length);
            *visits += 1;
            let Some(patterns) = self.of.get(suffix) else { continue };
            let earlier = |pattern: &&Numbered| best.is_none_or(|best| pattern.number < best);
            let mut tried = patterns.iter().take_while(earlier).inspect(|_| *visits += 1);
            let first = tried.find(|pattern| fits(&pattern.middle, inner)).map(|pattern| pattern.number);
            *best = first.or(*best);
        }
    }
}

/// Whether `pieces` occur in `text` in order, without overlap.
fn fits(pieces: &[Box<[u8]>], text: &[u8]) -> bool {
    let rest = pieces.iter().try_fold(text, |rest, piece| match position(rest, piece) {
        Some(at) => ControlFlow::Continue(&rest[at + piece.len()..]),
        None => ControlFlow::Break(()),
    });
    rest.is_continue()
}

fn position(text: &[u8], piece: &[u8]) -> Option<usize> {
    // `windows(0)` would panic.
    if piece.is_empty() {
        return Some(0);
    }
    text.windows(piece.len()).position(|window| window == piece)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns(texts: &[String]) -> Patterns {
        let mut patterns = Patterns::new();
        for (number, text) in texts.iter().enumerate() {
            patterns.add(number as u32, &Pattern::parse(text).unwrap());
        }
        patterns
    }

    fn matches(pattern: &str, text: &str) -> bool {
        patterns(&[pattern.to_owned()]).first_match(text.as_bytes(), &mut 0).is_some()
    }

    /// The definition: a `*` stands for any text.
    fn matches_by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| matches_by_definition(rest, &text[at..])),
            Some((first, rest)) => text
                .split_first()
                .is_some_and(|(next, text)| next == first && matches_by_definition(rest, text)),
        }
    }

    #[test]
    fn star_matches_any_text() {
        for (pattern, yes, no) in [
            ("foo*", &["foo1", "foo", "foo/_*"][..], &["bar", "fo", "xfoo"][..]),
            ("bar*b", &["barab", "bar123b", "barb"], &["bara", "xbarb", "bar", "ba"]),
            ("foo*bar*baz", &["foo123bar456baz", "foobarbaz"], &["foo123baz", "bar456baz", "foobarbarba"]),
            ("*", &["", "anything"], &[]),
            ("*ab*ba*", &["abba", "xabxbax"], &["aba"]),
            ("a**b", &["ab", "axb"], &["a"]),
        ] {
            yes.iter().for_each(|text| assert!(matches(pattern, text), "{pattern} {text}"));
            no.iter().for_each(|text| assert!(!matches(pattern, text), "{pattern} {text}"));
        }
    }

    #[test]
    fn text_without_star_is_not_a_pattern() {
        assert_eq!(Pattern::parse("foo"), None);
    }

    proptest! {
        #[test]
        fn lookup_finds_first_declared_pattern_that_matches(
            texts in prop::collection::vec("[ab]{0,2}\\*[ab*]{0,4}", 0..8),
            text in "[ab]{0,8}",
        ) {
            let by_definition = texts.iter().position(|pattern| matches_by_definition(pattern.as_bytes(), text.as_bytes()));
            let found = patterns(&texts).first_match(text.as_bytes(), &mut 0);
            prop_assert_eq!(found.map(|number| number as usize), by_definition);
            for pattern in &texts {
                let expected = matches_by_definition(pattern.as_bytes(), text.as_bytes());
                prop_assert_eq!(Pattern::parse(pattern).unwrap().matches(text.as_bytes()), expected);
            }
        }
    }
}
