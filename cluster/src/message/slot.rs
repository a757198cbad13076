//! What messages say about the counters of a slot.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollgate_counter::{algorithm::Limit, descriptor::Key, each_apart, time::Timestamp};
use tollgate_store::{Epoch, Slot, SlotData, divider::SlotDivisions};

use crate::member::MemberId;

/// The version of a slot's counters. The larger one is the newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Version {
    /// Grows with every change of the owner.
    pub(crate) epoch: Epoch,
    /// Grows with every change of a counter.
    pub(crate) seq: u64,
}

impl Version {
    /// The greatest version: no copy is newer.
    pub(crate) const MAX: Self = Self { epoch: Epoch::MAX, seq: u64::MAX };
}

/// The counters of a slot at a version, and what was granted of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct VersionedSlot {
    pub(crate) version: Version,
    #[serde(skip)]
    pub(crate) contents: Arc<SlotData>,
    pub(crate) grants: SlotGrants,
}

/// What was granted of the counters of a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlotGrants {
    /// Grants to other replicas.
    #[serde(with = "each_apart")]
    pub(crate) leases: Vec<LeaseGrant>,
    /// Grants to clients that decide by themselves.
    pub(crate) divisions: SlotDivisions,
}

impl SlotGrants {
    /// The memory of the grants, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.leases.capacity() * size_of::<LeaseGrant>() + self.divisions.bytes()
    }

    /// Adds `other`, which are grants of the slot of `self`.
    pub(crate) fn extend(&mut self, other: Self) {
        self.leases.extend(other.leases);
        self.divisions.extend(other.divisions);
    }

    /// Adds the hits that are not accounted for to `data` as if they were used now.
    pub(crate) fn charge_to(&self, data: &mut SlotData, now: Timestamp) {
        self.leases.iter().for_each(|grant| grant.charge_to(data, now));
        for (key, limit, granted) in self.divisions.granted() {
            data.charge_granted(key, limit, granted, now);
        }
    }
}

/// A part of a limit, lent to a replica that forwards the key often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaseGrant {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) borrower: MemberId,
    /// Distinguishes the grants of one key and borrower.
    pub(crate) number: u64,
    /// Hits that are not accounted for.
    pub(crate) left: u64,
    /// The remaining lifetime.
    pub(crate) ttl: Duration,
    /// What was charged because the borrower was not heard in time.
    pub(crate) charged: Option<ChargedHits>,
}

impl LeaseGrant {
    /// Adds the unaccounted hits to `data` as if they were used now, unless they are charged already.
    pub(crate) fn charge_to(&self, data: &mut SlotData, now: Timestamp) {
        if self.charged.is_none() && self.left > 0 {
            let mut used = self.limit.fresh();
            self.limit.charge_at(&mut used, self.left, now, now);
            data.add_usage(self.key, &self.limit, used, now);
        }
    }
}

/// The unaccounted hits of a grant, charged as if they were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChargedHits {
    /// The charged hits, at least one.
    pub(crate) hits: NonZeroU64,
    /// How long ago the hits count as used.
    pub(crate) age: Duration,
}

/// What an owner started from when it recovered a slot. Later owners inherit it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecoveryOrigin {
    /// The version of the copy that was recovered; the least version if there was none.
    pub(crate) version: Version,
    /// The epoch that began with the recovery.
    pub(crate) since: Epoch,
    /// The data of that copy, while it is retained.
    #[serde(serialize_with = "presence", deserialize_with = "empty_if_present")]
    pub(crate) contents: Option<Arc<SlotData>>,
}

/// The id of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct HandOffId {
    pub(crate) from: MemberId,
    pub(crate) number: u64,
}

/// A slot on its way to its new owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HandOff {
    pub(crate) id: HandOffId,
    pub(crate) slot: Slot,
    pub(crate) copy: VersionedSlot,
    pub(crate) origin: RecoveryOrigin,
}

/// Encodes whether there is data, without the data.
fn presence<S: Serializer>(contents: &Option<Arc<SlotData>>, serializer: S) -> Result<S::Ok, S::Error> {
    contents.is_some().serialize(serializer)
}

fn empty_if_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<SlotData>>, D::Error> {
    Ok(bool::deserialize(deserializer)?.then(Arc::default))
}
