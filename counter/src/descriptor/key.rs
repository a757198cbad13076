//! Keys of counters: the text of a descriptor, its hash, and the secret of the hash.

use std::{borrow::Cow, fmt, hash::Hasher, mem};

use serde::{Deserialize, Serialize};
use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use crate::descriptor::{Entry, Key};

/// The word size of the hash, in bytes.
const WORD: usize = 8;

/// The text that is hashed into a key: a frame, which is the same for all counters of a rule, then the values that
/// differ. The encoding is injective: every part of the frame carries its length, the frame determines the number of
/// values, and every value but the last carries its length.
#[derive(Clone, Debug)]
pub struct KeyText<'a> {
    frame: SmallVec<[u8; 128]>,
    values: SmallVec<[Cow<'a, [u8]>; 4]>,
}

/// The first byte of each part of the frame.
#[derive(Clone, Copy)]
enum FramePart {
    Domain = 0,
    /// An entry whose value follows the frame.
    Sent = 1,
    /// An entry that shares its counter with all entries that match the same pattern.
    Shared = 2,
    Kind = 3,
    /// The counter of a candidate limit.
    Candidate = 4,
}

/// The hash state after the first part of a [`KeyText`], to be continued with the remaining values. What many keys
/// have in common is hashed once.
#[derive(Clone, Copy, Debug)]
pub struct PrefixHash(
    // Always at a word boundary.
    SipHasher13,
);

impl<'a> KeyText<'a> {
    /// Starts the text of a counter in `domain`.
    pub fn new(domain: &str) -> Self {
        let mut text = Self { frame: SmallVec::new(), values: SmallVec::new() };
        text.part(FramePart::Domain, &[domain.as_bytes()]);
        text
    }

    /// Adds an entry with its value.
    pub fn entry(&mut self, entry: Entry<'a>) {
        self.grouped_entry(entry.key, Cow::Borrowed(entry.value));
    }

    /// Adds an entry with the value of its group in place of the value that was sent.
    pub fn grouped_entry(&mut self, key: &[u8], value: Cow<'a, [u8]>) {
        self.part(FramePart::Sent, &[key]);
        self.values.push(value);
    }

    /// Adds an entry by its pattern, so that all entries that match it share the counter.
    pub fn pattern(&mut self, pattern: Entry<'_>) {
        self.part(FramePart::Shared, &[pattern.key, pattern.value]);
    }

    /// Distinguishes the counter of a candidate from that of the active limit.
    pub fn for_candidate(mut self) -> Self {
        self.part(FramePart::Candidate, &[]);
        self
    }

    /// The key of the counter of this kind.
    pub fn key(mut self, kind: &[u8], secret: &Secret) -> Key {
        let values = mem::take(&mut self.values);
        self.prefix_hash(kind, secret).key(values.iter().map(|value| &**value))
    }

    /// The hash state of this frame, for counters of this kind.
    pub fn prefix_hash(mut self, kind: &[u8], secret: &Secret) -> PrefixHash {
        self.part(FramePart::Kind, &[kind]);
        let mut prefix = PrefixHash(SipHasher13::new_with_key(&secret.to_bytes()));
        prefix.write(&self.frame);
        prefix
    }

    fn part(&mut self, part: FramePart, texts: &[&[u8]]) {
        self.frame.push(part as u8);
        for text in texts {
            self.frame.extend_from_slice(&(text.len() as u64).to_le_bytes());
            self.frame.extend_from_slice(text);
        }
    }
}

impl PrefixHash {
    /// Adds a value that is not the last.
    pub fn push(&mut self, value: &[u8]) {
        self.0.write(&(value.len() as u64).to_le_bytes());
        self.write(value);
    }

    /// The key of this prefix and the remaining values.
    #[inline]
    pub fn key<'v>(&self, mut values: impl DoubleEndedIterator<Item = &'v [u8]>) -> Key {
        // The last value is hashed in place: most keys have only one left.
        let last = values.next_back().unwrap_or_default();
        let Some(first) = values.next() else { return self.end(last) };
        let mut prefix = *self;
        prefix.push(first);
        values.for_each(|value| prefix.push(value));
        prefix.end(last)
    }

    #[inline]
    fn end(&self, last: &[u8]) -> Key {
        let hash = self.0.hash(last);
        Key { high: hash.h1, low: hash.h2 }
    }

    /// Hashes `bytes`, padded with zeros to a word boundary.
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
        self.0.write(&[0; WORD][..bytes.len().wrapping_neg() % WORD]);
    }
}

/// The secret of the key hash. It prevents clients from choosing descriptors that collide.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret([u64; 2]);

impl Secret {
    /// A secret from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self([all as u64, (all >> 64) as u64])
    }

    /// The bytes of the secret, for storage and for other replicas.
    pub const fn to_bytes(&self) -> [u8; 16] {
        let [low, high] = self.0;
        ((high as u128) << 64 | low as u128).to_le_bytes()
    }

    /// A hash of a key. No key is the hash of the same bytes.
    pub fn hash(&self, key: Key) -> u64 {
        // The text of a key begins with another byte.
        let bytes = [&[0xff][..], &key.high().to_le_bytes(), &key.low().to_le_bytes()].concat();
        siphasher::sip::SipHasher13::new_with_key(&self.to_bytes()).hash(&bytes)
    }

    /// A fresh secret from the random source of the operating system.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("every supported system has a random source");
        Self::from_bytes(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text<'a>(domain: &str, entries: &'a [(Vec<u8>, Vec<u8>)]) -> KeyText<'a> {
        let mut text = KeyText::new(domain);
        for (key, value) in entries {
            text.entry(Entry::new(key, value));
        }
        text
    }

    #[test]
    fn key_hash_is_stable() {
        let mut text = KeyText::new("shop");
        text.entry(Entry::new("user", "alice"));
        text.pattern(Entry::new("path", "/api/*"));
        let key = text.key(&[1, 2, 3], &Secret::from_bytes(*b"0123456789abcdef"));
        assert_eq!(format!("{:016x}{:016x}", key.high(), key.low()), "a7c6834b8059d60a2599760def47560d");
    }

    /// Pads with zeros to a word boundary.
    fn words(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        bytes
    }

    /// A text with its length in front.
    fn long(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn different_secrets_give_different_keys() {
        let text = KeyText::new("shop");
        let one = text.clone().key(&[], &Secret::from_bytes([1; 16]));
        let other = text.key(&[], &Secret::from_bytes([2; 16]));
        assert_ne!(one, other);
    }

    #[test]
    fn value_equal_to_pattern_does_not_share_its_counter() {
        let secret = Secret::from_bytes([7; 16]);
        let entry = Entry::new("path", "/api/*");
        let (mut sent, mut shared) = (KeyText::new("shop"), KeyText::new("shop"));
        sent.entry(entry);
        shared.pattern(entry);
        assert_ne!(sent.key(&[], &secret), shared.key(&[], &secret));
    }

    fn name() -> impl Strategy<Value = String> {
        "[ab_]{0,3}"
    }

    /// A byte that is not UTF-8, the text of its escape, and other bytes.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(&b"a_\\xE9\xe9\xff"[..]), 0..5)
    }

    proptest! {
        #[test]
        fn key_is_hash_of_frame_and_values_for_any_prefix(
            texts in prop::collection::vec("x{0,40}", 4),
            pushed in 0..3_usize,
            kind in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let secret = Secret::from_bytes([5; 16]);
            let [domain, one, two, three] = &texts[..] else { unreachable!("the strategy yields four texts") };
            let mut frame = [vec![0], long(domain), vec![1], long(two), vec![2], long(three), long(one)].concat();
            frame.extend([vec![1], long(""), vec![1], long(one), vec![3]].concat());
            frame.extend([&(kind.len() as u64).to_le_bytes(), &*kind].concat());
            let written = [words(frame), words(long(one)), words(long(three)), two.clone().into()].concat();
            let hash = SipHasher13::new_with_key(&secret.to_bytes()).hash(&written);

            let mut text = KeyText::new(domain);
            text.entry(Entry::new(two, one));
            text.pattern(Entry::new(three, one));
            text.entry(Entry::new("", three));
            text.entry(Entry::new(one, two));
            let key = text.clone().key(&kind, &secret);
            prop_assert_eq!((key.high(), key.low()), (hash.h1, hash.h2));

            let (mut prefix, values) = (text.prefix_hash(&kind, &secret), [one, three, two].map(|text| text.as_bytes()));
            values[..pushed].iter().for_each(|value| prefix.push(value));
            prop_assert_eq!(prefix.key(values[pushed..].iter().copied()), key, "of a prefix with {} values", pushed);
        }

        #[test]
        fn distinct_descriptors_have_distinct_keys(
            domains in (name(), name()),
            one in prop::collection::vec((part(), part()), 0..4),
            other in prop::collection::vec((part(), part()), 0..4),
        ) {
            let secret = Secret::from_bytes([9; 16]);
            let same = domains.0 == domains.1 && one == other;
            let keys = (text(&domains.0, &one).key(&[], &secret), text(&domains.1, &other).key(&[], &secret));
            prop_assert_eq!(same, keys.0 == keys.1);
        }
    }
}
