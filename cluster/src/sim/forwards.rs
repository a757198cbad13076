//! Checks on their way to their owners, one input of a node after another.

use std::{ops::Range, time::Duration};

use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
    time::Timestamp,
};
use tollgate_remote::DecidedBy;
use tollgate_rules::{ForwardPolicy, OnOwnerUnavailable};
use tollgate_store::{CounterOperation, HoldOutcome, OwnLimitChange, OwnLimitRefusal, OwnTerms};

use crate::{
    member::MemberId,
    message::{
        Message,
        check::{RemoteCheck, RemoteOperation},
    },
    node::{
        ClusterNode,
        output::{NodeAction, Ticket},
    },
    sim::{
        Step::{Drain, Kill, Pass, Settle, Start},
        World,
        keys::TestKey,
    },
};

const PEEK: RemoteOperation = RemoteOperation::Counter(CounterOperation::Decide(Operation::Peek));

#[test]
fn only_late_replies_of_a_peer_open_its_breaker() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle]);
    let (node, mut now, TestKey { key, limit, .. }, owner) = world.caller(0);
    let mut calls = 0..;
    let mut openings_after = |is_leaving: bool, turns: &[u64]| {
        node.heard(owner, now);
        node.tick(now);
        for call in calls.by_ref().take(100) {
            submit(node, call, key, &limit, &PEEK, now);
        }
        for pause in turns {
            if is_leaving {
                node.outgoing(owner, usize::MAX, usize::MAX, now);
            }
            now = now.after(millis(*pause));
            node.tick(now);
        }
        let expired =
            node.actions().iter().filter(|action| matches!(action, NodeAction::Complete(..))).count();
        assert_eq!(expired, 100, "every check expires");
        node.stats().breaker_openings
    };
    assert_eq!(openings_after(false, &[10, 10, 10]), 0, "the link took no message in time");
    assert_eq!(openings_after(true, &[600, 10]), 0, "this replica did not run");
    assert_eq!(openings_after(true, &[10, 10, 10]), 1, "the owner is late");
}

#[test]
fn take_back_is_sent_to_an_owner_whose_breaker_is_open() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle]);
    let (node, mut now, TestKey { key, limit, .. }, owner) = world.caller(0);
    node.heard(owner, now);
    node.tick(now);
    let undo = take_back(&limit, now);
    let submit = |node: &mut ClusterNode, calls: Range<u64>, operation: &RemoteOperation, now: Timestamp| {
        for call in calls {
            submit(node, call, key, &limit, operation, now);
        }
    };
    submit(node, 0..100, &PEEK, now);
    for _ in 0..3 {
        node.outgoing(owner, usize::MAX, usize::MAX, now);
        now = now.after(millis(10));
        node.tick(now);
    }
    assert_eq!((node.actions().len(), node.stats().breaker_openings), (100, 1));
    submit(node, 100..101, &PEEK, now);
    submit(node, 101..102, &undo, now);
    assert_eq!(node.actions().len(), 2, "no caller waits");
    assert_eq!(forwarded(node, owner, now), [undo]);
}

#[test]
fn checks_after_a_stop_are_sent_to_the_owner() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle]);
    let (node, mut now, TestKey { key, limit, .. }, owner) = world.caller(0);
    node.heard(owner, now);
    node.tick(now);
    node.outgoing(owner, usize::MAX, usize::MAX, now);
    // This replica stood still, and has not read what the owner has sent meanwhile.
    now = now.after(millis(1_500));
    node.tick(now);
    let undo = take_back(&limit, now);
    for operation in [&PEEK, &undo] {
        submit(node, 1, key, &limit, operation, now);
    }
    assert_eq!(forwarded(node, owner, now), [PEEK, undo]);
    assert!(outcomes(node).is_empty(), "a check is decided without its owner");
}

#[test]
fn take_back_is_sent_to_a_silent_owner_without_a_reply() {
    // If they do not hear each other, one of them is isolated and the other is not.
    for number in [0, 1] {
        let mut world = World::new(1);
        world.run(&[Start(2), Settle]);
        let (node, mut now, TestKey { key, limit, .. }, owner) = world.caller(number);
        node.heard(owner, now);
        for _ in 0..110 {
            now = now.after(millis(10));
            node.tick(now);
        }
        node.outgoing(owner, usize::MAX, usize::MAX, now);
        node.actions();
        let undo = take_back(&limit, now);
        for operation in [&PEEK, &undo] {
            submit(node, 1, key, &limit, operation, now);
        }
        assert_eq!(outcomes(node), [DecidedBy::Nothing; 2], "no caller waits");
        assert_eq!(forwarded(node, owner, now), [undo]);
    }
}

#[test]
fn isolated_owner_takes_charges_back_and_decides_nothing() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle]);
    let (_, _, TestKey { key, limit, .. }, _) = world.caller(1);
    let (node, mut now, _, owner) = world.caller(0);
    node.heard(owner, now);
    let charge = RemoteOperation::Counter(CounterOperation::Decide(Operation::Charge(1)));
    submit(node, 1, key, &limit, &charge, now);
    let Some(NodeAction::Complete(_, charged)) = node.actions().pop() else { panic!("the owner decides") };
    for _ in 0..110 {
        now = now.after(millis(10));
        node.tick(now);
    }
    node.actions();
    assert!(node.is_isolated());
    let undo = RemoteOperation::Counter(CounterOperation::Undo(
        charged.outcome.decision.receipt.expect("the charge passes"),
    ));
    for operation in [&charge, &undo] {
        submit(node, 1, key, &limit, operation, now);
    }
    assert_eq!(outcomes(node), [DecidedBy::Nothing, DecidedBy::Counter]);
}

#[test]
fn own_limit_is_acknowledged_when_backup_owner_has_it() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle, Pass(millis(500))]);
    let (_, _, TestKey { key, limit, .. }, _) = world.caller(1);
    let (node, now, _, other) = world.caller(0);
    let set = set_own(&limit, 7);
    submit(node, 1, key, &limit, &set, now);
    assert_eq!(refusals(node), [], "the backup owner does not have it");
    let sent = node.outgoing(other, usize::MAX, usize::MAX, now);
    let backup = sent.into_iter().find_map(|message| match message {
        Message::Backup { slot, copy, .. } => Some((slot, copy.version)),
        _ => None,
    });
    let (slot, version) = backup.expect("a backup at once");
    node.receive(other, Message::BackupAck { slot, version }, now);
    assert_eq!(refusals(node), [None]);
    submit(node, 2, key, &limit, &set, now);
    node.tick(now.after(millis(15)));
    assert_eq!(refusals(node), [Some(OwnLimitRefusal::NotBackedUp)], "half of the time of the call is over");
}

#[test]
fn isolated_owner_sets_no_limit_and_decides_by_the_smaller_one() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle]);
    let (_, _, TestKey { key, limit, .. }, _) = world.caller(1);
    let (node, mut now, _, other) = world.caller(0);
    node.heard(other, now);
    submit(node, 1, key, &limit, &set_own(&limit, 7), now);
    for _ in 0..110 {
        now = now.after(millis(10));
        node.tick(now);
    }
    node.actions();
    assert!(node.is_isolated());
    submit(node, 2, key, &limit, &set_own(&limit, 8), now);
    let charge = RemoteOperation::Counter(CounterOperation::Decide(Operation::Charge(1)));
    submit(node, 3, key, &limit, &charge, now);
    let known = |action| match action {
        NodeAction::Complete(_, outcome) => Some((outcome.decided_by, outcome.outcome.displayed())),
        _ => None,
    };
    let known: Vec<_> = node.actions().into_iter().filter_map(known).collect();
    assert_eq!(known, [(DecidedBy::Nothing, Some(7)); 2]);
}

#[test]
fn last_replica_of_full_stop_answers_by_the_rule_at_once() {
    let mut world = World::new(1);
    world.run(&[Start(2), Settle, Kill(0), Drain(1), Pass(Duration::from_millis(200))]);
    let (node, now, TestKey { key, limit, .. }, _) = world.caller(1);
    let operation = RemoteOperation::Counter(CounterOperation::Decide(Operation::Charge(1)));
    let check = RemoteCheck { key, limit, operation, lease_hits: 0 };
    let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
    node.submit(Ticket { call: 1, check: 0 }, check, policy, now.after(Duration::from_secs(10)), now);
    let is_answered = |action: &NodeAction| matches!(action, NodeAction::Complete(..));
    assert!(node.actions().iter().any(is_answered), "the call waits for an owner");
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Submits an operation of a call that waits for 20 ms.
fn submit(
    node: &mut ClusterNode,
    call: u64,
    key: Key,
    limit: &Limit,
    operation: &RemoteOperation,
    now: Timestamp,
) {
    let check = RemoteCheck { key, limit: limit.clone(), operation: operation.clone(), lease_hits: 0 };
    let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
    node.submit(Ticket { call, check: 0 }, check, policy, now.after(millis(20)), now);
}

/// The operation that takes a charge of one hit back.
fn take_back(limit: &Limit, now: Timestamp) -> RemoteOperation {
    let charged = limit.decide(&mut limit.fresh(), now, Operation::Charge(1));
    RemoteOperation::Counter(CounterOperation::Undo(charged.receipt.expect("the charge passes")))
}

/// The operations that were sent to `owner` since the last call.
fn forwarded(node: &mut ClusterNode, owner: MemberId, now: Timestamp) -> Vec<RemoteOperation> {
    let sent = node.outgoing(owner, usize::MAX, usize::MAX, now);
    let operation = |message| {
        if let Message::Forward { check, .. } = message { Some(check.operation.clone()) } else { None }
    };
    sent.into_iter().filter_map(operation).collect()
}

/// What decided the checks that were answered since the last call.
fn outcomes(node: &mut ClusterNode) -> Vec<DecidedBy> {
    let decided_by = |action| {
        if let NodeAction::Complete(_, outcome) = action { Some(outcome.decided_by) } else { None }
    };
    node.actions().into_iter().filter_map(decided_by).collect()
}

/// Sets a limit of its own with this number.
fn set_own(limit: &Limit, number: u64) -> RemoteOperation {
    let terms = Some(OwnTerms { limit: limit.clone(), requests_per_unit: number });
    let change = OwnLimitChange { terms, expires_after: None, record: Box::default(), replaces: None };
    RemoteOperation::Counter(CounterOperation::SetOwnLimit(Box::new(change)))
}

/// Why the limits of their own that were answered since the last call have not changed.
fn refusals(node: &mut ClusterNode) -> Vec<Option<OwnLimitRefusal>> {
    let refusal = |action| match action {
        NodeAction::Complete(_, outcome) => match outcome.outcome.hold {
            HoldOutcome::OwnLimit(changed) => Some(changed.refusal),
            _ => None,
        },
        _ => None,
    };
    node.actions().into_iter().filter_map(refusal).collect()
}
