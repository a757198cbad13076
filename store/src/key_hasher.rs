//! The hasher of maps by key.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use tollgate_counter::descriptor::Key;

/// A map by key.
pub(super) type ByKey<T> = HashMap<Key, T, BuildHasherDefault<KeyHasher>>;

/// An identity hasher: keys are hashes already.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Unused: a [`Key`] hashes as one number.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}
