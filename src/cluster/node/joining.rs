//! Joining: the first messages of a session, the choice between two clusters that meet, and when a replica begins to
//! serve.

use crate::{
    cluster::{
        MemberId,
        message::{HashSecret, Hello, MemberState, Message},
        node::{Action, Event, Node, membership::PeerState},
    },
    descriptor::Secret,
    time::{SECOND, Timestamp},
};

/// The wall clock gives epochs in steps of this many nanoseconds. No slot changes its owner more often.
const EPOCH: u64 = SECOND / 1_000;

impl Node {
    pub(super) fn send_hello(&mut self, peer: MemberId) {
        let owned = |slot| {
            let ownership = self.slot(slot).ownership.as_ref()?;
            Some((slot, ownership.epoch, ownership.origin.version))
        };
        let hello = Hello {
            record: self.record.clone(),
            hash_secret: self.hash_secret.clone(),
            known: self
                .peers
                .values()
                .map(|peer| peer.record.clone())
                .filter(|record| record.changes > 0)
                .collect(),
            owned: self.all_slots().filter_map(owned).collect(),
            owners: self
                .all_slots()
                .filter_map(|slot| self.slot(slot).owner.map(|owner| (slot, owner)))
                .collect(),
        };
        self.send(peer, Message::Hello(Box::new(hello)));
    }

    fn send_hello_to_all(&mut self) {
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.send_hello(peer);
        }
    }

    pub(super) fn receive_hello(&mut self, from: MemberId, hello: Hello, now: Timestamp) {
        let Hello { record, hash_secret, known, owned, owners } = hello;
        // A joining replica may name the hash secret of an earlier process, which is used nowhere.
        let is_in_use = record.state != MemberState::Joining;
        self.update_record(record, now);
        for record in known {
            self.update_record(record, now);
        }
        let same_cluster = match (hash_secret, &self.hash_secret) {
            // The peer sends another hello once it has joined.
            (None, Some(_)) => false,
            (None, None) => true,
            (Some(theirs), Some(ours)) if theirs.founder == ours.founder => {
                self.is_hash_secret_used |= is_in_use;
                true
            }
            // The peer adopts our hash secret and sends another hello.
            (Some(_), Some(_)) if self.is_hash_secret_used && !is_in_use => false,
            (Some(theirs), Some(ours))
                if ours.founder < theirs.founder && self.is_hash_secret_used == is_in_use =>
            {
                false
            }
            (Some(theirs), _) => {
                self.is_hash_secret_used = is_in_use;
                self.adopt_hash_secret(theirs);
                true
            }
        };
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.synced = same_cluster;
        }
        if same_cluster {
            for (slot, owner) in owners {
                self.learn_owner(slot, owner, now);
            }
            for (slot, epoch, origin) in owned {
                self.receive_owner(from, slot, epoch, origin, now);
            }
        }
        self.update_placement(now);
    }

    /// Adopts the hash secret of another cluster. Counters under another secret are discarded.
    fn adopt_hash_secret(&mut self, hash_secret: HashSecret) {
        let previous = self.hash_secret.replace(hash_secret.clone());
        self.actions.push(Action::SetHashSecret(hash_secret.secret.clone()));
        let unchanged =
            previous.is_some_and(|previous| previous.secret.to_bytes() == hash_secret.secret.to_bytes());
        if !unchanged {
            self.discard_counters();
            // Peers that also adopt the secret send another hello.
            self.peers.values_mut().for_each(|peer| peer.synced = false);
            if self.record.state == MemberState::Serving {
                self.stats.clusters_adopted += 1;
                self.actions.push(Action::Report(Event::ClusterAdopted));
                self.record.state = MemberState::Joining;
                self.announce_record();
            }
        }
        self.send_hello_to_all();
    }

    fn discard_counters(&mut self) {
        for slot in self.all_slots() {
            if self.slot(slot).ownership.is_some() {
                drop(self.memory.release(slot));
            }
            *self.slot_mut(slot) = Default::default();
        }
        self.hand_offs.clear();
        self.lease_owner = Default::default();
        self.lease_borrower = Default::default();
        self.local_share.clear();
        self.fail_open_checks();
    }

    /// Begins to serve when the owners of the slots are known, or when no other replica can know them.
    pub(super) fn start_serving(&mut self, now: Timestamp) {
        if self.record.state != MemberState::Joining || self.draining_since.is_some() {
            return;
        }
        let heard = self.peers.values().filter(|peer| self.is_alive(peer, now));
        let all_synced = heard.clone().all(|peer| peer.synced);
        let waited = now.since(self.started_at) >= self.settings.bootstrap_timeout;
        let is_alone = heard.clone().next().is_none();
        let serves = |peer: &PeerState| peer.synced && peer.record.state != MemberState::Joining;
        // The first replica recovers every slot. If two replicas did so, each would count by itself.
        let all_slots_owned = self.slots.iter().all(|slot| slot.owner.is_some());
        let may_serve = if heard.clone().any(serves) {
            let waited_long = now.since(self.started_at) >= 2 * self.settings.bootstrap_timeout;
            all_synced && self.hash_secret.is_some() && (all_slots_owned || waited_long)
        } else if is_alone {
            self.no_seed_answered && waited
        } else {
            // If all members start together, the one with the smallest id bootstraps the cluster.
            waited && heard.clone().all(|peer| self.local_id < peer.record.id)
        };
        if !may_serve {
            return;
        }
        if self.hash_secret.is_none() {
            let hash_secret = HashSecret { founder: self.local_id, secret: Secret::random() };
            self.actions.push(Action::SetHashSecret(hash_secret.secret.clone()));
            self.hash_secret = Some(hash_secret);
        } else if self.peers.values().all(|peer| !peer.synced) {
            let secret = self.hash_secret.as_ref().map(|hash_secret| hash_secret.secret.clone());
            self.actions.extend(secret.map(Action::SetHashSecret));
        }
        self.epoch_floor = self.epoch_floor.max(self.wall.as_nanos() / EPOCH);
        self.is_hash_secret_used = true;
        self.record.state = MemberState::Serving;
        self.actions.push(Action::Report(Event::Joined));
        self.announce_record();
        self.send_hello_to_all();
        self.update_placement(now);
    }
}
