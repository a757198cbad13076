//! What is to be seen of the cluster from here.

use std::{collections::BTreeMap, hash::Hasher, time::Duration};

use siphasher::sip::SipHasher13;

use crate::{
    cluster::{
        MemberId,
        message::{Holder, Record, State},
        node::{Figures, MemberView, Node, View, figures::Seen},
    },
    store::Slot,
    time::Timestamp,
};

/// How long those who are gone are still shown.
const GONE_SHOWN: Duration = Duration::from_secs(60);

impl Node {
    /// What it has cost so far.
    pub(crate) fn figures(&self) -> Figures {
        self.figures
    }

    /// The slots that this replica holds.
    pub(crate) fn slots_held(&self) -> impl Iterator<Item = Slot> {
        self.all_slots().filter(|slot| self.slot(*slot).held.is_some())
    }

    /// The slots whose newest counters may be nowhere but here.
    #[cfg(test)]
    pub(crate) fn slots_at_risk(&self) -> impl Iterator<Item = Slot> {
        self.slots_held().chain(self.pending.values().map(|pending| pending.slot))
    }

    /// How often a slot has changed hands.
    pub(crate) fn epoch(&self, slot: Slot) -> u64 {
        let state = self.slot(slot);
        state.held.as_ref().map_or(0, |held| held.epoch)
    }

    /// Members that serve and are heard.
    pub(crate) fn serving(&self) -> usize {
        self.wanted.members().len()
    }

    /// Slots whose holder is not the one who is wanted, or unknown.
    pub(crate) fn moving(&self) -> usize {
        let wanted = |slot| self.slot(slot).holder.map(|holder| holder.member) == self.wanted.holder(slot);
        self.all_slots().filter(|slot| !wanted(*slot)).count()
    }

    /// What this replica is doing.
    pub(crate) fn state(&self) -> State {
        self.record.state
    }

    /// Whether too few others are heard.
    pub(crate) fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// How the cluster looks from here.
    pub(crate) fn view(&self, now: Timestamp) -> View {
        let mut holding: BTreeMap<MemberId, usize> = BTreeMap::new();
        let mut hasher = SipHasher13::new();
        for member in self.wanted.members() {
            hasher.write_u64(member.number());
        }
        for slot in self.all_slots() {
            let holder = self.slot(slot).holder;
            let Holder { epoch, member } =
                holder.unwrap_or(Holder { epoch: 0, member: MemberId::from_number(0) });
            hasher.write_u64(epoch);
            hasher.write_u64(member.number());
            *holding.entry(member).or_default() += 1;
        }
        let view = |record: &Record, state, silent: Duration| MemberView {
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
        let lately = self.gone.values().filter(|gone| now.since(gone.at) < GONE_SHOWN);
        members.extend(lately.map(|gone| view(&gone.record, Seen::Gone, now.since(gone.at))));
        members.sort_by_key(|member| member.id);
        View {
            me: self.me.to_string(),
            view: format!("{:016x}", hasher.finish()),
            members,
            moving: self.moving(),
            holding: self.slots.iter().filter(|slot| slot.held.is_some()).count(),
            copies: self.slots.iter().filter(|slot| slot.copy.is_some()).count(),
            isolated: self.isolated,
        }
    }

    /// Peers that decide by other rules than this replica.
    pub(crate) fn of_other_rules(&self) -> usize {
        let others = self.peers.values().filter(|peer| peer.record.state != State::Joining);
        others.filter(|peer| peer.record.rules != self.record.rules).count()
    }

    /// How long ago the oldest change was made that no backup holds, as far as is known.
    pub(crate) fn backup_age(&self, now: Timestamp) -> Duration {
        now.since(self.figures.backup_arrived_at)
    }
}
