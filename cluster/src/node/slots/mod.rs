//! The slots: connects their ownership, recovery, backups and leases. It decides checks of the counters that are owned
//! here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tollgate_counter::{descriptor::Key, time::Timestamp};
use tollgate_remote::ReplicaShare;
use tollgate_store::{
    Epoch, HoldOutcome, Memory, NotLocal, OperationOutcome, OwnTerms, Slot, SlotData, StoredSlot,
    divider::{Assignments, Dividers, SUBSCRIBERS_LISTED_MAX, SubscriberReport},
};

use crate::{
    member::MemberId,
    message::{
        Message, SlotOwner,
        check::{CheckReply, RemoteCheck, RemoteOperation},
        slot::{RecoveryOrigin, SlotGrants, Version, VersionedSlot},
    },
    node::{
        backup::Backups, backup_sender::BackupSender, context::Context, forwarding::OpenCheck,
        lease_owner::LeaseOwner, membership::Membership, output::NodeAction, ownership::Ownership,
        recovery::Recovery,
    },
    placement::Placement,
    tuning::NodeSettings,
};

mod arrivals;
mod sending;

/// The time after an isolation until the owners on the other side are known.
const AFTER_ISOLATION: Duration = Duration::from_secs(2);
/// How often all slots are checked while nothing happens and some are not owned as placed.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often all slots are checked while nothing happens and all are owned as placed.
const CHECK_INTERVAL_SETTLED: Duration = Duration::from_secs(5);

/// The slots, as this replica knows them.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) memory: Arc<Memory>,
    pub(super) ownership: Ownership,
    pub(super) recovery: Recovery,
    pub(super) backups: Backups,
    pub(super) backup_sender: BackupSender,
    leases: LeaseOwner,
    pub(super) dividers: Arc<Dividers>,
    /// Before this instant, another side of a partition may divide.
    divides_from: Timestamp,
    /// The idempotency keys that the counters retain for the callers of other replicas.
    id_shares: BTreeMap<MemberId, ReplicaShare>,
    data_bytes_max: usize,
    claimed_counters_max: usize,
    /// Slots that this replica has acquired, so that checks that waited for an owner can be retried.
    acquired: BTreeSet<Slot>,
    /// A message may allow slots to move.
    pub(super) may_move: bool,
    checked_at: Timestamp,
    /// Whether every slot was owned as placed when all were checked.
    is_settled: bool,
}

impl Slots {
    /// The slots of a replica that owns none.
    pub(super) fn new(
        local_id: MemberId,
        memory: Arc<Memory>,
        dividers: Arc<Dividers>,
        settings: NodeSettings,
        now: Timestamp,
    ) -> Self {
        Self {
            dividers,
            divides_from: now,
            ownership: Ownership::new(local_id, memory.clone(), settings.hand_offs_max),
            recovery: Recovery::default(),
            backups: Backups::new(memory.clone(), now),
            backup_sender: BackupSender::new(memory.clone(), settings.tuning.backup_interval, now),
            leases: LeaseOwner::new(memory.clone()),
            id_shares: BTreeMap::new(),
            data_bytes_max: settings.data_bytes_max,
            claimed_counters_max: settings.claimed_counters_max,
            memory,
            acquired: BTreeSet::new(),
            may_move: false,
            checked_at: now,
            is_settled: false,
        }
    }

    /// Offers a copy of an earlier process.
    pub(super) fn restore(&mut self, copy: StoredSlot, now: Timestamp) {
        let StoredSlot { slot, epoch, seq, data } = copy;
        self.recovery.raise_epoch_floor(epoch);
        let version = Version { epoch, seq };
        let copy = VersionedSlot { version, contents: Arc::new(data), grants: SlotGrants::default() };
        self.backups.store_newer(slot, copy, now);
    }

    /// The copy of a slot whose owner is gone, as a snapshot has it.
    pub(super) fn stored_copy(
        &self,
        slot: Slot,
        members: &Membership,
        wall: Timestamp,
    ) -> Option<StoredSlot> {
        let copy = self.last_copy(slot, members).filter(|_| !self.ownership.owns(slot))?;
        let Version { epoch, seq } = copy.version;
        let mut data = SlotData::clone(&copy.contents);
        // Nothing is known about the use of these hits after a restart.
        copy.grants.charge_to(&mut data, wall);
        Some(StoredSlot { slot, epoch, seq, data })
    }

    /// The epoch of this replica as the owner of `slot`; 0 if it is not that.
    pub(super) fn epoch(&self, slot: Slot) -> Epoch {
        self.ownership.local_owner(slot).map_or(Epoch::default(), |owner| owner.epoch)
    }

    /// The copy of a slot whose owner is gone.
    fn last_copy(&self, slot: Slot, members: &Membership) -> Option<&VersionedSlot> {
        let is_live =
            |owner: SlotOwner| owner.member != members.local_id() && !members.is_departed(owner.member);
        let has_live_owner = self.ownership.owner(slot).is_some_and(is_live);
        self.backups.stored(slot).filter(|_| !has_live_owner)
    }

    /// Discards all counters, and what is known about the slots.
    pub(super) fn discard(&mut self) {
        self.dividers.discard();
        self.ownership.discard();
        self.recovery.discard();
        self.backups.discard();
        self.backup_sender.discard();
        self.leases.discard();
    }

    /// The number of slots.
    pub(super) fn len(&self) -> usize {
        self.memory.slots()
    }

    /// The slot of a key.
    pub(super) fn slot_of(&self, key: Key) -> Slot {
        Slot::for_key(key, self.len())
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
        let slot = self.slot_of(key);
        let is_reachable = |owner: SlotOwner| cx.members.is_reachable(owner.member, cx.now);
        self.ownership.owns(slot) || self.ownership.owner(slot).is_some_and(is_reachable)
    }

    /// Whether this replica has slots that other members still need.
    pub(super) fn are_needed(&self, members: &Membership) -> bool {
        let is_needed = |slot| self.ownership.owns(slot) || self.last_copy(slot, members).is_some();
        members.has_receivers() && self.ownership.all().any(is_needed)
    }

    /// Takes what pending checks may have waited for. Tells whether checks of a key can be retried.
    pub(super) fn take_ready(&mut self) -> Option<impl Fn(Key) -> bool + use<>> {
        // Asked after each check, and rarely there.
        if self.acquired.is_empty() && self.leases.returned.is_empty() {
            return None;
        }
        let slots = std::mem::take(&mut self.acquired);
        let keys = std::mem::take(&mut self.leases.returned);
        let slot_count = self.len();
        Some(move |key| keys.contains(&key) || slots.contains(&Slot::for_key(key, slot_count)))
    }

    /// Hands off slots that belong to another member, and recovers slots without an owner that the placement assigns to
    /// this replica. Slots move only after an event, so all of them are scanned only from time to time without one.
    pub(super) fn move_slots(&mut self, members_changed: bool, cx: &mut Context<'_>) {
        let may_move = std::mem::take(&mut self.may_move) || members_changed;
        let interval = if self.is_settled { CHECK_INTERVAL_SETTLED } else { CHECK_INTERVAL };
        if !may_move && cx.now.since(self.checked_at) < interval {
            return;
        }
        self.checked_at = cx.now;
        self.backup_sender.may_lack_backups = true;
        self.is_settled = self.moving(&cx.members.placement) == 0 && !self.need_ticks();
        for to in self.ownership.find_misplaced(cx.members, cx.now) {
            self.send_hand_offs(to, cx);
        }
        self.claim_orphans(cx);
        if !cx.members.departures.is_empty() {
            for slot in self.ownership.all() {
                if let Some(owner) = self.ownership.owner(slot) {
                    self.recovery.report_orphan(slot, owner, cx);
                }
            }
        }
    }

    /// Whether slots or backups wait for a tick.
    pub(super) fn need_ticks(&self) -> bool {
        self.may_move
            || self.ownership.has_hand_offs()
            || self.recovery.is_any_open()
            || !self.backup_sender.waiting.is_empty()
            || self.backup_sender.has_unanswered()
    }

    /// Claims slots without an owner that the placement assigns to this replica: so many that it does not take long.
    /// The others follow in the next turns.
    fn claim_orphans(&mut self, cx: &mut Context<'_>) {
        let mut left = self.claimed_counters_max;
        for slot in self.ownership.all() {
            if !self.is_claimable(slot, cx) {
                continue;
            }
            let counters = self.backups.stored(slot).map_or(0, |copy| copy.contents.len());
            if !self.claim_if_orphan(slot, cx) {
                continue;
            }
            left = left.saturating_sub(counters + 1);
            if left == 0 {
                self.may_move = true;
                return;
            }
        }
    }

    /// Claims the slot, or asks other members for their copies of it, if it has no owner and the placement assigns it
    /// to this replica. False if there is nothing to do.
    pub(super) fn claim_if_orphan(&mut self, slot: Slot, cx: &mut Context<'_>) -> bool {
        if !self.is_claimable(slot, cx) {
            return false;
        }
        let has_asked = self.recovery.query_if_due(slot, self.backups.stored(slot), cx);
        self.end_recovery_if_complete(slot, cx) || has_asked
    }

    /// Whether the slot has no owner, the placement assigns it to this replica, and this replica may claim slots.
    fn is_claimable(&self, slot: Slot, cx: &Context<'_>) -> bool {
        let is_intended = cx.members.placement.owner(slot) == Some(cx.members.local_id());
        is_intended && !self.ownership.owns(slot) && self.is_orphan(slot, cx) && cx.members.may_claim()
    }

    /// Sends backups that are due, expires grants, and drops what is no longer needed.
    pub(super) fn tick(&mut self, cx: &mut Context<'_>) {
        if self.backups.sweep(|slot| self.ownership.owner(slot), cx) {
            self.ownership.drop_old_origins(cx.now);
        }
        self.back_up_when_due(cx);
        self.leases.expire_grants(cx);
        self.turn_dividers(cx);
    }

    /// Brings memory back within its budget after a change to `slot`.
    fn make_room(&mut self, slot: Slot, cx: &mut Context<'_>) {
        let mut dropped = self.ownership.drop_origins_while_overfull();
        // A counter in use is worth more than a copy, as long as copies take most of the memory.
        dropped += self.backups.drop_copies_while(cx.now, Memory::is_overfull_of_copies);
        self.memory.shed(slot, cx.wall);
        dropped += self.backups.drop_copies_while(cx.now, Memory::is_overfull);
        cx.out.stats.backups_refused += dropped;
        self.memory.cut(slot, cx.wall);
    }

    /// Adds grants that arrived with the slot.
    fn insert_grants(&mut self, slot: Slot, grants: SlotGrants, cx: &mut Context<'_>) {
        self.leases.insert_grants(grants.leases, cx);
        self.dividers.add_slot(slot, grants.divisions, cx.wall);
        // They may have departed before the slot was here.
        for replica in self.dividers.replicas(slot) {
            if cx.members.is_departed(MemberId::from_number(replica)) {
                self.dividers.leave_all(slot, replica);
            }
        }
    }

    /// Passes assignments to the replicas that have the streams.
    pub(super) fn assign(&self, assignments: Assignments, cx: &mut Context<'_>) {
        let mut each: BTreeMap<MemberId, Assignments> = BTreeMap::new();
        for (id, assignment) in assignments {
            each.entry(MemberId::from_number(id.replica)).or_default().push((id, assignment));
        }
        for (member, assignments) in each {
            if member == cx.members.local_id() {
                cx.out.actions.push(NodeAction::Assign(assignments));
            } else {
                cx.out.send(member, Message::Assigned(assignments));
            }
        }
    }

    /// Makes the turns of dividers that are due.
    fn turn_dividers(&mut self, cx: &mut Context<'_>) {
        if cx.members.is_isolated() {
            self.divides_from = cx.now.after(AFTER_ISOLATION);
        }
        let assignments = self.dividers.turn(cx.wall, |slot| self.may_divide(slot, cx));
        self.assign(assignments, cx);
    }

    /// Whether no other replica may divide the limits of the slot, too: this one is not isolated, nor was it just now,
    /// and no newer owner is known.
    pub(super) fn may_divide(&self, slot: Slot, cx: &Context<'_>) -> bool {
        !cx.members.is_isolated()
            && self.divides_from <= cx.now
            && self.ownership.owner(slot) <= self.ownership.local_owner(slot)
    }

    /// This replica has become the owner of the slot.
    fn begin_ownership(&mut self, slot: Slot, cx: &mut Context<'_>) {
        self.recovery.end(slot);
        self.backups.begin_ownership(slot);
        self.backup_sender.reset(slot);
        self.make_room(slot, cx);
        self.acquired.insert(slot);
        self.send_backup(slot, cx);
    }

    /// Whether the last known owner no longer owns the slot.
    pub(super) fn is_orphan(&self, slot: Slot, cx: &Context<'_>) -> bool {
        let is_lost =
            |owner: SlotOwner| owner.member == cx.members.local_id() || cx.members.is_departed(owner.member);
        self.ownership.owner(slot).is_none_or(is_lost)
    }

    /// Makes this replica the owner of a slot if all members have answered with their copies of it. Returns whether it
    /// did.
    fn end_recovery_if_complete(&mut self, slot: Slot, cx: &mut Context<'_>) -> bool {
        if !self.recovery.is_complete(slot, cx) {
            return false;
        }
        let newest = self.recovery.end(slot);
        if !self.is_orphan(slot, cx) || !cx.members.may_claim() {
            return false;
        }
        let VersionedSlot { version, contents, grants } = newest.unwrap_or_default();
        let lost_owner = self.ownership.owner(slot);
        let known_epoch = lost_owner.map_or(Epoch::default(), |owner| owner.epoch);
        let since = self.recovery.next_epoch(known_epoch, version);
        let origin = RecoveryOrigin { version, since, contents: Some(contents.clone()) };
        // A slot of a new cluster had no owner to lose.
        cx.out.stats.slots_recovered += u64::from(lost_owner.is_some());
        self.ownership.acquire(slot, since, contents, origin, cx);
        self.insert_grants(slot, grants, cx);
        self.dividers.learn(slot, cx.wall);
        self.begin_ownership(slot, cx);
        true
    }

    /// Applies a check to the counter, which is owned here. `peer` is the member that has forwarded it and may get a
    /// lease. `None` if grants have to be returned first.
    pub(super) fn apply(
        &mut self,
        check: &RemoteCheck,
        peer: Option<MemberId>,
        cx: &mut Context<'_>,
    ) -> Option<CheckReply> {
        let RemoteCheck { key, limit, operation, lease_hits } = check;
        let outcome = match operation {
            RemoteOperation::Counter(counted) | RemoteOperation::CounterByRequest(counted) => {
                let properties = counted.properties();
                if properties.replaces_counter {
                    self.leases.fix_charged_hits(*key);
                }
                let origin = operation.origin();
                let operated = match peer.filter(|_| properties.retained_id.is_some()) {
                    Some(peer) => {
                        let share = self.id_shares.entry(peer).or_default();
                        share.operate(&self.memory, *key, (limit, origin), counted, cx.wall)
                    }
                    None => self.memory.operate_by(*key, (limit, origin), counted, cx.wall),
                };
                let mut outcome = match operated {
                    Ok(outcome) => outcome,
                    Err(missing) => return self.not_local(missing, cx),
                };
                if let HoldOutcome::Shown(shown) = &mut outcome.hold {
                    let subscribers = self.dividers.subscribers(*key, SUBSCRIBERS_LISTED_MAX, cx.wall);
                    Arc::make_mut(shown).subscribers = subscribers.map(Arc::new);
                }
                // Earlier refusals are no longer true.
                if properties.frees_hits {
                    self.leases.revoke_refusals(*key, cx.out);
                }
                Some(outcome)
            }
            RemoteOperation::Absorb(consumed) => {
                self.memory.add(self.slot_of(*key), consumed.difference(&Default::default()), cx.wall);
                None
            }
            RemoteOperation::Settle(settlement) => {
                self.leases.settle(*key, limit, settlement, cx);
                None
            }
            RemoteOperation::Divide(id, terms, report) => {
                let limit = limit.clone();
                let report = SubscriberReport { key: *key, limit, id: *id, terms: *terms, report: *report };
                if self.may_divide(self.slot_of(*key), cx) {
                    self.assign(self.dividers.report(&report, cx.wall), cx);
                }
                None
            }
        };
        let peek = || OperationOutcome::new(self.memory.peek(*key, limit, cx.wall).peek, 0);
        let outcome = outcome.unwrap_or_else(peek);
        let borrower = peer.filter(|_| *lease_hits > 0);
        let lease = borrower.and_then(|peer| self.leases.grant_lease(peer, check, &outcome, cx));
        Some(CheckReply::Decided { outcome, lease: lease.map(Box::new) })
    }

    /// Returns the check and its reply, unless the caller is answered when the backup owner has the change: that of a
    /// limit of its own.
    pub(super) fn await_backup(
        &mut self,
        open: OpenCheck,
        reply: CheckReply,
        cx: &mut Context<'_>,
    ) -> Option<(OpenCheck, CheckReply)> {
        let CheckReply::Decided { outcome, .. } = &reply else { return Some((open, reply)) };
        let HoldOutcome::OwnLimit(changed) = &outcome.hold else { return Some((open, reply)) };
        let slot = self.slot_of(open.check.key);
        let has_backup = self.backup_sender.is_periodic() && cx.members.backup_owner(slot, cx.now).is_some();
        if changed.refusal.is_some() || !has_backup {
            return Some((open, reply));
        }
        self.backup_sender.answer_when_backed_up(slot, open, reply, cx.now);
        self.send_backup(slot, cx);
        None
    }

    /// The limit of its own of `key`, as far as this replica has its counter or a backup of it.
    pub(super) fn known_own_terms(&self, key: Key, wall: Timestamp) -> Option<OwnTerms> {
        let in_backup = || self.backups.stored(self.slot_of(key))?.contents.own_terms(key, wall).cloned();
        self.memory.own_terms(key, wall).or_else(in_backup)
    }

    /// What follows if the memory does not decide a check of an owned slot.
    fn not_local(&mut self, missing: NotLocal, cx: &mut Context<'_>) -> Option<CheckReply> {
        match missing {
            NotLocal::Leased(key) => {
                self.leases.recall_grants(key, cx.out);
                None
            }
            // Not expected: the caller has checked that this replica owns the slot.
            NotLocal::Slot(_) => Some(CheckReply::Unreachable),
        }
    }
}
