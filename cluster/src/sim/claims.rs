//! Claims of the slots of a lost owner.

use std::time::Duration;

use tollgate_counter::algorithm::Operation;
use tollgate_rules::{ForwardPolicy, OnOwnerUnavailable};
use tollgate_store::{CounterOperation, Slot};

use crate::{
    member::Departure,
    message::check::{RemoteCheck, RemoteOperation},
    node::output::{NodeAction, Ticket},
    sim::{
        Step::{Pass, Settle, Start},
        World,
    },
};

const TURN: Duration = Duration::from_millis(10);

#[test]
fn lost_slots_are_claimed_in_turns_and_at_once_for_checks() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle, Pass(Duration::from_secs(1))]);
    let (node, now, test_key, peer) = world.caller(0);
    let lost = node.slots() - node.owned_slots().count();
    node.depart(peer, Departure::Dead, now);
    let operation = RemoteOperation::Counter(CounterOperation::Decide(Operation::Charge(1)));
    let check = RemoteCheck { key: test_key.key, limit: test_key.limit, operation, lease_hits: 0 };
    let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
    let ticket = Ticket { call: 7, check: 0 };
    node.actions();
    node.submit(ticket, check, policy, now.after(Duration::from_secs(1)), now);
    let is_answer =
        |action: &NodeAction| matches!(action, NodeAction::Complete(answered, _) if *answered == ticket);
    assert!(node.actions().iter().any(is_answer), "the check is decided at once");
    let owned: Vec<Slot> = node.owned_slots().collect();
    assert_eq!(node.slots() - owned.len(), lost - 1, "only the slot of the check is claimed");
    node.tick(now.after(TURN));
    let left = node.slots() - node.owned_slots().count();
    assert!((1..lost - 1).contains(&left), "{left} of {lost} slots are left");
    for turn in 2..20 {
        node.tick(now.after(TURN * turn));
    }
    assert_eq!(node.owned_slots().count(), node.slots());
}
