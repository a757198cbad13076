//! Recovery of slots that have lost their owner. The intended owner asks every member for its newest backup and
//! continues from that.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{Message, Origin, Owner, SlotCopy, Version},
        node::{Node, Recovery, SlotOwnership, membership::Departure},
    },
    store::{Slot, SlotData},
    time::Timestamp,
};

/// How long to wait before the query is repeated for a slot whose owner is reachable for others but not for this
/// replica.
const RECOVERY_RETRY: Duration = Duration::from_secs(1);

impl Node {
    /// Recovers slots that have no owner and that the placement assigns to this replica.
    pub(super) fn recover_orphans(&mut self, now: Timestamp) {
        if !self.may_claim() {
            return;
        }
        for slot in self.all_slots() {
            let state = self.slot(slot);
            if state.ownership.is_some()
                || self.placement.owner(slot) != Some(self.local_id)
                || !self.is_orphan(slot)
            {
                continue;
            }
            match &state.recovery {
                None => self.start_recovery(slot, now),
                Some(recovery) if recovery.retry_at <= now => self.start_recovery(slot, now),
                // A member that has become silent since the query is not waited for.
                Some(_) => self.finish_recovery(slot, now),
            }
        }
    }

    /// Whether the last known owner no longer owns the slot.
    fn is_orphan(&self, slot: Slot) -> bool {
        self.slot(slot)
            .owner
            .is_none_or(|owner| owner.member == self.local_id || self.is_departed(owner.member))
    }

    fn start_recovery(&mut self, slot: Slot, now: Timestamp) {
        let newest = self.slot(slot).copy.as_ref().map(|kept| kept.copy.clone());
        let message = Message::RecoveryQuery {
            slot,
            best: newest.as_ref().map_or(Version::default(), |copy| copy.version),
            dead: self.dead_members(),
        };
        let waiting = self.peers.values().filter(|peer| peer.connected).map(|peer| peer.record.id).collect();
        let retry_at = now.after(RECOVERY_RETRY);
        self.slot_mut(slot).recovery = Some(Recovery { waiting, newest, retry_at, blocked: false });
        self.broadcast(&message);
        self.finish_recovery(slot, now);
    }

    fn finish_recovery(&mut self, slot: Slot, now: Timestamp) {
        let Some(recovery) = &self.slot(slot).recovery else { return };
        if recovery.blocked || recovery.waiting.iter().any(|peer| self.is_reachable(*peer, now)) {
            return;
        }
        if !self.is_orphan(slot) || !self.may_claim() {
            self.slot_mut(slot).recovery = None;
            return;
        }
        let newest = self.slot_mut(slot).recovery.take().and_then(|recovery| recovery.newest);
        let copy = newest.unwrap_or_else(|| SlotCopy {
            version: Version::default(),
            contents: Arc::new(SlotData::default()),
            grants: Vec::new(),
        });
        let known_epoch = self.slot(slot).owner.map_or(0, |owner| owner.epoch);
        let since = known_epoch.max(copy.version.epoch).max(self.epoch_floor) + 1;
        let origin = Origin { version: copy.version, since, contents: Some(copy.contents.clone()) };
        self.stats.slots_recovered += 1;
        self.take_ownership(slot, since, copy, origin, Vec::new(), now);
    }

    pub(super) fn receive_recovery_query(
        &mut self,
        from: MemberId,
        slot: Slot,
        best: Version,
        dead: &[MemberId],
        now: Timestamp,
    ) {
        for member in dead {
            self.mark_departed(*member, Departure::Proven, now);
        }
        let handed_off = self.hand_offs.values().find(|pending| pending.slot == slot);
        let receiver =
            handed_off.map(|pending| Owner { epoch: pending.copy.version.epoch + 1, member: pending.to });
        let handed_off = handed_off.map(|pending| pending.copy.clone());
        let state = self.slot(slot);
        let owner = match &state.ownership {
            Some(ownership) => Some(Owner { epoch: ownership.epoch, member: self.local_id }),
            None => state.owner.or(receiver),
        };
        let alive =
            owner.is_some_and(|owner| owner.member == self.local_id || self.is_reachable(owner.member, now));
        let copy = state.copy.as_ref().map(|kept| kept.copy.clone());
        let newest = [copy, handed_off].into_iter().flatten().max_by_key(|copy| copy.version);
        let copy = newest.filter(|copy| best < copy.version);
        self.send(from, Message::RecoveryReply { slot, owner, alive, copy });
    }

    pub(super) fn receive_recovery_reply(
        &mut self,
        from: MemberId,
        slot: Slot,
        owner: Option<Owner>,
        alive: bool,
        copy: Option<SlotCopy>,
        now: Timestamp,
    ) {
        if let Some(owner) = owner {
            if owner.member == from {
                self.receive_owner(from, slot, owner.epoch, Version { epoch: u64::MAX, seq: 0 }, now);
            } else {
                self.learn_owner(slot, owner, now);
            }
            // Another member reaches the owner. A recovery would create a second owner.
            if alive && self.is_departed(owner.member) {
                if let Some(recovery) = &mut self.slot_mut(slot).recovery {
                    recovery.blocked = true;
                }
                return;
            }
        }
        let Some(recovery) = &mut self.slot_mut(slot).recovery else {
            // The recovery is over, but the consumption in this copy still counts.
            if let Some(copy) = copy {
                self.receive_newer_copy(slot, copy, now);
            }
            return;
        };
        recovery.waiting.remove(&from);
        if let Some(copy) = copy
            && recovery.newest.as_ref().is_none_or(|newest| newest.version < copy.version)
        {
            recovery.newest = Some(copy);
        }
        self.finish_recovery(slot, now);
    }

    pub(super) fn stop_waiting_for(&mut self, member: MemberId, now: Timestamp) {
        for slot in self.all_slots() {
            if let Some(recovery) = &mut self.slot_mut(slot).recovery
                && recovery.waiting.remove(&member)
            {
                self.finish_recovery(slot, now);
            }
        }
    }

    /// Tells the intended owner that the last known owner has departed. Perhaps only this replica knows that it was the
    /// last owner.
    pub(super) fn report_orphans(&mut self) {
        if self.departed.is_empty() {
            return;
        }
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let Some(owner) = state.owner else { continue };
            let Some(placement) = self.placement.owner(slot) else { continue };
            if placement == self.local_id
                || !self.is_departed(owner.member)
                || state.orphan_reported == Some((owner, placement))
            {
                continue;
            }
            let dead = if self.is_dead(owner.member) { vec![owner.member] } else { Vec::new() };
            self.slot_mut(slot).orphan_reported = Some((owner, placement));
            self.send(placement, Message::Orphan { slot, owner, dead });
        }
    }

    pub(super) fn receive_orphan(&mut self, slot: Slot, owner: Owner, dead: &[MemberId], now: Timestamp) {
        for member in dead {
            self.mark_departed(*member, Departure::Proven, now);
        }
        if self.slot(slot).ownership.is_none() && self.slot(slot).owner < Some(owner) {
            self.slot_mut(slot).owner = Some(owner);
        }
    }

    /// A member has a newer copy than the one that the recovery started from. Its additional consumption took place
    /// before the recovery.
    pub(super) fn receive_newer_copy(&mut self, slot: Slot, copy: SlotCopy, now: Timestamp) {
        let Some(SlotOwnership { origin, .. }) = &self.slot(slot).ownership else {
            // The copy follows the slot, as a check does. The sender may have replaced its own copy meanwhile.
            match self.slot(slot).owner {
                Some(owner) if self.is_reachable(owner.member, now) => {
                    self.send(owner.member, Message::NewerCopy { slot, copy });
                }
                _ => self.store_newer_copy(slot, copy, now),
            }
            return;
        };
        if copy.version <= origin.version || origin.since <= copy.version.epoch {
            return;
        }
        let extras = origin.contents.as_ref().map(|base| copy.contents.difference(base));
        if let Some(ownership) = &mut self.slot_mut(slot).ownership {
            ownership.origin.version = copy.version;
            ownership.origin.contents = Some(copy.contents);
        }
        if let Some(extras) = extras {
            self.memory.add(slot, extras, self.wall);
        }
    }
}
