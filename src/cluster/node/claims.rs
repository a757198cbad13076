//! Slots that nobody holds: the one who is wanted asks everybody for the newest copy, and goes on from there.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{Copy, Holder, Message, Origin, Version},
        node::{Held, Node, Query, members::How},
    },
    store::{Slot, SlotData},
    time::Timestamp,
};

/// How long until a slot whose holder lives according to others, but not to us, is asked about again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Node {
    /// Claims what nobody holds and this replica should.
    pub(super) fn claim_orphans(&mut self, now: Timestamp) {
        if !self.may_claim() {
            return;
        }
        for slot in self.all_slots() {
            let state = self.slot(slot);
            if state.held.is_some() || self.wanted.holder(slot) != Some(self.me) || !self.is_orphan(slot) {
                continue;
            }
            match &state.query {
                None => self.query(slot, now),
                Some(query) if query.at <= now => self.query(slot, now),
                // Whoever has fallen silent is not waited for.
                Some(_) => self.finish_query(slot, now),
            }
        }
    }

    /// Whether the last holder that was heard of holds it no more.
    fn is_orphan(&self, slot: Slot) -> bool {
        self.slot(slot).holder.is_none_or(|holder| holder.member == self.me || self.is_gone(holder.member))
    }

    fn query(&mut self, slot: Slot, now: Timestamp) {
        let best = self.slot(slot).copy.as_ref().map(|kept| kept.copy.clone());
        let message = Message::Query {
            slot,
            best: best.as_ref().map_or(Version::default(), |copy| copy.version),
            dead: self.proven_dead(),
        };
        let waiting = self.peers.values().filter(|peer| peer.linked).map(|peer| peer.record.id).collect();
        let at = now.after(ASK_AGAIN);
        self.slot_mut(slot).query = Some(Query { waiting, best, at, blocked: false });
        self.tell_all(&message);
        self.finish_query(slot, now);
    }

    fn finish_query(&mut self, slot: Slot, now: Timestamp) {
        let Some(query) = &self.slot(slot).query else { return };
        if query.blocked || query.waiting.iter().any(|peer| self.hears(*peer, now)) {
            return;
        }
        if !self.is_orphan(slot) || !self.may_claim() {
            self.slot_mut(slot).query = None;
            return;
        }
        let best = self.slot_mut(slot).query.take().and_then(|query| query.best);
        let copy = best.unwrap_or_else(|| Copy {
            version: Version::default(),
            contents: Arc::new(SlotData::default()),
            slices: Vec::new(),
        });
        let heard = self.slot(slot).holder.map_or(0, |holder| holder.epoch);
        let since = heard.max(copy.version.epoch).max(self.epochs_from) + 1;
        let origin = Origin { version: copy.version, since, contents: Some(copy.contents.clone()) };
        self.figures.claims += 1;
        self.hold(slot, since, copy, origin, Vec::new(), now);
    }

    pub(super) fn queried_by(
        &mut self,
        from: MemberId,
        slot: Slot,
        best: Version,
        dead: &[MemberId],
        now: Timestamp,
    ) {
        for member in dead {
            self.bury(*member, How::Proven, now);
        }
        let handed = self.pending.values().find(|pending| pending.slot == slot);
        let taker =
            handed.map(|pending| Holder { epoch: pending.copy.version.epoch + 1, member: pending.to });
        let handed = handed.map(|pending| pending.copy.clone());
        let state = self.slot(slot);
        let holder = match &state.held {
            Some(held) => Some(Holder { epoch: held.epoch, member: self.me }),
            None => state.holder.or(taker),
        };
        let alive = holder.is_some_and(|holder| holder.member == self.me || self.hears(holder.member, now));
        let copy = state.copy.as_ref().map(|kept| kept.copy.clone());
        let newest = [copy, handed].into_iter().flatten().max_by_key(|copy| copy.version);
        let copy = newest.filter(|copy| best < copy.version);
        self.send(from, Message::Known { slot, holder, alive, copy });
    }

    pub(super) fn told_known(
        &mut self,
        from: MemberId,
        slot: Slot,
        holder: Option<Holder>,
        alive: bool,
        copy: Option<Copy>,
        now: Timestamp,
    ) {
        if let Some(holder) = holder {
            if holder.member == from {
                self.told_holder(from, slot, holder.epoch, Version { epoch: u64::MAX, seq: 0 }, now);
            } else {
                self.learn(slot, holder, now);
            }
            // It lives, and only we do not hear it: that is no reason to count its slot twice.
            if alive && self.is_gone(holder.member) {
                if let Some(query) = &mut self.slot_mut(slot).query {
                    query.blocked = true;
                }
                return;
            }
        }
        let Some(query) = &mut self.slot_mut(slot).query else {
            // Too late for the claim, but not for what was consumed.
            if let Some(copy) = copy {
                self.told_better(slot, copy, now);
            }
            return;
        };
        query.waiting.remove(&from);
        if let Some(copy) = copy
            && query.best.as_ref().is_none_or(|best| best.version < copy.version)
        {
            query.best = Some(copy);
        }
        self.finish_query(slot, now);
    }

    pub(super) fn stop_waiting_for(&mut self, member: MemberId, now: Timestamp) {
        for slot in self.all_slots() {
            if let Some(query) = &mut self.slot_mut(slot).query
                && query.waiting.remove(&member)
            {
                self.finish_query(slot, now);
            }
        }
    }

    /// Tells whoever should claim a slot that its last holder is gone, for only we may know that it was the last.
    pub(super) fn tell_of_orphans(&mut self) {
        if self.gone.is_empty() {
            return;
        }
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let Some(holder) = state.holder else { continue };
            let Some(wanted) = self.wanted.holder(slot) else { continue };
            if wanted == self.me || !self.is_gone(holder.member) || state.told == Some((holder, wanted)) {
                continue;
            }
            let dead = if self.is_proven_dead(holder.member) { vec![holder.member] } else { Vec::new() };
            self.slot_mut(slot).told = Some((holder, wanted));
            self.send(wanted, Message::Orphan { slot, holder, dead });
        }
    }

    pub(super) fn told_orphan(&mut self, slot: Slot, holder: Holder, dead: &[MemberId], now: Timestamp) {
        for member in dead {
            self.bury(*member, How::Proven, now);
        }
        if self.slot(slot).held.is_none() && self.slot(slot).holder < Some(holder) {
            self.slot_mut(slot).holder = Some(holder);
        }
    }

    /// Somebody keeps a newer copy than the one that was claimed: what it has more was consumed before the claim.
    pub(super) fn told_better(&mut self, slot: Slot, copy: Copy, now: Timestamp) {
        let Some(Held { origin, .. }) = &self.slot(slot).held else {
            // It follows the slot, like a request; whoever sent it may keep something else by now.
            match self.slot(slot).holder {
                Some(holder) if self.hears(holder.member, now) => {
                    self.send(holder.member, Message::Better { slot, copy });
                }
                _ => self.keep_newer(slot, copy, now),
            }
            return;
        };
        if copy.version <= origin.version || origin.since <= copy.version.epoch {
            return;
        }
        let extras = origin.contents.as_ref().map(|base| copy.contents.difference(base));
        if let Some(held) = &mut self.slot_mut(slot).held {
            held.origin.version = copy.version;
            held.origin.contents = Some(copy.contents);
        }
        if let Some(extras) = extras {
            self.memory.add(slot, extras, self.wall);
        }
    }
}
