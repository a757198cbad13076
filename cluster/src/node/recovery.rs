//! Recovery of slots that have lost their owner. The intended owner asks every member for its newest backup and
//! continues from that.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tollgate_counter::time::{SECOND, Timestamp};
use tollgate_store::{Epoch, Slot};

use crate::{
    member::MemberId,
    message::{
        Message, SlotOwner,
        slot::{Version, VersionedSlot},
    },
    node::context::Context,
};

/// How long to wait before the query is repeated for a slot whose owner is reachable for others but not for this
/// replica.
const RECOVERY_RETRY: Duration = Duration::from_secs(1);
/// The wall clock gives epochs in steps of this many nanoseconds. No slot changes its owner more often.
const EPOCH_NANOS: u64 = SECOND / 1_000;

/// The recoveries in progress, and the lost owners that were reported to the intended owners.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    open: BTreeMap<Slot, OpenRecovery>,
    /// The lost owner and the receiver of the last orphan report.
    reported: BTreeMap<Slot, (SlotOwner, MemberId)>,
    /// The lowest epoch of a slot that this replica recovers. It is the wall clock when the replica began to serve, so
    /// that copies of earlier processes are older.
    epoch_floor: Epoch,
}

/// The recovery of a slot that has lost its owner.
#[derive(Clone, Debug)]
struct OpenRecovery {
    /// Members that have not replied yet.
    waiting: BTreeSet<MemberId>,
    /// The newest copy received so far.
    newest: Option<VersionedSlot>,
    /// The query is repeated at this instant.
    retry_at: Timestamp,
    /// The slot is not recovered for now, because a member reaches the owner that this replica does not reach.
    blocked: bool,
}

impl Recovery {
    /// Recovers slots at epochs from `epoch` on.
    pub(super) fn raise_epoch_floor(&mut self, epoch: Epoch) {
        self.epoch_floor = self.epoch_floor.max(epoch);
    }

    /// This replica begins to serve at `wall`.
    pub(super) fn begin_to_serve(&mut self, wall: Timestamp) {
        self.raise_epoch_floor(Epoch(wall.as_nanos() / EPOCH_NANOS));
    }

    /// The epoch of a recovered slot, whose known owner had this epoch and whose newest copy has this version.
    pub(super) fn next_epoch(&self, known: Epoch, version: Version) -> Epoch {
        known.max(version.epoch).max(self.epoch_floor).next()
    }

    /// Asks all members for their newest copy of `slot`, unless they were asked lately. `stored` is the copy here. Returns
    /// whether they are asked.
    pub(super) fn query_if_due(
        &mut self,
        slot: Slot,
        stored: Option<&VersionedSlot>,
        cx: &mut Context<'_>,
    ) -> bool {
        if self.open.get(&slot).is_some_and(|open| cx.now < open.retry_at) {
            return false;
        }
        let best = stored.map_or(Version::default(), |copy| copy.version);
        let message = Message::RecoveryQuery { slot, best };
        let waiting = cx.out.connected().into_iter().collect();
        let retry_at = cx.now.after(RECOVERY_RETRY);
        let open = OpenRecovery { waiting, newest: stored.cloned(), retry_at, blocked: false };
        self.open.insert(slot, open);
        cx.out.broadcast(&message);
        true
    }

    /// Whether a recovery is in progress.
    pub(super) fn is_any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether every reachable member has replied. A member that has become silent since the query is not waited for.
    pub(super) fn is_complete(&self, slot: Slot, cx: &Context<'_>) -> bool {
        self.open.get(&slot).is_some_and(|open| {
            let is_reachable = |peer: &MemberId| cx.members.is_reachable(*peer, cx.judged_at);
            !open.blocked && !open.waiting.iter().any(is_reachable)
        })
    }

    /// Ends the recovery of `slot` and returns the newest copy.
    pub(super) fn end(&mut self, slot: Slot) -> Option<VersionedSlot> {
        self.open.remove(&slot)?.newest
    }

    /// Pauses the recovery of `slot`, whose owner another member reaches.
    pub(super) fn block(&mut self, slot: Slot) {
        if let Some(open) = self.open.get_mut(&slot) {
            open.blocked = true;
        }
    }

    /// Records the reply of a member. If the recovery is over, returns the copy.
    pub(super) fn receive_reply(
        &mut self,
        from: MemberId,
        slot: Slot,
        copy: Option<VersionedSlot>,
    ) -> Result<(), Option<VersionedSlot>> {
        let Some(open) = self.open.get_mut(&slot) else { return Err(copy) };
        open.waiting.remove(&from);
        if let Some(copy) = copy
            && open.newest.as_ref().is_none_or(|newest| newest.version < copy.version)
        {
            open.newest = Some(copy);
        }
        Ok(())
    }

    /// Stops waiting for a departed member.
    pub(super) fn stop_waiting_for(&mut self, member: MemberId) {
        self.open.values_mut().for_each(|open| {
            open.waiting.remove(&member);
        });
    }

    /// Tells the intended owner of `slot` that the last known owner has departed. Perhaps only this replica knows that
    /// it was the last owner.
    pub(super) fn report_orphan(&mut self, slot: Slot, owner: SlotOwner, cx: &mut Context<'_>) {
        let Some(intended) = cx.members.placement.owner(slot) else { return };
        if intended == cx.members.local_id()
            || !cx.members.is_departed(owner.member)
            || self.reported.get(&slot) == Some(&(owner, intended))
        {
            return;
        }
        self.reported.insert(slot, (owner, intended));
        cx.out.send(intended, Message::Orphan { slot, owner });
    }

    /// Forgets all recoveries and reports.
    pub(super) fn discard(&mut self) {
        self.open.clear();
        self.reported.clear();
    }
}
