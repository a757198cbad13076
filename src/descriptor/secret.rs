//! The secret of the key hash.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering, fence},
};

/// The secret of the key hash. It prevents clients from choosing descriptors that collide.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl Secret {
    /// A secret from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self([all as u64, (all >> 64) as u64])
    }

    /// The bytes of the secret, for storage and for other replicas.
    pub(crate) const fn to_bytes(&self) -> [u8; 16] {
        let [low, high] = self.0;
        ((high as u128) << 64 | low as u128).to_le_bytes()
    }

    /// A fresh secret from the random source of the operating system.
    pub fn random() -> Self {
        Self::from_bytes(rand::random())
    }
}

/// The active secret. Replicas that join a cluster replace theirs by the secret of the cluster.
///
/// A sequence lock: every decision reads the secret and almost nothing writes it. A reader that meets a write retries.
#[derive(Clone)]
pub struct SharedSecret(Arc<Shared>);

struct Shared {
    halves: [AtomicU64; 2],
    // Odd during a write.
    sequence: AtomicU64,
    writer: Mutex<()>,
}

/// The initial secret.
impl From<Secret> for SharedSecret {
    fn from(secret: Secret) -> Self {
        let halves = secret.0.map(AtomicU64::new);
        Self(Arc::new(Shared { halves, sequence: AtomicU64::new(0), writer: Mutex::new(()) }))
    }
}

impl SharedSecret {
    /// The active secret.
    #[inline]
    pub fn get(&self) -> Secret {
        loop {
            let sequence = self.0.sequence.load(Ordering::Acquire);
            let halves = self.0.halves.each_ref().map(|half| half.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if sequence.is_multiple_of(2) && sequence == self.0.sequence.load(Ordering::Relaxed) {
                return Secret(halves);
            }
            std::hint::spin_loop();
        }
    }

    /// Replaces the active secret.
    pub fn set(&self, secret: Secret) {
        // The mutex guards no data, so a poisoned lock is harmless.
        let _alone = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.sequence.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (slot, half) in self.0.halves.iter().zip(secret.0) {
            slot.store(half, Ordering::Relaxed);
        }
        self.0.sequence.fetch_add(1, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_during_change_returns_a_secret_that_was_set() {
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
}
