//! Where the counter of a key is: its lane, and its name in the store.

use std::sync::Arc;

use tollgate_counter::descriptor::Key;

use crate::settings::{SharedStoreSettings, StoreMode};

/// The hexadecimal digits of a key that name the hash slot of its counter in a cluster.
const TAG_DIGITS: usize = 3;
/// The lanes of a cluster: one for each such tag, so that all counters of a lane are in one hash slot.
const CLUSTER_LANES: usize = 1 << (4 * TAG_DIGITS);

/// The keys of a store.
#[derive(Debug)]
pub(super) struct Keyspace(pub(super) Arc<SharedStoreSettings>);

impl Keyspace {
    /// The number of lanes.
    pub(super) fn lanes(&self) -> usize {
        match self.0.mode {
            StoreMode::Standalone | StoreMode::Sentinel { .. } => self.0.connections,
            StoreMode::Cluster => CLUSTER_LANES,
        }
    }

    /// The lane of a key. In a cluster only counters of one lane can change in one step.
    pub(super) fn lane_of(&self, key: Key) -> usize {
        match self.0.mode {
            StoreMode::Standalone | StoreMode::Sentinel { .. } => key.low() as usize % self.0.connections,
            StoreMode::Cluster => (key.high() >> (u64::BITS as usize - 4 * TAG_DIGITS)) as usize,
        }
    }

    /// Whether the counters can change in one step: those of a hash slot can, and all outside a cluster.
    pub(super) fn is_one_step(&self, keys: impl Iterator<Item = Key>) -> bool {
        let mut lanes = keys.map(|key| self.lane_of(key));
        self.0.mode != StoreMode::Cluster || lanes.next().is_none_or(|first| lanes.all(|lane| lane == first))
    }

    /// The name of a key in the store: the prefix and the hexadecimal key, whose first digits are in braces, so that
    /// they alone select the hash slot in a cluster. It is the same outside a cluster, so that data can be moved.
    pub(super) fn name(&self, key: Key) -> Vec<u8> {
        let digits = format!("{:016x}{:016x}", key.high(), key.low());
        let (tag, rest) = digits.split_at(TAG_DIGITS);
        [&self.0.prefix, "{", tag, "}", rest].concat().into_bytes()
    }

    /// The key with this name.
    pub(super) fn key_of(&self, name: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(name.strip_prefix(self.0.prefix.as_bytes())?).ok()?;
        let (tag, rest) = name.strip_prefix('{')?.split_once('}')?;
        let digits = format!("{tag}{rest}");
        let half = |range: std::ops::Range<usize>| u64::from_str_radix(digits.get(range)?, 16).ok();
        Some(Key::from_halves(half(0..16)?, half(16..32)?))
    }

    /// The channel of announcements.
    pub(super) fn channel(&self) -> String {
        format!("{}refunds", self.0.prefix)
    }
}
