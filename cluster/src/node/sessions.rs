//! What follows from the beginning and the end of a session: hellos, the cluster that this replica joins, departures.

use tollgate_counter::{descriptor::Secret, time::Timestamp};
use tollgate_store::StoredSlot;

use crate::{
    member::{Departure, MemberId},
    message::{Hello, MemberState, Message, SlotOwner},
    node::{ClusterNode, joining::ClusterComparison, membership, output::NodeAction},
};

impl ClusterNode {
    /// Offers the counters of an earlier process, whose keys are hashed with `secret`, as copies. They are used unless
    /// another member has newer ones.
    pub(crate) fn restore(&mut self, secret: Secret, copies: Vec<StoredSlot>, now: Timestamp) {
        self.joining.restore(self.members.local_id(), secret);
        for copy in copies {
            self.slots.restore(copy, now);
        }
    }

    /// A session with `peer` has begun.
    pub(crate) fn connected(&mut self, peer: MemberId, address: &str, now: Timestamp) {
        if peer == self.members.local_id() || self.members.departures.is_dead(peer) {
            return;
        }
        if self.members.is_connected(peer) {
            self.depart(peer, Departure::Forgotten, now);
        }
        self.members.connect(peer, address, now);
        self.out.connect(peer);
        self.send_hello([peer]);
        self.out.send(peer, membership::status(self.wall));
        // The peer may have been cut off when they died, and still count them among the members that it does not hear.
        let members = self.members.departures.latest_dead();
        if !members.is_empty() {
            self.out.send(peer, Message::Dead { members });
        }
    }

    /// `peer` has sent a sign of life.
    pub(crate) fn heard(&mut self, peer: MemberId, now: Timestamp) {
        self.members.heard(peer, now);
    }

    /// An operator declares a member dead. Returns whether the member was known.
    pub(crate) fn declare_dead(&mut self, member: MemberId, now: Timestamp) -> bool {
        let known = self.members.was_known(member);
        if known {
            self.depart(member, Departure::Dead, now);
        }
        known
    }

    fn send_hello(&mut self, peers: impl IntoIterator<Item = MemberId>) {
        for peer in peers {
            let hello = Hello {
                record: self.members.local.clone(),
                hash_secret: self.joining.hash_secret.clone(),
                known: self.members.announced_records(),
                owned: self.slots.ownership.announcements(),
                owners: self.slots.ownership.known_owners(),
            };
            self.out.send(peer, Message::Hello(Box::new(hello)));
        }
    }

    pub(super) fn receive_hello(&mut self, from: MemberId, hello: Hello, now: Timestamp) {
        let Hello { record, hash_secret, known, owned, owners } = hello;
        // A joining replica may name the hash secret of an earlier process, which is used nowhere.
        let is_in_use = record.state != MemberState::Joining;
        for record in [record].into_iter().chain(known) {
            self.members.update_record(record, now, &mut self.out);
        }
        let is_same = match self.joining.compare(hash_secret, is_in_use) {
            ClusterComparison::Same => true,
            ClusterComparison::Other => false,
            ClusterComparison::Adopted { secret, is_other } => {
                self.out.actions.push(NodeAction::SetHashSecret(secret));
                if is_other {
                    self.discard_counters(now);
                }
                self.send_hello(self.out.connected());
                true
            }
        };
        self.members.set_synced(from, is_same);
        if is_same {
            let mut router = self.router(now);
            for (slot, owner) in owners {
                router.slots.learn_owner(slot, owner, &mut router.cx);
            }
            for (slot, epoch, origin) in owned {
                let owner = SlotOwner { epoch, member: from };
                router.slots.receive_owner(slot, owner, origin, &mut router.cx);
            }
            router.retry_ready();
        }
        self.members.update_placement(now);
    }

    /// Discards the counters of another hash secret than the one that is adopted, and joins again.
    fn discard_counters(&mut self, now: Timestamp) {
        let mut router = self.router(now);
        router.slots.discard();
        router.discard();
        self.members.reset_synced();
        if self.state() == MemberState::Serving {
            self.out.stats.clusters_adopted += 1;
            self.out.actions.push(NodeAction::LogClusterAdopted);
            self.members.set_state(MemberState::Joining, &mut self.out);
        }
    }

    /// Begins to serve when the owners of the slots are known, or when no other replica can know them.
    pub(super) fn start_serving(&mut self, now: Timestamp) {
        if self.state() != MemberState::Joining || self.members.is_draining() {
            return;
        }
        if !self.joining.may_serve(&self.members, self.slots.are_all_owned(), now) {
            return;
        }
        let local_id = self.members.local_id();
        let has_synced_peers = self.members.has_synced_peers();
        if let Some(secret) = self.joining.use_hash_secret(local_id, has_synced_peers) {
            self.out.actions.push(NodeAction::SetHashSecret(secret));
        }
        self.slots.recovery.begin_to_serve(self.wall);
        self.out.actions.push(NodeAction::LogJoined);
        self.members.set_state(MemberState::Serving, &mut self.out);
        self.send_hello(self.out.connected());
        self.members.update_placement(now);
    }

    /// The session with `member` has ended, or it is gone for another reason.
    pub(crate) fn depart(&mut self, member: MemberId, departure: Departure, now: Timestamp) {
        if self.members.depart(member, departure, now, &mut self.out) {
            // A peer that ends the session may be of another majority, and claims the slots here from now on.
            if departure == Departure::Forgotten {
                self.members.update_isolation(now, &mut self.out);
                self.slots.memory.set_suspended(self.members.is_isolated());
            }
            self.members.update_placement(now);
            let mut router = self.router(now);
            router.slots.member_departed(member, departure, &mut router.cx);
            router.member_departed(member);
            router.retry_ready();
        }
    }
}
