//! The secret of the key hash.

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::descriptor::Key;

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
        SipHasher13::new_with_key(&self.to_bytes()).hash(&bytes)
    }

    /// A fresh secret from the random source of the operating system.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("every supported system has a random source");
        Self::from_bytes(bytes)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}
