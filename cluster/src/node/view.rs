//! The view of the cluster for the admin API.

use std::{collections::BTreeMap, hash::Hasher, time::Duration};

use serde::{Serialize, Serializer};
use siphasher::sip::SipHasher13;
use tollgate_counter::time::Timestamp;
use tollgate_store::Epoch;

use crate::{
    member::MemberId,
    message::{MemberRecord, MemberState, SlotOwner},
    node::{
        membership::{Membership, departures::MemberDeparture, peer::PeerStatus},
        slots::Slots,
    },
};

/// The cluster as this replica sees it.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterView {
    /// The id of this replica.
    #[serde(rename = "self")]
    pub local_id: String,
    /// A hash of the members and of the owner of each slot. Replicas that agree have equal hashes.
    pub view: String,
    /// The members, this replica included, and members that departed recently.
    pub members: Vec<MemberView>,
    /// Slots whose owner is unknown or differs from the placement.
    pub moving: usize,
    /// Slots owned by this replica.
    #[serde(rename = "holding")]
    pub owned: usize,
    /// Slots of which this replica stores a copy for another owner.
    #[serde(rename = "copies")]
    pub stored_copies: usize,
    /// Whether fewer members are reachable than this replica needs to trust its counters.
    pub isolated: bool,
}

impl ClusterView {
    /// What these members and slots show at `now`.
    pub(super) fn new(members: &Membership, slots: &Slots, now: Timestamp) -> Self {
        let mut owned: BTreeMap<MemberId, usize> = BTreeMap::new();
        let mut hasher = SipHasher13::new();
        for member in members.placement.members() {
            hasher.write_u64(member.number());
        }
        for slot in slots.ownership.all() {
            let owner = slots.ownership.owner(slot);
            let SlotOwner { epoch, member } =
                owner.unwrap_or(SlotOwner { epoch: Epoch::default(), member: MemberId::from_number(0) });
            hasher.write_u64(epoch.0);
            hasher.write_u64(member.number());
            *owned.entry(member).or_default() += 1;
        }
        let view = |record: &MemberRecord, state, silent: Duration, status: Option<&PeerStatus>| MemberView {
            id: record.id,
            address: record.address.clone(),
            state,
            departure: None,
            silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
            rules: format!("{:016x}", record.rules),
            owned: owned.get(&record.id).copied().unwrap_or_default(),
            program: status.map(|status| status.program.clone()),
            clock_ahead_ms: status.map(|status| status.ahead_millis),
        };
        let local = &members.local;
        let own = PeerStatus { program: env!("CARGO_PKG_VERSION").to_owned(), ahead_millis: 0 };
        let mut listed = vec![view(local, Some(local.state), Duration::ZERO, Some(&own))];
        let peers = members.peers(now);
        listed.extend(peers.map(|(record, silent, status)| view(record, Some(record.state), silent, status)));
        let departed = members.departures.recent(now);
        listed.extend(departed.map(|(record, silent, departure)| MemberView {
            departure: Some(departure),
            ..view(record, None, silent, None)
        }));
        listed.sort_by_key(|member| member.id);
        Self {
            local_id: local.id.to_string(),
            view: format!("{:016x}", hasher.finish()),
            members: listed,
            moving: slots.moving(&members.placement),
            owned: slots.ownership.owned().count(),
            stored_copies: slots.backups.stored_copies(),
            isolated: members.is_isolated(),
        }
    }
}

/// A member as this replica sees it.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// The id of the member.
    #[serde(serialize_with = "as_text")]
    pub id: MemberId,
    /// The address at which replicas connect to the member.
    pub address: String,
    /// The state of the member; `None` if it left, died or was silent for too long.
    #[serde(serialize_with = "or_gone")]
    pub state: Option<MemberState>,
    /// How the member has departed; `None` before.
    pub departure: Option<MemberDeparture>,
    /// Milliseconds since the last sign of life.
    pub silent_ms: u64,
    /// The hash of the member's active rules.
    pub rules: String,
    /// Slots that the member owns, as far as this replica knows.
    #[serde(rename = "holding")]
    pub owned: usize,
    /// The version of the member's program; `None` until the member has said it.
    pub program: Option<String>,
    /// How far the member's clock is ahead of that of this replica, in milliseconds, without the time that the message
    /// took; negative if it is behind.
    pub clock_ahead_ms: Option<i64>,
}

fn as_text<S: Serializer>(id: &MemberId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn or_gone<S: Serializer>(state: &Option<MemberState>, serializer: S) -> Result<S::Ok, S::Error> {
    match state {
        Some(state) => state.serialize(serializer),
        None => serializer.serialize_str("gone"),
    }
}
