//! What the node puts out: messages to peers, actions for the layer that performs I/O, and counts.

use std::collections::{BTreeMap, VecDeque};

use tollgate_limiter::{descriptor::Secret, remote::RemoteOutcome};

use crate::cluster::{
    MemberId,
    message::Message,
    node::{stats::Stats, ticket::Ticket},
};

/// The most messages that wait for one peer. Beyond that number, checks treat the peer as unreachable.
const QUEUE_MAX: usize = 65_536;

/// An action for the layer that performs I/O.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A replica may be reachable at this address.
    Dial(String),
    /// This member has departed: close the link.
    Disconnect(MemberId),
    /// The outcome of one check of a local caller.
    Complete(Ticket, RemoteOutcome),
    /// From now on keys are hashed with this secret.
    SetHashSecret(Secret),
    /// Every slot is handed off, as far as possible: leave the cluster.
    Leave,
    /// An event to log for the operator.
    Report(Event),
}

/// An event that is logged for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// This replica knows the owners of the slots, and answers.
    Joined,
    /// This replica met another cluster, adopted its hash secret and discarded all its own counters.
    ClusterAdopted,
    /// Fewer members are reachable than this replica needs to trust its counters.
    Isolated,
    /// Enough members are reachable again.
    IsolationEnded,
    /// This member has named a slot or an epoch that cannot exist.
    OutOfRange(MemberId),
}

/// The pending messages and actions, and the counts so far.
#[derive(Debug, Default)]
pub(super) struct Output {
    // One queue for each connected peer.
    pub(super) queues: BTreeMap<MemberId, VecDeque<Message>>,
    /// The peers whose queue was empty and has received messages.
    pub(super) ready_peers: Vec<MemberId>,
    pub(super) actions: Vec<Action>,
    pub(super) stats: Stats,
}

impl Output {
    /// Queues a message; without effect if `to` is not connected.
    pub(super) fn send(&mut self, to: MemberId, message: Message) {
        if let Some(queue) = self.queues.get_mut(&to) {
            if queue.is_empty() {
                self.ready_peers.push(to);
            }
            queue.push_back(message);
        }
    }

    /// Queues a message for every connected peer.
    pub(super) fn broadcast(&mut self, message: &Message) {
        for to in self.connected() {
            self.send(to, message.clone());
        }
    }

    /// The connected peers.
    pub(super) fn connected(&self) -> Vec<MemberId> {
        self.queues.keys().copied().collect()
    }

    /// Whether the queue of `peer` is full for checks.
    pub(super) fn is_full(&self, peer: MemberId) -> bool {
        self.queues.get(&peer).is_some_and(|queue| queue.len() >= QUEUE_MAX)
    }

    /// Takes messages for `peer`, oldest first: at most `most` messages, and about `bytes_max` bytes.
    pub(super) fn take_messages(&mut self, peer: MemberId, most: usize, bytes_max: usize) -> Vec<Message> {
        let Some(queue) = self.queues.get_mut(&peer) else { return Vec::new() };
        let (mut bytes, mut count) = (0, 0);
        for message in queue.iter().take(most) {
            bytes += message.wire_bytes();
            if bytes > bytes_max && count > 0 {
                break;
            }
            count += 1;
        }
        queue.drain(..count).collect()
    }
}
