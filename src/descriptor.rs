//! What is asked about, and the key of its counter.

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use siphasher::sip128::SipHasher13;

/// The bytes of a text that need no memory of their own: enough for nearly all.
const NEAR: usize = 256;
/// The length of a text that is longer than that: nothing more fits behind so many.
const FAR: usize = NEAR + 1;

/// One step of a descriptor: a key and the value it has in this request, which may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name of the step.
    pub key: &'a str,
    /// Its value, possibly empty.
    pub value: &'a str,
}

/// The secret that the hash of keys is keyed with, so that nobody can choose descriptors that collide.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl Secret {
    /// A secret from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self([all as u64, (all >> 64) as u64])
    }

    /// Its bytes, for whoever may know them.
    pub(crate) const fn to_bytes(&self) -> [u8; 16] {
        let [low, high] = self.0;
        ((high as u128) << 64 | low as u128).to_le_bytes()
    }

    /// A fresh secret from the operating system's randomness.
    pub fn random() -> Self {
        Self::from_bytes(rand::random())
    }
}

/// The secret in force, which another may take the place of: replicas that meet go on with one.
///
/// Every decision reads it and hardly anything sets it, so reading takes no lock: whoever meets a change reads again.
#[derive(Clone)]
pub struct SharedSecret(Arc<Shared>);

struct Shared {
    halves: [AtomicU64; 2],
    // Odd while the halves may not belong together.
    changes: AtomicU64,
    setting: Mutex<()>,
}

/// This one, until another is set.
impl From<Secret> for SharedSecret {
    fn from(secret: Secret) -> Self {
        let halves = secret.0.map(AtomicU64::new);
        Self(Arc::new(Shared { halves, changes: AtomicU64::new(0), setting: Mutex::new(()) }))
    }
}

impl SharedSecret {
    /// The one in force.
    #[inline]
    pub fn get(&self) -> Secret {
        loop {
            let changes = self.0.changes.load(Ordering::Acquire);
            let halves = self.0.halves.each_ref().map(|half| half.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if changes.is_multiple_of(2) && changes == self.0.changes.load(Ordering::Relaxed) {
                return Secret(halves);
            }
            std::hint::spin_loop();
        }
    }

    /// Puts another in force.
    pub fn set(&self, secret: Secret) {
        // It guards no data, so it is whole whatever happens.
        let _alone = self.0.setting.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.changes.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (place, half) in self.0.halves.iter().zip(secret.0) {
            place.store(half, Ordering::Relaxed);
        }
        self.0.changes.fetch_add(1, Ordering::Release);
    }
}

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which counter: 128 bits that stand for a domain, a descriptor and a kind of counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    high: u64,
    low: u64,
}

impl Key {
    /// The key of these halves.
    pub(crate) const fn from_halves(high: u64, low: u64) -> Self {
        Self { high, low }
    }

    /// The upper half, evenly spread over all its bits.
    pub const fn high(self) -> u64 {
        self.high
    }

    /// The lower half, evenly spread over all its bits and independent of the upper one.
    pub const fn low(self) -> u64 {
        self.low
    }
}

/// Hashes as its lower half: the bits are as good as any hash would make them.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.low);
    }
}

/// The text that a key is the hash of. Every part carries its length, so that no two descriptors share one.
#[derive(Clone, Debug)]
pub struct KeyText {
    near: [u8; NEAR],
    // How many of those are the text, never 0; `FAR` where it is longer than they are.
    length: usize,
    // The whole text where it is longer, otherwise empty.
    far: Vec<u8>,
}

/// The first byte of each part of a [`KeyText`].
#[derive(Clone, Copy)]
enum Part {
    Domain = 0,
    /// An entry as it was sent.
    Sent = 1,
    /// An entry that counts together with all others of its pattern.
    Shared = 2,
    Kind = 3,
    /// Of a limit that is only tried.
    Candidate = 4,
}

impl KeyText {
    /// Begins the text of a counter in `domain`.
    #[inline]
    pub fn new(domain: &str) -> Self {
        let mut text = Self { near: [0; NEAR], length: 0, far: Vec::new() };
        text.begin(Part::Domain, domain.len());
        text.push(domain.as_bytes());
        text
    }

    /// Adds an entry as it was sent.
    #[inline]
    pub fn entry(&mut self, entry: Entry<'_>) {
        self.pair(Part::Sent, entry);
    }

    /// Adds the pattern that stands for an entry, so that all entries which match it share the counter.
    pub fn pattern(&mut self, pattern: Entry<'_>) {
        self.pair(Part::Shared, pattern);
    }

    /// Tells the counter from that of the limit in force.
    pub fn of_candidate(mut self) -> Self {
        self.push(&[Part::Candidate as u8]);
        self
    }

    /// The key of the counter of this kind.
    pub fn key(mut self, kind: &[u8], secret: &Secret) -> Key {
        self.end([kind], secret)
    }

    /// The key of the counter of the kind that these are the parts of, whose text this is when it ends.
    // Where it is: it is too large to be handed on for nothing.
    #[inline]
    pub(crate) fn end<const PARTS: usize>(&mut self, kind: [&[u8]; PARTS], secret: &Secret) -> Key {
        self.begin(Part::Kind, kind.iter().map(|part| part.len()).sum());
        kind.iter().for_each(|part| self.push(part));
        let [low, high] = secret.0;
        let hash = SipHasher13::new_with_keys(low, high).hash(self.bytes());
        Key { high: hash.h1, low: hash.h2 }
    }

    #[inline(always)]
    fn pair(&mut self, part: Part, Entry { key, value }: Entry<'_>) {
        self.begin(part, key.len());
        self.push(key.as_bytes());
        self.push(&(value.len() as u64).to_le_bytes());
        self.push(value.as_bytes());
    }

    /// Begins a part whose first text is so long.
    #[inline(always)]
    fn begin(&mut self, part: Part, length: usize) {
        // One after the other: put together first, they would be read where they had just been written apart.
        self.push(&[part as u8]);
        self.push(&(length as u64).to_le_bytes());
    }

    // Always: the lengths of most parts are known where they are added, and copied as numbers then.
    #[inline(always)]
    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.near.get_mut(self.length..end) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.length = end;
            }
            None => self.push_far(bytes),
        }
    }

    #[cold]
    fn push_far(&mut self, bytes: &[u8]) {
        if self.length != FAR {
            self.far.extend_from_slice(&self.near[..self.length]);
            self.length = FAR;
        }
        self.far.extend_from_slice(bytes);
    }

    fn bytes(&self) -> &[u8] {
        self.near.get(..self.length).unwrap_or(&self.far)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(domain: &str, entries: &[(String, String)]) -> KeyText {
        let mut text = KeyText::new(domain);
        for (key, value) in entries {
            text.entry(Entry { key, value });
        }
        text
    }

    #[test]
    fn the_hash_of_a_key_never_changes() {
        let mut text = KeyText::new("shop");
        text.entry(Entry { key: "user", value: "alice" });
        text.pattern(Entry { key: "path", value: "/api/*" });
        let key = text.key(&[1, 2, 3], &Secret::from_bytes(*b"0123456789abcdef"));
        assert_eq!(format!("{:016x}{:016x}", key.high(), key.low()), "5f3646a37295c07fabdd271a5eda7943");
    }

    #[test]
    fn the_key_is_the_hash_of_all_parts_however_long_they_are() {
        let secret = Secret::from_bytes([5; 16]);
        for lengths in [
            [1, 0, 0],
            [3, 200, 20],
            [3, 400, 7],
            [300, 2, 500],
            [239, 1, 1],
            [0, 0, 193],
            [0, 0, 194],
            [0, 0, 400],
        ] {
            let [domain, key, value] = lengths.map(|length| "x".repeat(length));
            let mut written = vec![0];
            for (before, text) in [(None, &domain), (Some(1), &key), (None, &value)] {
                written.extend(before);
                written.extend((text.len() as u64).to_le_bytes());
                written.extend(text.as_bytes());
            }
            written.extend([&[3][..], &2_u64.to_le_bytes(), &[7, 8]].concat());
            let hash = SipHasher13::new_with_key(&secret.to_bytes()).hash(&written);
            let mut text = KeyText::new(&domain);
            text.entry(Entry { key: &key, value: &value });
            let found = text.key(&[7, 8], &secret);
            assert_eq!((found.high(), found.low()), (hash.h1, hash.h2), "{lengths:?}");
        }
    }

    #[test]
    fn whoever_reads_the_secret_while_it_changes_reads_one_that_was_set() {
        let shared = SharedSecret::from(Secret::from_bytes([0; 16]));
        std::thread::scope(|scope| {
            for first in [1, 2] {
                let shared = shared.clone();
                scope.spawn(move || {
                    let all =
                        (0..20_000).map(|change: u32| (change as u8).wrapping_mul(2).wrapping_add(first));
                    all.for_each(|byte| shared.set(Secret::from_bytes([byte; 16])));
                });
            }
            for _ in 0..20_000 {
                let bytes = shared.get().to_bytes();
                assert_eq!(bytes, [bytes[0]; 16]);
            }
        });
        shared.set(Secret::from_bytes(*b"0123456789abcdef"));
        assert!(shared.get() == Secret::from_bytes(*b"0123456789abcdef"));
    }

    #[test]
    fn another_secret_gives_another_key() {
        let text = KeyText::new("shop");
        let one = text.clone().key(&[], &Secret::from_bytes([1; 16]));
        let other = text.key(&[], &Secret::from_bytes([2; 16]));
        assert_ne!(one, other);
    }

    #[test]
    fn a_value_that_reads_like_a_pattern_does_not_share_its_counter() {
        let secret = Secret::from_bytes([7; 16]);
        let entry = Entry { key: "path", value: "/api/*" };
        let (mut sent, mut shared) = (KeyText::new("shop"), KeyText::new("shop"));
        sent.entry(entry);
        shared.pattern(entry);
        assert_ne!(sent.key(&[], &secret), shared.key(&[], &secret));
    }

    fn name() -> impl Strategy<Value = String> {
        "[ab_]{0,3}"
    }

    proptest! {
        #[test]
        fn distinct_descriptors_have_distinct_keys(
            domains in (name(), name()),
            one in prop::collection::vec((name(), name()), 0..4),
            other in prop::collection::vec((name(), name()), 0..4),
        ) {
            let secret = Secret::from_bytes([9; 16]);
            let same = domains.0 == domains.1 && one == other;
            let keys = (text(&domains.0, &one).key(&[], &secret), text(&domains.1, &other).key(&[], &secret));
            prop_assert_eq!(same, keys.0 == keys.1);
        }
    }
}
