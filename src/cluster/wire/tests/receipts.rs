//! A receipt comes back to the holder as it went out, whatever the clocks between show.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;

use super::any::{NOW, limit};
use crate::{
    algorithm::{Decision, Limit, Operation, Receipt},
    cluster::{
        message::{Deed, Message, Question, Reply},
        wire::{decode, encode},
    },
    descriptor::Key,
    time::{SECOND, Timestamp},
};

/// What an asker whose clock shows `there` is told, and hands back, of a decision here.
fn crossed_twice(limit: &Limit, decision: Decision, there: Timestamp) -> Option<Receipt> {
    let told = Message::Answer { ticket: 7, reply: Reply::Decided { decision, charged: 1, grant: None } };
    let heard = decode(encode(&[told], NOW), there).unwrap().pop();
    let Some(Message::Answer { reply: Reply::Decided { decision, .. }, .. }) = heard else {
        panic!("{heard:?}")
    };
    let question = Question {
        key: Key::from_halves(1, 2),
        limit: limit.clone(),
        deed: Deed::Undo(decision.receipt?),
        wish: 0,
    };
    let back = Message::Ask { ticket: 8, question: Arc::new(question), budget: Duration::ZERO, hops: 1 };
    let back = decode(encode(&[back], there), NOW.plus(SECOND)).unwrap().pop();
    let Some(Message::Ask { question, .. }) = back else { panic!("{back:?}") };
    let Deed::Undo(receipt) = question.deed else { panic!("{:?}", question.deed) };
    Some(receipt)
}

fn instant() -> impl Strategy<Value = Timestamp> {
    prop_oneof![any::<u64>(), NOW.as_nanos() - 100 * SECOND..NOW.as_nanos() + 100 * SECOND]
        .prop_map(Timestamp::from_nanos)
}

proptest! {
    #[test]
    fn a_receipt_comes_back_to_its_holder_bit_for_bit(
        limit in limit(),
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
    fn a_receipt_that_meets_the_counter_at_another_clock_takes_back_its_hits_at_most(
        limit in limit(),
        charges in prop::collection::vec((0..SECOND, 1..10_u64), 1..10),
        which in any::<prop::sample::Index>(),
        there in instant(),
        later in 0..100 * SECOND,
    ) {
        let (mut here, mut moved) = (limit.fresh(), limit.fresh());
        let (mut now, mut then) = (NOW, there);
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
