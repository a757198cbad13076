//! A receipt returns to its owner unchanged, whatever the clocks in between show.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use tollgate_counter::{
    algorithm::{Decision, Limit, Operation, Receipt, laws::any_limit},
    descriptor::Key,
    time::{SECOND, Timestamp},
};
use tollgate_store::{CounterOperation, OperationOutcome};

use super::any::NOW;
use crate::{
    message::{
        Message,
        check::{CheckReply, RemoteCheck, RemoteOperation},
    },
    wire::{decode, encode},
};

/// The receipt that a replica whose clock shows `there` receives and returns.
fn crossed_twice(limit: &Limit, decision: Decision, there: Timestamp) -> Option<Receipt> {
    let reply = CheckReply::Decided { outcome: OperationOutcome::new(decision, 1), lease: None };
    let told = Message::Reply { ticket: 7, reply };
    let heard = decode(&encode(&[told], NOW), there).unwrap().pop();
    let Some(Message::Reply { reply: CheckReply::Decided { outcome, .. }, .. }) = heard else {
        panic!("{heard:?}")
    };
    let check = RemoteCheck {
        key: Key::from_halves(1, 2),
        limit: limit.clone(),
        operation: RemoteOperation::Counter(CounterOperation::Undo(outcome.decision.receipt?)),
        lease_hits: 0,
    };
    let back = Message::Forward { ticket: 8, check: Arc::new(check), budget: Duration::ZERO, hops: 1 };
    let back = decode(&encode(&[back], there), NOW.plus(SECOND)).unwrap().pop();
    let Some(Message::Forward { check, .. }) = back else { panic!("{back:?}") };
    let RemoteOperation::Counter(CounterOperation::Undo(receipt)) = check.operation else {
        panic!("{:?}", check.operation)
    };
    Some(receipt)
}

fn instant() -> impl Strategy<Value = Timestamp> {
    prop_oneof![any::<u64>(), NOW.as_nanos() - 100 * SECOND..NOW.as_nanos() + 100 * SECOND]
        .prop_map(Timestamp::from_nanos)
}

proptest! {
    #[test]
    fn receipt_returns_to_owner_unchanged(
        limit in any_limit(),
        hits in 1..10_u64,
        there in instant(),
    ) {
        let mut counter = limit.fresh();
        let decision = limit.decide(&mut counter, NOW, Operation::Charge(hits));
        let receipt = crossed_twice(&limit, decision, there);
        prop_assert_eq!(receipt, decision.receipt);
        if let Some(receipt) = receipt {
            limit.undo(&mut counter, receipt, NOW);
            let left = limit.decide(&mut counter, NOW, Operation::Peek).remaining;
            prop_assert_eq!(left, limit.decide(&mut limit.fresh(), NOW, Operation::Peek).remaining);
        }
    }

    #[test]
    fn receipt_under_another_clock_refunds_at_most_its_hits(
        limit in any_limit(),
        charges in prop::collection::vec((0..SECOND, 1..10_u64), 1..10),
        which in any::<prop::sample::Index>(),
        there in instant(),
        later in 0..100 * SECOND,
    ) {
        let mut here = limit.fresh();
        let mut moved = limit.fresh();
        let mut now = NOW;
        let mut then = there;
        let mut receipts = Vec::new();
        for (pause, hits) in charges {
            (now, then) = (now.plus(pause), then.plus(pause));
            let receipt = limit.decide(&mut here, now, Operation::Charge(hits)).receipt;
            receipts.push((hits, receipt));
            limit.decide(&mut moved, then, Operation::Charge(hits));
        }
        if let (hits, Some(receipt)) = receipts[which.index(receipts.len())] {
            let then = then.plus(later);
            let before = limit.decide(&mut moved, then, Operation::Peek).remaining;
            limit.undo(&mut moved, receipt, then);
            let after = limit.decide(&mut moved, then, Operation::Peek).remaining;
            prop_assert!(before <= after, "{} became {}", before, after);
            prop_assert!(after <= before.saturating_add(hits), "{} became {} for {}", before, after, hits);
        }
    }
}
