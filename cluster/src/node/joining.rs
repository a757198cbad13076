//! Joining: the choice between two clusters that meet, and when a replica begins to serve.

use std::time::Duration;

use tollgate_counter::{descriptor::Secret, time::Timestamp};

use crate::{
    member::MemberId,
    message::HashSecret,
    node::membership::{Membership, peer::PeerMember},
};

/// The hash secret, which names the cluster, and what a replica waits for before it serves.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) hash_secret: Option<HashSecret>,
    /// Whether the hash secret is in use, rather than only restored from the snapshot of an earlier process.
    is_used: bool,
    started_at: Timestamp,
    /// How long to wait for seeds before this replica bootstraps a cluster.
    bootstrap_timeout: Duration,
    /// Whether every seed was tried, and only this process answered.
    pub(super) no_seed_answered: bool,
}

/// How the cluster of a peer compares with that of this replica.
#[derive(Clone, Debug)]
pub(super) enum ClusterComparison {
    Same,
    /// The peer adopts our hash secret, and then sends another hello.
    Other,
    /// This replica adopts the peer's founder and hash secret. Unless the secret `is_other` than its own, the counters
    /// stay.
    Adopted {
        secret: Secret,
        is_other: bool,
    },
}

impl Joining {
    pub(super) fn new(bootstrap_timeout: Duration, now: Timestamp) -> Self {
        Self {
            hash_secret: None,
            is_used: false,
            started_at: now,
            bootstrap_timeout,
            no_seed_answered: false,
        }
    }

    /// Offers the hash secret of an earlier process.
    pub(super) fn restore(&mut self, founder: MemberId, secret: Secret) {
        self.hash_secret = Some(HashSecret { founder, secret });
    }

    /// Compares the hash secret of a peer with ours, and adopts it if the peer's cluster stays. `is_in_use` is false
    /// for a joining peer, which may name the hash secret of an earlier process.
    pub(super) fn compare(&mut self, theirs: Option<HashSecret>, is_in_use: bool) -> ClusterComparison {
        match (theirs, &self.hash_secret) {
            // The peer sends another hello once it has joined.
            (None, Some(_)) => ClusterComparison::Other,
            (None, None) => ClusterComparison::Same,
            (Some(theirs), Some(ours)) if theirs.founder == ours.founder => {
                self.is_used |= is_in_use;
                ClusterComparison::Same
            }
            (Some(_), Some(_)) if self.is_used && !is_in_use => ClusterComparison::Other,
            (Some(theirs), Some(ours)) if ours.founder < theirs.founder && self.is_used == is_in_use => {
                ClusterComparison::Other
            }
            (Some(theirs), _) => {
                self.is_used = is_in_use;
                let secret = theirs.secret.clone();
                let previous = self.hash_secret.replace(theirs);
                let is_other =
                    previous.is_none_or(|previous| previous.secret.to_bytes() != secret.to_bytes());
                ClusterComparison::Adopted { secret, is_other }
            }
        }
    }

    /// Whether a replica that joins may serve: the owners of the slots are known, or no other replica can know them.
    pub(super) fn may_serve(&self, members: &Membership, all_slots_owned: bool, now: Timestamp) -> bool {
        let waited = |timeout| now.since(self.started_at) >= timeout;
        let alive: Vec<&PeerMember> = members.alive(now).collect();
        if alive.is_empty() {
            return self.no_seed_answered && waited(self.bootstrap_timeout);
        }
        // The first replica recovers every slot. If two replicas did so, each would count by itself.
        if alive.iter().any(|peer| peer.has_joined()) {
            return alive.iter().all(|peer| peer.synced)
                && self.hash_secret.is_some()
                && (all_slots_owned || waited(2 * self.bootstrap_timeout));
        }
        // If all members start together, the one with the smallest id bootstraps the cluster.
        let is_smallest = |peer: &&PeerMember| peer.greeted && members.local_id() < peer.record.id;
        alive.iter().all(is_smallest) && waited(self.bootstrap_timeout)
    }

    /// Uses the hash secret from now on; the first replica makes one. Returns the secret to set, if it is not set yet.
    pub(super) fn use_hash_secret(&mut self, local_id: MemberId, has_synced_peers: bool) -> Option<Secret> {
        self.is_used = true;
        let is_set = self.hash_secret.is_some() && has_synced_peers;
        let hash_secret = self
            .hash_secret
            .get_or_insert_with(|| HashSecret { founder: local_id, secret: Secret::random() });
        (!is_set).then(|| hash_secret.secret.clone())
    }
}
