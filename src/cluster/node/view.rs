//! Statistics and the view of the cluster, read from the node.

use std::{collections::BTreeMap, hash::Hasher, time::Duration};

use siphasher::sip::SipHasher13;

use crate::{
    cluster::{
        MemberId,
        message::{MemberRecord, MemberState, Owner},
        node::{MemberView, Node, Stats, View, stats::MemberStatus},
    },
    store::Slot,
    time::Timestamp,
};

/// How long departed members are still listed.
const DEPARTED_SHOWN: Duration = Duration::from_secs(60);

impl Node {
    /// The counts so far.
    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// The slots that this replica owns.
    pub(crate) fn owned_slots(&self) -> impl Iterator<Item = Slot> {
        self.all_slots().filter(|slot| self.slot(*slot).ownership.is_some())
    }

    /// The slots whose newest counters may exist only here.
    #[cfg(test)]
    pub(crate) fn slots_at_risk(&self) -> impl Iterator<Item = Slot> {
        self.owned_slots().chain(self.hand_offs.values().map(|pending| pending.slot))
    }

    /// The epoch of a slot: how often it has changed its owner. 0 if this replica does not own it.
    pub(crate) fn epoch(&self, slot: Slot) -> u64 {
        let state = self.slot(slot);
        state.ownership.as_ref().map_or(0, |ownership| ownership.epoch)
    }

    /// Members that are reachable and serve.
    pub(crate) fn serving(&self) -> usize {
        self.placement.members().len()
    }

    /// Slots whose owner is unknown or differs from the placement.
    pub(crate) fn moving(&self) -> usize {
        let placement = |slot| self.slot(slot).owner.map(|owner| owner.member) == self.placement.owner(slot);
        self.all_slots().filter(|slot| !placement(*slot)).count()
    }

    /// The state of this replica.
    pub(crate) fn state(&self) -> MemberState {
        self.record.state
    }

    /// Whether fewer members are reachable than this replica needs to trust its counters.
    pub(crate) fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// The cluster as this replica sees it.
    pub(crate) fn view(&self, now: Timestamp) -> View {
        let mut holding: BTreeMap<MemberId, usize> = BTreeMap::new();
        let mut hasher = SipHasher13::new();
        for member in self.placement.members() {
            hasher.write_u64(member.number());
        }
        for slot in self.all_slots() {
            let owner = self.slot(slot).owner;
            let Owner { epoch, member } =
                owner.unwrap_or(Owner { epoch: 0, member: MemberId::from_number(0) });
            hasher.write_u64(epoch);
            hasher.write_u64(member.number());
            *holding.entry(member).or_default() += 1;
        }
        let view = |record: &MemberRecord, state, silent: Duration| MemberView {
            id: record.id,
            address: record.address.clone(),
            state,
            silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
            rules: format!("{:016x}", record.rules),
            holding: holding.get(&record.id).copied().unwrap_or_default(),
        };
        let mut members = vec![view(&self.record, self.record.state.into(), Duration::ZERO)];
        members.extend(self.peers.values().map(|peer| {
            let silent = now.since(peer.heard_at);
            view(&peer.record, peer.record.state.into(), silent)
        }));
        let lately = self.departed.values().filter(|departed| now.since(departed.at) < DEPARTED_SHOWN);
        members.extend(
            lately.map(|departed| view(&departed.record, MemberStatus::Departed, now.since(departed.at))),
        );
        members.sort_by_key(|member| member.id);
        View {
            local_id: self.local_id.to_string(),
            view: format!("{:016x}", hasher.finish()),
            members,
            moving: self.moving(),
            holding: self.slots.iter().filter(|slot| slot.ownership.is_some()).count(),
            copies: self.slots.iter().filter(|slot| slot.copy.is_some()).count(),
            isolated: self.isolated,
        }
    }

    /// Peers whose rules differ from those of this replica.
    pub(crate) fn with_other_rules(&self) -> usize {
        let others = self.peers.values().filter(|peer| peer.record.state != MemberState::Joining);
        others.filter(|peer| peer.record.rules != self.record.rules).count()
    }

    /// The time since the last acknowledged backup.
    pub(crate) fn backup_age(&self, now: Timestamp) -> Duration {
        now.since(self.stats.backup_arrived_at)
    }
}
