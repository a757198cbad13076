//! The state machine of one replica in the cluster. It performs no I/O.
//!
//! Inputs are messages, connected and disconnected peers, checks and ticks, each with the current time. Outputs are
//! messages and actions; the counters in memory change as a side effect. Replicas need no agreed view of the members:
//! each replica hands off the slots that the placement assigns to another member, and recovers slots without an owner
//! that the placement assigns to it. Different views only delay a move.
//!
//! [`ClusterNode`] passes each input to the machines that it concerns. Each machine owns its state. [`Slots`] connects
//! those of the slots: ownership with hand-offs, recovery, backups and lent leases. [`Router`] connects those of the
//! checks: forwarding and borrowed leases.

use std::{sync::Arc, time::Duration};

use tollgate_counter::{algorithm::Limit, descriptor::Key, time::Timestamp};
use tollgate_remote::{LocalShare, LocalShareBasis};
use tollgate_rules::ForwardPolicy;
use tollgate_store::{Epoch, Memory, Slot, StoredSlot, divider::Dividers};

use crate::{
    member::{Departure, MemberId},
    message::{MemberState, Message, SlotOwner, check::RemoteCheck},
};

mod backup;
mod backup_sender;
mod checks;
mod context;
mod forwarding;
mod joining;
mod lease_borrower;
mod lease_owner;
mod membership;
pub(crate) mod output;
mod ownership;
mod recovery;
mod sessions;
mod slots;
#[cfg(test)]
mod tests;
pub(crate) mod ticks;
pub(crate) mod view;

pub(crate) use crate::tuning::NodeSettings;
pub use membership::MemberDeparture;
pub(crate) use output::{NodeAction, NodeStats, Ticket};
pub use view::{ClusterView, MemberView};

use backup_sender::BackedUp;
use checks::Router;
use context::Context;
use forwarding::{Forwarding, OpenCheck, Requester};
use joining::Joining;
use lease_borrower::LeaseBorrower;
use membership::Membership;
use output::NodeOutput;
use slots::Slots;
use ticks::NodeTicks;

/// The state of one replica in the cluster.
#[derive(Debug)]
pub(crate) struct ClusterNode {
    /// The time by which counters are decided. It may jump forward at any time, and back when the clock gives up a
    /// lead, so timeouts do not use it.
    wall: Timestamp,
    ticks: NodeTicks,
    members: Membership,
    joining: Joining,
    slots: Slots,
    forwarding: Forwarding,
    borrower: LeaseBorrower,
    out: NodeOutput,
}

impl ClusterNode {
    /// A replica that has not joined a cluster yet. Its memory is shared: it owns no slot until it receives or recovers
    /// one.
    pub(crate) fn new(
        local_id: MemberId,
        address: String,
        settings: NodeSettings,
        memory: Arc<Memory>,
        dividers: Arc<Dividers>,
        now: Timestamp,
    ) -> Self {
        Self {
            wall: now,
            ticks: NodeTicks::new(now),
            members: Membership::new(local_id, address, settings, memory.slots()),
            joining: Joining::new(settings.bootstrap_timeout, now),
            slots: Slots::new(local_id, memory, dividers, settings, now),
            forwarding: Forwarding::default(),
            borrower: LeaseBorrower::new(local_id, settings),
            out: NodeOutput::new(settings.data_bytes_max),
        }
    }

    /// The copy here of a slot whose owner is gone, for a snapshot.
    pub(crate) fn last_copy(&self, slot: Slot) -> Option<StoredSlot> {
        self.slots.stored_copy(slot, &self.members, self.wall)
    }

    /// The epoch of this replica as the owner of `slot`; 0 if it is not that.
    pub(crate) fn epoch(&self, slot: Slot) -> Epoch {
        self.slots.epoch(slot)
    }

    /// Sets the time by which counters are decided during the next inputs. All other instants are monotonic.
    pub(crate) fn set_wall(&mut self, wall: Timestamp) {
        self.wall = wall;
    }

    /// All seeds were tried. `no_seed_answered` says whether only this process answered.
    pub(crate) fn seeds_tried(&mut self, no_seed_answered: bool) {
        self.joining.no_seed_answered = no_seed_answered;
    }

    /// Sets the hash of the active rules.
    pub(crate) fn rules_changed(&mut self, rules: u64) {
        self.members.set_rules(rules, &mut self.out);
    }

    /// Begins to hand off every slot.
    pub(crate) fn drain(&mut self, now: Timestamp) {
        if self.members.drain(now, &mut self.out) {
            let mut router = self.router(now);
            router.return_grants();
            router.retry_ready();
        }
    }

    /// Starts a check of a local caller. The outcome is an action, at the latest in the first tick after `deadline`.
    pub(crate) fn submit(
        &mut self,
        ticket: Ticket,
        check: RemoteCheck,
        policy: ForwardPolicy,
        deadline: Timestamp,
        now: Timestamp,
    ) {
        let mut router = self.router(now);
        let requester = Requester::Caller(ticket, policy);
        router.route(OpenCheck { requester, check: Arc::new(check), deadline, hops: 0 });
        router.retry_ready();
    }

    /// Sends an operation to the owner of its counter, now or as soon as the owner is reachable.
    pub(crate) fn send(&mut self, check: RemoteCheck, now: Timestamp) {
        let mut router = self.router(now);
        router.send_to_owner(check);
        router.retry_ready();
    }

    /// Takes back hits that this replica charged to a grant.
    pub(crate) fn undo_leased(&mut self, key: Key, limit: &Limit, hits: u64) {
        self.borrower.undo(key, limit, hits);
    }

    /// Sends what `share` has admitted to the owners that are reachable, and what could not be sent before.
    pub(crate) fn report(&mut self, share: &mut LocalShare, now: Timestamp) {
        let mut router = self.router(now);
        router.report(share);
        router.retry_ready();
    }

    /// What decisions without owners depend on.
    pub(crate) fn local_share_basis(&self) -> LocalShareBasis {
        LocalShareBasis { replicas: self.members.healthy(), now: self.wall }
    }

    /// Handles one message of a peer.
    pub(crate) fn receive(&mut self, from: MemberId, message: Message, now: Timestamp) {
        // A departed member is ignored until a new session begins.
        if !self.members.is_known(from) {
            return;
        }
        self.heard(from, now);
        if !message.is_in_range(self.slots.len()) {
            self.out.actions.push(NodeAction::LogOutOfRange(from));
            return self.depart(from, Departure::Forgotten, now);
        }
        let is_of_a_slot = message.last_slot().is_some() && !matches!(message, Message::Hello(_));
        if is_of_a_slot && !self.members.is_synced(from) {
            return;
        }
        match message {
            Message::Hello(hello) => {
                self.slots.may_move = true;
                self.receive_hello(from, *hello, now);
            }
            Message::Dead { members } => {
                members.into_iter().for_each(|member| self.depart(member, Departure::Dead, now));
            }
            Message::Member(record) => {
                self.slots.may_move = true;
                self.members.update_record(record, now, &mut self.out);
            }
            Message::Status { program, clock } => {
                self.members.set_status(from, &program, clock, self.wall);
            }
            message => self.dispatch(from, message, now),
        }
    }

    /// Passes a message to the slots or the checks.
    fn dispatch(&mut self, from: MemberId, message: Message, now: Timestamp) {
        let mut router = self.router(now);
        let Router { borrower, slots, cx, .. } = &mut router;
        match message {
            Message::Hello(_) | Message::Member(_) | Message::Dead { .. } | Message::Status { .. } => {}
            Message::Owns { slot, epoch, origin } => {
                slots.may_move = true;
                slots.receive_owner(slot, SlotOwner { epoch, member: from }, origin, cx);
            }
            Message::HandOff(hand_off) => slots.receive_hand_off(from, *hand_off, cx),
            Message::HandOffAck(id) => slots.receive_hand_off_ack(id, cx),
            Message::Backup { slot, copy, after } => slots.receive_backup(from, slot, copy, after, cx),
            Message::BackupAck { slot, version } => {
                slots.receive_backup_answer(from, slot, version, BackedUp::Yes, cx);
            }
            Message::BackupRefused { slot, version } => {
                slots.receive_backup_answer(from, slot, version, BackedUp::No, cx);
            }
            Message::BackupBaseMissing { slot } => slots.receive_base_missing(from, slot, cx),
            Message::RecoveryQuery { slot, best } => {
                slots.receive_recovery_query(from, slot, best, cx);
            }
            Message::RecoveryReply { slot, owner, alive, copy } => {
                slots.receive_recovery_reply(from, slot, owner, alive, copy, cx);
            }
            Message::Orphan { slot, owner } => slots.receive_orphan(slot, owner),
            Message::NewerCopy { slot, copy } => slots.receive_newer_copy(slot, copy, cx),
            Message::Forward { ticket, check, budget, hops } => {
                let requester = if ticket == 0 { Requester::NoReply } else { Requester::Peer(from, ticket) };
                router.route(OpenCheck { requester, check, deadline: now.after(budget), hops });
            }
            Message::Reply { ticket, reply } => router.receive_reply(ticket, reply),
            Message::Recall { key } => router.return_grant(key),
            Message::Revoke { key } => borrower.revoke_refusal(key),
            Message::Assigned(assignments) => cx.out.actions.push(NodeAction::Assign(assignments)),
        }
        router.retry_ready();
    }

    /// Does everything that depends on time alone.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        if !self.ticks.begin(now) {
            return;
        }
        for peer in self.members.too_silent(now) {
            self.depart(peer, Departure::Forgotten, now);
        }
        let was_isolated = self.members.is_isolated();
        self.members.tick(now, self.wall, &mut self.out);
        if self.members.is_isolated() != was_isolated {
            self.slots.memory.set_suspended(!was_isolated);
        }
        self.start_serving(now);
        let members_changed = std::mem::take(&mut self.members.has_changed);
        let on_time_since = self.ticks.on_time_since;
        let mut router = self.router(now);
        router.slots.move_slots(members_changed, &mut router.cx);
        router.slots.tick(&mut router.cx);
        router.tick(on_time_since);
        router.retry_ready();
        if !self.needs_ticks() {
            let silence = self.members.silence_due(now);
            self.ticks.rest(silence.into_iter().chain(self.slots.backup_sender.due_at()));
        }
    }

    /// When the next tick is due. An input may bring it forward.
    pub(crate) fn tick_due(&self) -> Timestamp {
        self.ticks.due
    }

    /// Brings the next tick forward if an input needs it. Returns whether it did.
    pub(crate) fn hasten_tick(&mut self, now: Timestamp) -> bool {
        let Some(earlier) = self.ticks.earlier(now).filter(|_| self.needs_ticks()) else { return false };
        self.ticks.due = earlier;
        true
    }

    /// Whether something waits for a tick that is due at no known time, or soon. Otherwise ticks only judge silence and
    /// send backups.
    fn needs_ticks(&self) -> bool {
        self.members.needs_ticks()
            || self.slots.need_ticks()
            || self.forwarding.needs_ticks()
            || !self.borrower.borrowed.is_empty()
    }

    /// Takes messages that wait for `peer`, oldest first: at most `most`, and at most `data_bytes_max` bytes of slot data
    /// or one message with more.
    pub(crate) fn outgoing(
        &mut self,
        peer: MemberId,
        most: usize,
        data_bytes_max: usize,
        now: Timestamp,
    ) -> Vec<Message> {
        let messages = self.out.take_messages(peer, most, data_bytes_max);
        self.forwarding.mark_written(&messages, now);
        messages
    }

    /// The peers whose queue was empty and has received messages since the last call.
    pub(crate) fn ready_peers(&mut self) -> Vec<MemberId> {
        std::mem::take(&mut self.out.ready_peers)
    }

    /// Takes the pending actions, in order.
    pub(crate) fn actions(&mut self) -> Vec<NodeAction> {
        let actions = &mut self.out.actions;
        if actions.is_empty() {
            return Vec::new();
        }
        // A batch causes about as many actions as the one before, which are large to move.
        let room = actions.len();
        std::mem::replace(actions, Vec::with_capacity(room))
    }

    /// Whether every slot is handed off, no other member needs the copies here and no peer waits for a reply.
    pub(crate) fn is_drained(&self, now: Timestamp) -> bool {
        self.members.has_drained_long(now)
            && !self.forwarding.has_peer_checks()
            && !self.slots.backup_sender.has_unanswered()
            && !self.slots.ownership.has_hand_offs()
            && !self.slots.are_needed(&self.members)
    }

    /// The counts so far.
    pub(crate) fn stats(&self) -> NodeStats {
        self.out.stats
    }

    /// The slots that this replica owns.
    pub(crate) fn owned_slots(&self) -> impl Iterator<Item = Slot> {
        self.slots.ownership.owned()
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Members that are reachable and serve.
    pub(crate) fn serving(&self) -> usize {
        self.members.placement.members().len()
    }

    /// Whether no other member is known, not even a silent one.
    pub(crate) fn is_last_member(&self) -> bool {
        self.members.is_last()
    }

    /// Slots whose owner is unknown or differs from the placement.
    pub(crate) fn moving(&self) -> usize {
        self.slots.moving(&self.members.placement)
    }

    /// The state of this replica.
    pub(crate) fn state(&self) -> MemberState {
        self.members.local.state
    }

    /// Whether fewer members are reachable than this replica needs to trust its counters.
    pub(crate) fn is_isolated(&self) -> bool {
        self.members.is_isolated()
    }

    /// The cluster as this replica sees it.
    pub(crate) fn view(&self, now: Timestamp) -> ClusterView {
        ClusterView::new(&self.members, &self.slots, now)
    }

    /// Peers whose rules differ from those of this replica.
    pub(crate) fn with_other_rules(&self) -> usize {
        self.members.with_other_rules()
    }

    /// The time since the last acknowledged backup.
    pub(crate) fn backup_age(&self, now: Timestamp) -> Duration {
        now.since(self.out.stats.backup_arrived_at)
    }

    fn router(&mut self, now: Timestamp) -> Router<'_> {
        let Self { wall, ticks, members, slots, forwarding, borrower, out, .. } = self;
        let cx = Context { now, wall: *wall, judged_at: ticks.judged_at, members, out };
        Router { forwarding, borrower, slots, cx }
    }
}
