//! Backups over a link that takes no messages for a while.

use std::time::Duration;

use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
    time::Timestamp,
};
use tollgate_rules::{ForwardPolicy, OnOwnerUnavailable};
use tollgate_store::{CounterOperation, Slot};

use crate::{
    message::{
        Message,
        check::{RemoteCheck, RemoteOperation},
    },
    node::{ClusterNode, output::Ticket},
    sim::{
        Step::{Pass, Settle, Start},
        World,
        keys::{self, TestKey},
        world::NODE_SETTINGS,
    },
};

const TURN: Duration = Duration::from_millis(10);

fn charge(node: &mut ClusterNode, key: Key, limit: &Limit, now: Timestamp) {
    let operation = RemoteOperation::Counter(CounterOperation::Decide(Operation::Charge(1)));
    let check = RemoteCheck { key, limit: limit.clone(), operation, lease_hits: 0 };
    let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
    node.submit(Ticket { call: 0, check: 0 }, check, policy, now.after(TURN), now);
}

/// Charges other keys of the node in each turn for this time, while its link takes no messages.
fn charge_while_stalled(world: &mut World, time: Duration) {
    let (node, mut now, TestKey { limit, .. }, peer) = world.caller(0);
    let owned: Vec<Slot> = node.owned_slots().collect();
    let mut numbers = 100..;
    let end = now.after(time);
    while now < end {
        now = now.after(TURN);
        node.heard(peer, now);
        for number in numbers.by_ref().take(10) {
            let key = keys::key(number);
            if owned.contains(&Slot::for_key(key, node.slots())) {
                charge(node, key, &limit, now);
            }
        }
        node.tick(now);
    }
}

fn newest_versions(world: &mut World, number: usize, slots: &[Slot]) -> Vec<Option<u64>> {
    let (node, ..) = world.caller(number);
    slots.iter().map(|slot| node.newest_version(*slot).map(|version| version.seq)).collect()
}

#[test]
fn stalled_link_holds_few_backups_however_much_changes() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle, Pass(Duration::from_secs(1))]);
    charge_while_stalled(&mut world, Duration::from_secs(5));
    let (node, now, _, peer) = world.caller(0);
    let waiting = node.outgoing(peer, usize::MAX, usize::MAX, now);
    let backups: Vec<usize> = waiting
        .iter()
        .filter(|message| matches!(message, Message::Backup { .. }))
        .map(|message| message.data_bytes())
        .collect();
    let all: usize = backups.iter().sum();
    let largest = backups.iter().max().copied().unwrap_or_default();
    assert!(!backups.is_empty() && backups.len() <= node.slots(), "{backups:?}");
    assert!(all <= NODE_SETTINGS.data_bytes_max + largest, "{all} bytes");
}

#[test]
fn link_without_answers_takes_little_slot_data() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle, Pass(Duration::from_secs(1))]);
    let filled = Duration::from_secs(2);
    charge_while_stalled(&mut world, filled);
    let (node, now, _, peer) = world.caller(0);
    let mut now = now.after(filled);
    node.drain(now);
    let mut hand_offs = 0;
    let mut sizes = Vec::new();
    for _turn in 0..200 {
        now = now.after(TURN);
        node.heard(peer, now);
        node.tick(now);
        let taken = node.outgoing(peer, usize::MAX, usize::MAX, now);
        hand_offs += taken.iter().filter(|message| matches!(message, Message::HandOff(_))).count();
        sizes.extend(taken.iter().map(|message| message.data_bytes()));
    }
    let all = sizes.iter().sum::<usize>();
    let largest = sizes.iter().max().copied().unwrap_or_default();
    assert!(hand_offs > 0 && node.owned_slots().count() > 0, "{hand_offs} hand-offs");
    assert!(all <= NODE_SETTINGS.data_bytes_max + 2 * largest, "{all} bytes, {largest} in one message");
}

#[test]
fn backups_are_complete_soon_after_a_stall() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle, Pass(Duration::from_secs(1))]);
    let slots: Vec<Slot> = world.caller(0).0.owned_slots().collect();
    let stall = Duration::from_secs(3);
    charge_while_stalled(&mut world, stall);
    // The clock of the world has not moved meanwhile.
    world.run(&[Pass(stall + Duration::from_millis(500))]);
    let [owned, kept] = [0, 1].map(|number| newest_versions(&mut world, number, &slots));
    assert_eq!(owned, kept);
}
