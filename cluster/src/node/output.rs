//! What the node puts out: messages to peers, actions for the layer that performs I/O, answers to checks, and statistics.

use std::collections::{BTreeMap, VecDeque};

use tollgate_counter::{descriptor::Secret, time::Timestamp};
use tollgate_remote::RemoteOutcome;
use tollgate_store::divider::Assignments;

use crate::{member::MemberId, message::Message};

/// The most messages that wait for one peer. Beyond that number, checks treat the peer as unreachable.
const QUEUE_MAX: usize = 65_536;

/// An action for the layer that performs I/O.
#[derive(Clone, Debug)]
pub(crate) enum NodeAction {
    /// A replica may be reachable at this address.
    Dial(String),
    /// This member has departed: close the link.
    Disconnect(MemberId),
    /// The outcome of one check of a local caller.
    Complete(Ticket, RemoteOutcome),
    /// What clients of this replica may let pass.
    Assign(Assignments),
    /// From now on keys are hashed with this secret.
    SetHashSecret(Secret),
    /// Log that this replica knows the owners of the slots, and answers.
    LogJoined,
    /// Log that this replica met another cluster, adopted its hash secret and discarded all its own counters.
    LogClusterAdopted,
    /// Log whether fewer members are reachable than this replica needs to trust its counters.
    LogIsolation { is_isolated: bool },
    /// Log that this member has named a slot or an epoch that cannot exist.
    LogOutOfRange(MemberId),
}

/// The pending messages and actions, and the counts so far.
#[derive(Debug, Default)]
pub(super) struct NodeOutput {
    /// The most bytes of slot data that wait for one peer before further data is held back.
    data_bytes_max: usize,
    queues: BTreeMap<MemberId, Queue>,
    /// The peers whose queue was empty and has received messages.
    pub(super) ready_peers: Vec<MemberId>,
    pub(super) actions: Vec<NodeAction>,
    pub(super) stats: NodeStats,
}

/// The messages that wait for one connected peer, oldest first.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// The sum of [`Message::data_bytes`] of the messages.
    data_bytes: usize,
}

impl NodeOutput {
    pub(super) fn new(data_bytes_max: usize) -> Self {
        Self { data_bytes_max, ..Self::default() }
    }

    /// A session with `peer` has begun.
    pub(super) fn connect(&mut self, peer: MemberId) {
        self.queues.insert(peer, Queue::default());
    }

    /// The session with `peer` has ended.
    pub(super) fn disconnect(&mut self, peer: MemberId) {
        self.queues.remove(&peer);
    }

    /// Queues a message; without effect if `to` is not connected. Returns its [`Message::data_bytes`].
    pub(super) fn send(&mut self, to: MemberId, message: Message) -> usize {
        let Some(queue) = self.queues.get_mut(&to) else { return 0 };
        if queue.messages.is_empty() {
            self.ready_peers.push(to);
        }
        let data_bytes = message.data_bytes();
        queue.data_bytes += data_bytes;
        queue.messages.push_back(message);
        data_bytes
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
        self.queues.get(&peer).is_some_and(|queue| queue.messages.len() >= QUEUE_MAX)
    }

    /// Whether little slot data waits for `peer`. Checks wait behind what is queued, so further data is held back.
    pub(super) fn has_room_for_data(&self, peer: MemberId) -> bool {
        self.queues.get(&peer).is_some_and(|queue| queue.data_bytes < self.data_bytes_max)
    }

    /// Takes messages for `peer`, oldest first: at most `most`, and at most `data_bytes_max` bytes of slot data or one
    /// message with more.
    pub(super) fn take_messages(
        &mut self,
        peer: MemberId,
        most: usize,
        data_bytes_max: usize,
    ) -> Vec<Message> {
        let Some(queue) = self.queues.get_mut(&peer) else { return Vec::new() };
        let mut count = queue.messages.len().min(most);
        if queue.data_bytes > 0 {
            let mut taken = 0;
            let mut fits = |message: &Message| {
                let bytes = message.data_bytes();
                let fits = taken == 0 || taken + bytes <= data_bytes_max;
                taken += if fits { bytes } else { 0 };
                fits
            };
            count = queue.messages.iter().take(count).take_while(|message| fits(message)).count();
            queue.data_bytes -= taken;
        }
        if count < queue.messages.len() {
            return queue.messages.drain(..count).collect();
        }
        // Messages are large to move. The next batch has about as many.
        std::mem::replace(&mut queue.messages, VecDeque::with_capacity(count)).into()
    }
}

/// Identifies one check of one round of a local caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) call: u64,
    pub(crate) check: u32,
}

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeStats {
    /// Counters handed off to other replicas.
    pub handed_off: u64,
    /// Counters received from other replicas.
    pub received: u64,
    /// Acknowledged hand-offs.
    pub hand_offs: u64,
    /// The sum of the durations of acknowledged hand-offs, in nanoseconds.
    pub hand_off_nanos: u64,
    /// Slots that this replica became the owner of.
    pub slots_acquired: u64,
    /// Slots recovered after their owner was lost.
    pub slots_recovered: u64,
    /// Checks forwarded to other replicas.
    pub forwarded: u64,
    /// Checks decided from a lease.
    pub leased: u64,
    /// Replies that arrived after the deadline.
    pub late_answers: u64,
    /// How often the circuit breaker of a peer opened.
    pub breaker_openings: u64,
    /// Leases lent.
    pub grants_lent: u64,
    /// Leases recalled.
    pub grants_recalled: u64,
    /// Leases charged because the borrower was silent.
    pub grants_lost: u64,
    /// Counters sent as backups.
    pub backed_up: u64,
    /// Backups that were acknowledged.
    pub backups_arrived: u64,
    /// When the last backup was acknowledged.
    pub backup_arrived_at: Timestamp,
    /// Backups of other replicas that were refused because memory was short.
    pub backups_refused: u64,
    /// Members that died, left or were silent for too long.
    pub members_lost: u64,
    /// Changes of the placement by silence alone that were held back because there were others shortly before.
    pub silences_held_back: u64,
    /// How often this replica became isolated.
    pub isolations: u64,
    /// How often all counters were discarded in favour of another cluster.
    pub clusters_adopted: u64,
    /// Consumption reports that were dropped because the queue was full.
    pub reports_dropped: u64,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_counter::{
        algorithm::{Counter, Operation, laws::every_limit},
        descriptor::Key,
        time::{SECOND, Timestamp},
    };
    use tollgate_store::{Check, LimitOrigin, Memory, OnFull, OnRefusal, Slot, SlotData};

    use super::*;
    use crate::{
        message::slot::{SlotGrants, Version, VersionedSlot},
        wire,
    };

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
    const BATCH_BYTES: usize = 256 * 1024;
    const ENTRIES: u64 = 10_000;

    /// A slot with logs of as many entries as a log can have.
    fn full_logs(logs: u64) -> Arc<SlotData> {
        let memory = Memory::new(1 << 30, OnFull::Deny).with_slots(2).shared();
        memory.acquire(Slot(0), SlotData::default(), NOW);
        let is_log = |limit: &tollgate_counter::algorithm::Limit| matches!(limit.fresh(), Counter::Log(_));
        let limit =
            every_limit(ENTRIES, 3_600 * SECOND).into_iter().find(is_log).expect("a limit with a log");
        for (low, entry) in (0..logs).flat_map(|low| (0..ENTRIES).map(move |entry| (low, entry))) {
            let key = Key::from_halves(0, low);
            let operation = Operation::Charge(1);
            let check = Check {
                key,
                limit: &limit,
                operation,
                on_refusal: OnRefusal::Keep,
                origin: LimitOrigin::Rule,
            };
            memory.apply(&[check], NOW.plus(entry * SECOND / 10), |_| false).unwrap();
        }
        Arc::new(memory.whole(Slot(0)).data)
    }

    #[test]
    fn batches_of_full_logs_are_within_their_bound() {
        let peer = MemberId::from_number(1);
        let mut out = NodeOutput::new(usize::MAX);
        out.connect(peer);
        let [small, large] = [full_logs(1), full_logs(4)];
        for contents in [&small, &small, &small, &large, &small].into_iter().cycle().take(20) {
            let copy = VersionedSlot {
                version: Version::default(),
                contents: contents.clone(),
                grants: SlotGrants::default(),
            };
            out.send(peer, Message::NewerCopy { slot: Slot(0), copy });
        }
        let mut sent = 0;
        while sent < 20 {
            let batch = out.take_messages(peer, 1_024, BATCH_BYTES);
            let bytes = wire::encode(&batch, NOW).len();
            assert!(batch.len() == 1 || (2..20).contains(&batch.len()) && bytes <= BATCH_BYTES, "{bytes}");
            sent += batch.len();
        }
        assert!(out.take_messages(peer, 1_024, BATCH_BYTES).is_empty());
    }

    #[test]
    fn slot_data_that_waits_for_a_peer_leaves_room_when_it_is_taken() {
        let peer = MemberId::from_number(1);
        let mut out = NodeOutput::new(100_000);
        let contents = full_logs(1);
        assert!(!out.has_room_for_data(peer), "there is no session");
        out.connect(peer);
        while out.has_room_for_data(peer) {
            let copy = VersionedSlot {
                version: Version::default(),
                contents: contents.clone(),
                grants: SlotGrants::default(),
            };
            out.send(peer, Message::NewerCopy { slot: Slot(0), copy });
        }
        let waiting = out.take_messages(peer, usize::MAX, usize::MAX);
        assert!((1..10).contains(&waiting.len()) && out.has_room_for_data(peer));
    }
}
