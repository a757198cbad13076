//! The fuzz target of batches from another replica.

use std::{sync::Arc, time::Duration};

use tollgate_counter::time::{SECOND, Timestamp};
use tollgate_store::{Memory, OnFull, divider::Dividers};

use crate::{
    member::{Departure, MemberId},
    message::{Hello, MemberRecord, MemberState, Message},
    node::ClusterNode,
    tuning::NodeSettings,
    wire,
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const TICK: u64 = SECOND / 100;
const SLOTS: usize = 16;
const LOCAL: MemberId = MemberId::from_number(2);
/// One peer would be the bootstrap of a joint cluster, and the other would not.
const PEERS: [MemberId; 2] = [MemberId::from_number(1), MemberId::from_number(3)];

/// A batch of a peer: it is refused, or each replica understands it again and the node acts on it.
pub fn batch(bytes: &[u8]) {
    let Ok(messages) = wire::decode(bytes, NOW) else { return };
    let again = wire::decode(&wire::encode(&messages, NOW), NOW).expect("an encoded batch is valid");
    assert_eq!(again.len(), messages.len());
    let mut now = NOW;
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny).with_slots(SLOTS).shared());
    let mut node = serving_node(&memory, &mut now);
    for message in messages {
        node.receive(PEERS[0], message, now);
        pass(&mut node, &memory, &mut now, 1);
    }
    // Backups, recoveries and timeouts follow.
    pass(&mut node, &memory, &mut now, 120);
    node.depart(PEERS[0], Departure::Dead, now);
    pass(&mut node, &memory, &mut now, 120);
}

/// A replica that has bootstrapped a cluster and has a session with each peer.
fn serving_node(memory: &Arc<Memory>, now: &mut Timestamp) -> ClusterNode {
    let settings = NodeSettings {
        silence: Duration::from_secs(1),
        bootstrap_timeout: Duration::from_millis(20),
        hand_offs_max: 3,
        data_bytes_max: 1_000,
        claimed_counters_max: 3,
        tuning: crate::Tuning {
            backup_interval: Some(Duration::from_millis(50)),
            lease_from: Some(1),
            ..crate::Tuning::FOR_TESTS
        },
    };
    let dividers = Arc::new(Dividers::new(memory.clone()));
    let mut node = ClusterNode::new(LOCAL, "local:1".to_owned(), settings, memory.clone(), dividers, *now);
    node.seeds_tried(true);
    pass(&mut node, memory, now, 4);
    assert_eq!(node.state(), MemberState::Serving);
    for peer in PEERS {
        let address = format!("peer-{}:1", peer.number());
        node.connected(peer, &address, *now);
        let record = MemberRecord { id: peer, address, state: MemberState::Serving, rules: 0, changes: 1 };
        let hello = Hello { record, hash_secret: None, known: vec![], owned: vec![], owners: vec![] };
        node.receive(peer, Message::Hello(Box::new(hello)), *now);
    }
    pass(&mut node, memory, now, 1);
    node
}

/// Lets ticks pass, in each of which every peer reads what the node sends. The memory holds what the node owns.
fn pass(node: &mut ClusterNode, memory: &Memory, now: &mut Timestamp, ticks: u32) {
    for _ in 0..ticks {
        *now = now.plus(TICK);
        node.set_wall(*now);
        PEERS.iter().for_each(|peer| node.heard(*peer, *now));
        node.tick(*now);
        for peer in PEERS {
            let messages = node.outgoing(peer, usize::MAX, usize::MAX, *now);
            let read = wire::decode(&wire::encode(&messages, *now), *now).expect("a peer can read the batch");
            assert_eq!(read.len(), messages.len());
        }
        node.ready_peers();
        node.actions();
        assert!(node.owned_slots().all(|slot| memory.owns(slot)));
    }
}

#[cfg(test)]
mod tests {
    use tollgate_store::{Epoch, Slot};

    use super::*;
    use crate::{
        message::{SlotOwner, slot::Version},
        node::output::NodeAction,
    };

    fn hello(slot: Slot, epoch: Epoch) -> Message {
        let owner = SlotOwner { epoch, member: PEERS[1] };
        let address = "peer-1:1".to_owned();
        let record =
            MemberRecord { id: PEERS[0], address, state: MemberState::Serving, rules: 0, changes: 2 };
        Message::Hello(Box::new(Hello {
            record,
            hash_secret: None,
            known: vec![],
            owned: vec![],
            owners: vec![(slot, owner)],
        }))
    }

    #[test]
    fn slot_or_epoch_out_of_range_ends_the_session() {
        let last = Slot::at(SLOTS - 1);
        let beyond = Slot::at(SLOTS);
        let too_late = Epoch(u64::MAX);
        let orphan = |slot, epoch| Message::Orphan { slot, owner: SlotOwner { epoch, member: PEERS[1] } };
        let query = |slot, epoch| Message::RecoveryQuery { slot, best: Version { epoch, seq: 0 } };
        for of in [&hello as &dyn Fn(Slot, Epoch) -> Message, &orphan, &query] {
            for (slot, epoch, is_in_range) in
                [(last, Epoch::MAX, true), (beyond, Epoch(1), false), (last, too_late, false)]
            {
                let mut now = NOW;
                let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny).with_slots(SLOTS).shared());
                let mut node = serving_node(&memory, &mut now);
                node.actions();
                node.receive(PEERS[0], of(slot, epoch), now);
                let is_disconnect =
                    |action: &NodeAction| matches!(action, NodeAction::Disconnect(peer) if *peer == PEERS[0]);
                let is_report = |action: &NodeAction| matches!(action, NodeAction::LogOutOfRange(_));
                let actions = node.actions();
                let ended = (actions.iter().any(is_disconnect), actions.iter().any(is_report));
                assert_eq!(ended, (!is_in_range, !is_in_range), "{slot:?} {epoch:?} {actions:?}");
            }
        }
    }
}
