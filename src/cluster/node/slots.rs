//! The slots: connects their ownership, recovery, backups and leases. Decides checks of the counters that are owned
//! here.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use crate::{
    algorithm::{Decision, Limit, Operation},
    cluster::{
        MemberId,
        message::{HandOff, Message, Origin, Owner, RemoteCheck, RemoteOperation, Reply, SlotCopy, Version},
        node::{
            NodeSettings,
            backup::{Backups, BackupsDue},
            context::Context,
            lease_owner::LeaseOwner,
            membership::{Departure, Membership},
            ownership::{Arrival, Ownership},
            recovery::Recovery,
        },
        placement::Placement,
    },
    descriptor::Key,
    store::{
        Check, Checks, Memory, NotLocal, OnRefusal, ReserveError, Reserved, Slot, SlotData, SlotSource,
        StoredSlot,
    },
    time::Timestamp,
};

/// How often all slots are checked while nothing happens.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The approximate number of counters that a new backup owner receives in one tick. Checks wait behind them on the
/// link.
const WHOLE_COUNTERS_MAX: u64 = 8_192;

/// The slots, as this replica knows them.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) memory: Arc<Memory>,
    pub(super) ownership: Ownership,
    pub(super) recovery: Recovery,
    pub(super) backups: Backups,
    leases: LeaseOwner,
    /// Slots that this replica has acquired, so that checks that waited for an owner can be retried.
    acquired: BTreeSet<Slot>,
    /// A message may allow slots to move.
    pub(super) may_move: bool,
    checked_at: Timestamp,
}

/// Checks that waited for one of these can be retried.
#[derive(Debug)]
pub(super) struct Ready {
    slots: BTreeSet<Slot>,
    keys: Vec<Key>,
    slot_count: usize,
}

impl Ready {
    pub(super) fn contains(&self, key: Key) -> bool {
        self.keys.contains(&key) || self.slots.contains(&Slot::of(key, self.slot_count))
    }
}

impl Slots {
    /// The slots of a replica that owns none.
    pub(super) fn new(
        local_id: MemberId,
        memory: Arc<Memory>,
        settings: NodeSettings,
        now: Timestamp,
    ) -> Self {
        Self {
            ownership: Ownership::new(local_id, memory.clone(), settings.hand_offs_max),
            recovery: Recovery::default(),
            backups: Backups::new(memory.clone(), settings.backup_interval, now),
            leases: LeaseOwner::new(memory.clone()),
            memory,
            acquired: BTreeSet::new(),
            may_move: false,
            checked_at: now,
        }
    }

    /// Offers a copy of an earlier process.
    pub(super) fn restore(&mut self, copy: StoredSlot, now: Timestamp) {
        let StoredSlot { slot, epoch, seq, data } = copy;
        self.recovery.raise_epoch_floor(epoch);
        let version = Version { epoch, seq };
        let copy = SlotCopy { version, contents: Arc::new(data), grants: Vec::new() };
        self.backups.store_newer(slot, copy, now);
    }

    /// Where a snapshot takes the counters of `slot` from.
    pub(super) fn snapshot_source(&self, slot: Slot, members: &Membership, wall: Timestamp) -> SlotSource {
        match (self.ownership.local_owner(slot), self.last_copy(slot, members)) {
            (None, Some(copy)) => {
                let Version { epoch, seq } = copy.version;
                let mut data = SlotData::clone(&copy.contents);
                // Nothing is known about the use of these hits after a restart.
                copy.grants.iter().for_each(|grant| grant.charge_to(&mut data, wall));
                SlotSource::Copy(Box::new(StoredSlot { slot, epoch, seq, data }))
            }
            (owner, _) => SlotSource::Memory { epoch: owner.map_or(0, |owner| owner.epoch) },
        }
    }

    /// The copy of a slot whose owner is gone.
    fn last_copy(&self, slot: Slot, members: &Membership) -> Option<&SlotCopy> {
        let is_live = |owner: Owner| owner.member != members.local_id() && !members.is_departed(owner.member);
        let has_live_owner = self.ownership.owner(slot).is_some_and(is_live);
        self.backups.stored(slot).filter(|_| !has_live_owner)
    }

    /// Discards all counters, and what is known about the slots.
    pub(super) fn discard(&mut self) {
        self.ownership.discard();
        self.recovery.discard();
        self.backups.discard();
        self.leases.discard();
    }

    /// The number of slots.
    pub(super) fn len(&self) -> usize {
        self.memory.slots()
    }

    /// The slot of a key.
    pub(super) fn of(&self, key: Key) -> Slot {
        Slot::of(key, self.len())
    }

    /// Whether every slot has a known owner.
    pub(super) fn are_all_owned(&self) -> bool {
        self.ownership.all().all(|slot| self.ownership.owner(slot).is_some())
    }

    /// Slots whose owner is unknown or differs from the placement.
    pub(super) fn moving(&self, placement: &Placement) -> usize {
        let owner = |slot| self.ownership.owner(slot).map(|owner| owner.member);
        self.ownership.all().filter(|slot| owner(*slot) != placement.owner(*slot)).count()
    }

    /// Whether the owner of the key's slot is this replica or reachable.
    pub(super) fn is_owner_reachable(&self, key: Key, cx: &Context<'_>) -> bool {
        let slot = self.of(key);
        let is_reachable = |owner: Owner| cx.members.is_reachable(owner.member, cx.now);
        self.ownership.owns(slot) || self.ownership.owner(slot).is_some_and(is_reachable)
    }

    /// Whether this replica has slots that other members still need.
    pub(super) fn are_needed(&self, members: &Membership) -> bool {
        let is_needed = |slot| self.ownership.owns(slot) || self.last_copy(slot, members).is_some();
        members.has_receivers() && self.ownership.all().any(is_needed)
    }

    /// Takes what parked checks may have waited for.
    pub(super) fn take_ready(&mut self) -> Option<Ready> {
        let (slots, keys) = (std::mem::take(&mut self.acquired), self.leases.take_returned());
        let is_any = !slots.is_empty() || !keys.is_empty();
        is_any.then(|| Ready { slots, keys, slot_count: self.len() })
    }

    /// Hands off slots that belong to another member, and recovers slots without an owner that the placement assigns to
    /// this replica. Slots move only after an event, so all of them are scanned only from time to time without one.
    pub(super) fn move_slots(&mut self, members_changed: bool, cx: &mut Context<'_>) {
        let may_move = std::mem::take(&mut self.may_move) || members_changed;
        if !may_move && cx.now.since(self.checked_at) < CHECK_INTERVAL {
            return;
        }
        self.checked_at = cx.now;
        for (slot, to) in self.ownership.misplaced(cx.members, cx.now) {
            self.send_hand_off(slot, to, cx);
        }
        if cx.members.may_claim() {
            for slot in self.ownership.all() {
                let is_intended = cx.members.placement.owner(slot) == Some(cx.members.local_id());
                if is_intended && !self.ownership.owns(slot) && self.is_orphan(slot, cx) {
                    self.recovery.query_if_due(slot, self.backups.stored(slot), cx);
                    self.end_recovery_if_complete(slot, cx);
                }
            }
        }
        if cx.members.has_departed_members() {
            for slot in self.ownership.all() {
                if let Some(owner) = self.ownership.owner(slot) {
                    self.recovery.report_orphan(slot, owner, cx);
                }
            }
        }
    }

    /// Sends backups that are due, expires grants, and drops what is no longer needed.
    pub(super) fn tick(&mut self, cx: &mut Context<'_>) {
        if self.backups.sweep(|slot| self.ownership.owner(slot), cx) {
            self.ownership.drop_old_origins(cx.now);
        }
        self.back_up_when_due(cx);
        self.leases.expire_grants(cx);
    }

    fn back_up_when_due(&mut self, cx: &mut Context<'_>) {
        let Some(due) = self.backups.take_due(cx.now) else { return };
        let before = cx.out.stats.backed_up;
        for slot in self.ownership.all() {
            let Some(Owner { epoch, member }) = self.ownership.local_owner(slot) else { continue };
            let Some(backup_owner) = cx.members.placement.backup_owner(slot, member) else { continue };
            if self.backups.is_sent_to(slot, epoch, backup_owner) {
                if due == BackupsDue::Changed && self.leases.has_changed(slot) {
                    self.send_backup(slot, cx);
                }
            } else if cx.out.stats.backed_up - before >= WHOLE_COUNTERS_MAX {
                self.backups.set_incomplete();
            } else {
                self.send_backup(slot, cx);
            }
        }
        let changed = match due {
            BackupsDue::Changed => self.memory.changed_slots(),
            BackupsDue::Missing => Vec::new(),
        };
        for slot in changed {
            // A new backup owner received the whole slot above, or receives it in a later tick.
            if self.backups.is_sent(slot) {
                self.send_backup(slot, cx);
            }
        }
    }

    /// Sends the changes that the backup owner lacks. Without a backup owner, acknowledges hand-offs at once.
    fn send_backup(&mut self, slot: Slot, cx: &mut Context<'_>) {
        let Some(version) = self.ownership.version(slot) else { return };
        let Some(backup_owner) = cx.members.backup_owner(slot, cx.now) else {
            return self.ownership.acknowledge(slot, cx.out);
        };
        if self.backups.is_periodic() || self.ownership.has_acks_due(slot) {
            self.leases.mark_backed_up(slot);
            let grants = self.leases.grants_of_slot(slot, cx);
            self.backups.send(slot, version, backup_owner, grants, cx);
        }
    }

    fn send_hand_off(&mut self, slot: Slot, to: MemberId, cx: &mut Context<'_>) {
        let grants = self.leases.remove_slot(slot, cx);
        self.backups.end_ownership(slot);
        self.ownership.send_hand_off(slot, to, grants, cx);
    }

    /// This replica has become the owner of the slot.
    fn begin_ownership(&mut self, slot: Slot, cx: &mut Context<'_>) {
        self.recovery.end(slot);
        self.backups.begin_ownership(slot);
        self.acquired.insert(slot);
        self.send_backup(slot, cx);
    }

    /// Records that `owner` owns the slot, as another member reports.
    pub(super) fn learn_owner(&mut self, slot: Slot, owner: Owner, cx: &mut Context<'_>) {
        // This replica knows best which slots it owns.
        if owner.member == cx.members.local_id() {
            return;
        }
        self.ownership.learn_owner(slot, owner);
        if self.ownership.local_owner(slot).is_some_and(|local| local < owner)
            && cx.members.is_reachable(owner.member, cx.now)
            && cx.members.is_synced(owner.member)
        {
            self.send_hand_off(slot, owner.member, cx);
        }
    }

    /// Records that a member owns the slot, as it announces itself. It started from the version `origin`.
    pub(super) fn receive_owner(&mut self, slot: Slot, owner: Owner, origin: Version, cx: &mut Context<'_>) {
        self.ownership.contradict(slot, owner, cx.out);
        self.learn_owner(slot, owner, cx);
        // The owner may have started from an older copy than the one that is stored here.
        if let Some(stored) = self.backups.stored(slot)
            && origin < stored.version
            && stored.version.epoch < owner.epoch
        {
            cx.out.send(owner.member, Message::NewerCopy { slot, copy: stored.clone() });
        }
    }

    pub(super) fn receive_hand_off(&mut self, from: MemberId, hand_off: HandOff, cx: &mut Context<'_>) {
        let slot = hand_off.slot;
        let stored = self.backups.stored(slot);
        match self.ownership.receive_hand_off(from, hand_off, stored, cx) {
            Arrival::Crossed => {}
            Arrival::Acquired(grants) => {
                self.leases.insert_grants(grants, cx);
                self.begin_ownership(slot, cx);
            }
            Arrival::Merged(grants) => {
                self.leases.insert_grants(grants, cx);
                self.send_backup(slot, cx);
            }
        }
    }

    pub(super) fn receive_backup(
        &mut self,
        from: MemberId,
        slot: Slot,
        copy: SlotCopy,
        after: Option<u64>,
        cx: &mut Context<'_>,
    ) {
        let version = copy.version;
        if self.backups.receive(from, slot, copy, after, cx) {
            if !self.ownership.owns(slot) {
                self.receive_owner(slot, Owner { epoch: version.epoch, member: from }, version, cx);
            }
            cx.out.send(from, Message::BackupAck { slot, version });
        }
    }

    pub(super) fn receive_backup_ack(
        &mut self,
        from: MemberId,
        slot: Slot,
        version: Version,
        cx: &mut Context<'_>,
    ) {
        if self.backups.receive_ack(from, slot, version, cx) {
            self.ownership.acknowledge(slot, cx.out);
        }
    }

    pub(super) fn receive_base_missing(&mut self, from: MemberId, slot: Slot, cx: &mut Context<'_>) {
        if self.backups.receive_base_missing(from, slot) {
            self.send_backup(slot, cx);
        }
    }

    /// Whether the last known owner no longer owns the slot.
    fn is_orphan(&self, slot: Slot, cx: &Context<'_>) -> bool {
        let is_lost =
            |owner: Owner| owner.member == cx.members.local_id() || cx.members.is_departed(owner.member);
        self.ownership.owner(slot).is_none_or(is_lost)
    }

    fn end_recovery_if_complete(&mut self, slot: Slot, cx: &mut Context<'_>) {
        if !self.recovery.is_complete(slot, cx) {
            return;
        }
        let newest = self.recovery.end(slot);
        if !self.is_orphan(slot, cx) || !cx.members.may_claim() {
            return;
        }
        let SlotCopy { version, contents, grants } = newest.unwrap_or_default();
        let lost_owner = self.ownership.owner(slot);
        let known_epoch = lost_owner.map_or(0, |owner| owner.epoch);
        let since = self.recovery.next_epoch(known_epoch, version);
        let origin = Origin { version, since, contents: Some(contents.clone()) };
        // A slot of a new cluster had no owner to lose.
        cx.out.stats.slots_recovered += u64::from(lost_owner.is_some());
        self.ownership.acquire(slot, since, contents, origin, cx);
        self.leases.insert_grants(grants, cx);
        self.begin_ownership(slot, cx);
    }

    pub(super) fn receive_recovery_query(
        &mut self,
        from: MemberId,
        slot: Slot,
        best: Version,
        cx: &mut Context<'_>,
    ) {
        let (handed_off, receiver) = self.ownership.pending_hand_off(slot).unzip();
        let known = self.ownership.local_owner(slot).or(self.ownership.owner(slot));
        let owner = known.or(receiver);
        let is_alive = |owner: Owner| {
            owner.member == cx.members.local_id() || cx.members.is_reachable(owner.member, cx.now)
        };
        let alive = owner.is_some_and(is_alive);
        let copies = [self.backups.stored(slot), handed_off];
        let newest = copies.into_iter().flatten().max_by_key(|copy| copy.version);
        let copy = newest.filter(|copy| best < copy.version).cloned();
        cx.out.send(from, Message::RecoveryReply { slot, owner, alive, copy });
    }

    pub(super) fn receive_recovery_reply(
        &mut self,
        from: MemberId,
        slot: Slot,
        owner: Option<Owner>,
        alive: bool,
        copy: Option<SlotCopy>,
        cx: &mut Context<'_>,
    ) {
        if let Some(owner) = owner {
            if owner.member == from {
                self.receive_owner(slot, owner, Version { epoch: u64::MAX, seq: 0 }, cx);
            } else {
                self.learn_owner(slot, owner, cx);
            }
            // Another member reaches the owner. A recovery would create a second owner.
            if alive && cx.members.is_departed(owner.member) {
                return self.recovery.block(slot);
            }
        }
        match self.recovery.receive_reply(from, slot, copy) {
            Ok(()) => self.end_recovery_if_complete(slot, cx),
            // The recovery is over, but the consumption in this copy still counts.
            Err(Some(copy)) => self.receive_newer_copy(slot, copy, cx),
            Err(None) => {}
        }
    }

    pub(super) fn receive_orphan(&mut self, slot: Slot, owner: Owner) {
        if !self.ownership.owns(slot) {
            self.ownership.learn_owner(slot, owner);
        }
    }

    /// A member has a newer copy than the one that the recovery started from. Its additional consumption took place
    /// before the recovery.
    pub(super) fn receive_newer_copy(&mut self, slot: Slot, copy: SlotCopy, cx: &mut Context<'_>) {
        if self.ownership.owns(slot) {
            return self.ownership.add_newer_copy(slot, copy, cx.wall);
        }
        // The copy follows the slot, as a check does. The sender may have replaced its own copy meanwhile.
        match self.ownership.owner(slot) {
            Some(owner) if cx.members.is_reachable(owner.member, cx.now) => {
                cx.out.send(owner.member, Message::NewerCopy { slot, copy });
            }
            _ => self.backups.store_newer(slot, copy, cx.now),
        }
    }

    /// Keeps the data of hand-offs to a departed member as ordinary copies, and does not wait for it any longer.
    pub(super) fn member_departed(&mut self, member: MemberId, departure: Departure, cx: &mut Context<'_>) {
        for (slot, copy) in self.ownership.take_hand_offs_to(member) {
            self.backups.store_newer(slot, copy, cx.now);
        }
        for slot in self.recovery.stop_waiting_for(member) {
            self.end_recovery_if_complete(slot, cx);
        }
        self.leases.borrower_departed(member, departure, cx);
    }

    /// Applies a check to the counter, which is owned here. `borrower` is the peer that may get a lease. `None` if
    /// grants have to be returned first.
    pub(super) fn apply(
        &mut self,
        check: &RemoteCheck,
        borrower: Option<MemberId>,
        cx: &mut Context<'_>,
    ) -> Option<Reply> {
        let RemoteCheck { key, limit, operation, lease_hits } = check;
        let mut charged = 0;
        let decision = match operation {
            RemoteOperation::Decide(operation) => {
                let check = Check { key: *key, limit, operation: *operation, on_refusal: OnRefusal::Keep };
                match self.memory.apply(&Checks::from_slice(&[check]), cx.wall, |_| false) {
                    Ok(decisions) => {
                        charged = decisions.charged()[0];
                        decisions[0]
                    }
                    Err(missing) => return self.not_local(missing, cx),
                }
            }
            RemoteOperation::Undo(receipt) => self.memory.undo(*key, limit, *receipt, cx.wall),
            RemoteOperation::Absorb(consumed) => {
                self.memory.add(self.of(*key), consumed.difference(&Default::default()), cx.wall);
                self.memory.peek(*key, limit, cx.wall).peek
            }
            RemoteOperation::Settle(settlement) => {
                self.leases.settle(*key, limit, settlement, cx);
                self.memory.peek(*key, limit, cx.wall).peek
            }
            RemoteOperation::Set(hits) => {
                self.leases.fix_charged_hits(*key);
                self.memory.set(*key, limit, *hits, cx.wall)
            }
            RemoteOperation::Reserve { terms, hits } => {
                let checks = charge(*key, limit, *hits);
                let refused = |decisions: &[Decision]| !decisions[0].verdict.passes();
                match self.memory.reserve(&checks, terms, cx.wall, refused) {
                    Ok(Reserved { decisions, .. }) => {
                        charged = decisions.charged()[0];
                        decisions[0]
                    }
                    Err(ReserveError::NotLocal(missing)) => return self.not_local(missing, cx),
                    Err(ReserveError::Exhausted) => return Some(Reply::Exhausted),
                }
            }
            RemoteOperation::SettleHold { id, actual } => {
                let settled = match self.memory.settle(&charge(*key, limit, *actual), id, cx.wall) {
                    Ok(settled) => settled[0],
                    Err(missing) => return self.not_local(missing, cx),
                };
                self.leases.revoke_refusals(*key, cx.out);
                return Some(Reply::Settled(settled));
            }
            RemoteOperation::WithdrawHold { id, attempt } => {
                if let Err(missing) = self.memory.withdraw(&charge(*key, limit, 0), id, *attempt, cx.wall) {
                    return self.not_local(missing, cx);
                }
                self.memory.peek(*key, limit, cx.wall).peek
            }
        };
        if frees_hits(operation) {
            self.leases.revoke_refusals(*key, cx.out);
        }
        let borrower = borrower.filter(|_| *lease_hits > 0);
        let lease = borrower.and_then(|peer| self.leases.grant_lease(peer, check, &decision, cx));
        Some(Reply::Decided { decision, charged, lease })
    }

    /// What follows if the memory does not decide a check of an owned slot.
    fn not_local(&mut self, missing: NotLocal, cx: &mut Context<'_>) -> Option<Reply> {
        match missing {
            NotLocal::Leased(key) => {
                self.leases.recall_grants(key, cx.out);
                None
            }
            // Not expected: the caller has checked that this replica owns the slot.
            NotLocal::Slot(_) => Some(Reply::Unreachable),
        }
    }
}

/// The check set of one charge, for holds.
fn charge(key: Key, limit: &Limit, hits: u64) -> Checks<'_> {
    let operation = Operation::Charge(hits);
    Checks::from_slice(&[Check { key, limit, operation, on_refusal: OnRefusal::TakeBack }])
}

/// Whether the operation raises what remains, so that earlier refusals are no longer true.
fn frees_hits(operation: &RemoteOperation) -> bool {
    match operation {
        RemoteOperation::Decide(Operation::Refund(_))
        | RemoteOperation::Undo(_)
        | RemoteOperation::Set(_)
        | RemoteOperation::SettleHold { .. }
        | RemoteOperation::WithdrawHold { .. } => true,
        RemoteOperation::Decide(Operation::Peek | Operation::Charge(_))
        | RemoteOperation::Absorb(_)
        | RemoteOperation::Settle(_)
        | RemoteOperation::Reserve { .. } => false,
    }
}
