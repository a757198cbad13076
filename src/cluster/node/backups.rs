//! What has changed goes to each slot's runner-up, who would hold it next.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{Copy, Message, Version},
        node::{Kept, Node},
    },
    store::Slot,
    time::Timestamp,
};

/// How long a copy is kept that is renewed no more and that nobody should need.
const COPY_KEPT: Duration = Duration::from_secs(60);
/// About so many counters go to a new runner-up in one turn: requests wait behind them on the link.
const WHOLE_COUNTERS_MAX: u64 = 8_192;

impl Node {
    pub(super) fn back_up_when_due(&mut self, now: Timestamp) {
        let Some(interval) = self.tuning.backup_interval else { return };
        let is_due = interval <= now.since(self.backed_up_at);
        if !is_due && !self.backups_left {
            return;
        }
        if is_due {
            self.backed_up_at = now;
        }
        self.backups_left = false;
        let before = self.figures.backed_up;
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let (Some(held), Some(runner_up)) = (&state.held, self.wanted.runner_up(slot, self.me)) else {
                continue;
            };
            let knows = |(sent, to): (Version, MemberId)| sent.epoch == held.epoch && to == runner_up;
            if state.sent.is_some_and(knows) {
                if is_due && state.lent_changed {
                    self.push_backup(slot, now);
                }
            } else if WHOLE_COUNTERS_MAX <= self.figures.backed_up - before {
                self.backups_left = true;
            } else {
                self.push_backup(slot, now);
            }
        }
        let changed = if is_due { self.memory.changed_slots() } else { Vec::new() };
        for slot in changed {
            // Those who lack everything have it, or get it in a later turn.
            if self.slot(slot).sent.is_some() {
                self.push_backup(slot, now);
            }
        }
    }

    /// Sends what the runner-up lacks, or says that what was handed over is safe where there is none.
    pub(super) fn push_backup(&mut self, slot: Slot, now: Timestamp) {
        let Some(version) = self.version(slot) else { return };
        let runner_up = self.wanted.runner_up(slot, self.me).filter(|runner_up| self.hears(*runner_up, now));
        let Some(runner_up) = runner_up else {
            self.acknowledge(slot);
            return;
        };
        if self.tuning.backup_interval.is_none() && self.slot(slot).owed.is_empty() {
            return;
        }
        let former =
            self.slot(slot).sent.filter(|(former, to)| former.epoch == version.epoch && *to == runner_up);
        let changes = match former {
            Some(_) => self.memory.changes(slot),
            None => self.memory.whole(slot),
        };
        let version = Version { seq: changes.seq, ..version };
        let slices = self.lender.slices_of(slot, self.slots.len(), self.moment(now));
        let copy = Copy { version, contents: Arc::new(changes.data), slices };
        self.figures.backed_up += copy.contents.len() as u64;
        let state = self.slot_mut(slot);
        (state.sent, state.lent_changed) = (Some((version, runner_up)), false);
        self.send(runner_up, Message::Backup { slot, copy, after: former.map(|(former, _)| former.seq) });
    }

    pub(super) fn keep(
        &mut self,
        from: MemberId,
        slot: Slot,
        copy: Copy,
        after: Option<u64>,
        now: Timestamp,
    ) {
        let version = copy.version;
        match after {
            None => {
                let contents = Arc::unwrap_or_clone(copy.contents);
                let Some(contents) = self.memory.within_limit(contents) else {
                    self.figures.backups_refused += 1;
                    return;
                };
                self.keep_newer(slot, Copy { contents: Arc::new(contents), ..copy }, now);
            }
            Some(after) => {
                let base = Version { epoch: version.epoch, seq: after };
                let Some(kept) = self.slot_mut(slot).copy.as_mut().filter(|kept| kept.copy.version == base)
                else {
                    self.send(from, Message::Lacking { slot });
                    return;
                };
                let changes = Arc::unwrap_or_clone(copy.contents);
                Arc::make_mut(&mut kept.copy.contents).merge(changes);
                kept.copy.version = version;
                kept.copy.slices = copy.slices;
                kept.at = now;
            }
        }
        if self.slot(slot).held.is_none() {
            self.told_holder(from, slot, version.epoch, version, now);
        }
        self.send(from, Message::Backed { slot, version });
    }

    /// Keeps `copy`, unless a newer one is kept.
    pub(super) fn keep_newer(&mut self, slot: Slot, copy: Copy, now: Timestamp) {
        let state = self.slot_mut(slot);
        let newer = state.copy.as_ref().is_none_or(|kept| kept.copy.version < copy.version);
        if newer {
            state.copy = Some(Kept { copy, at: now });
        }
    }

    pub(super) fn backed(&mut self, from: MemberId, slot: Slot, version: Version, now: Timestamp) {
        self.figures.backups_arrived += 1;
        let current = self.slot(slot).sent.is_some_and(|(sent, to)| to == from && sent == version);
        if current {
            self.acknowledge(slot);
            self.figures.backup_arrived_at = now;
        }
    }

    pub(super) fn lacking(&mut self, from: MemberId, slot: Slot, now: Timestamp) {
        if self.slot(slot).sent.is_some_and(|(_, to)| to == from) {
            self.slot_mut(slot).sent = None;
            self.push_backup(slot, now);
        }
    }

    /// Gives up copies that nobody should need: another keeps a backup of what a living holder holds.
    pub(super) fn drop_old_copies(&mut self, now: Timestamp) {
        if now.since(self.swept_at) < Duration::from_secs(1) {
            return;
        }
        self.swept_at = now;
        self.drop_old_origins(now);
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let (Some(kept), Some(holder)) = (&state.copy, state.holder) else { continue };
            let mine = self.wanted.runner_up(slot, holder.member) == Some(self.me);
            let safe = self.hears(holder.member, now) && kept.copy.version.epoch < holder.epoch;
            if !mine && safe && COPY_KEPT < now.since(kept.at) {
                self.slot_mut(slot).copy = None;
            }
        }
    }
}
