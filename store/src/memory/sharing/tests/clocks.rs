//! Slot data carries ages: its bytes do not depend on what the clock of the sender shows.

use std::time::Duration;

use super::*;
use tollgate_counter::algorithm::laws::with_penalty;

use crate::{
    Lead,
    decisions::CheckDecision,
    operation::UnknownId,
    reservation::{HOLD_TTL_DEFAULT, HoldId, HoldTerms, OnExpiry},
};

const DAY: u64 = 86_400 * SECOND;
/// What the other clock shows more: whole parts of windows, which begin at the same instants under any clock.
const AHEAD: u64 = 7 * DAY;

/// Limits whose counters have no windows, which are the same for all replicas: alone, and with a penalty.
fn limits() -> Vec<Limit> {
    let is_window = |limit: &Limit| limit.window().is_some() || matches!(limit, Limit::SlidingWindow(_));
    let plain = [10, 1 << 40].into_iter().flat_map(|allowance| every_limit(allowance, DAY));
    let plain: Vec<_> = plain.filter(|limit| !is_window(limit)).collect();
    let penalized: Vec<_> = plain.iter().map(|limit| with_penalty(limit.clone(), DAY)).collect();
    [plain, penalized].concat()
}

/// A store in which everything that slot data can have happened since `now`: a counter, refusals in a row, reservations
/// that are open and ended, ids, usage that another owner has admitted, and a lead.
fn history(limit: &Limit, now: Timestamp) -> Memory {
    let (memory, elsewhere) = (sharing([0]), sharing([0]));
    let [one, other] = ["one", "other"].map(|name| in_first_slot(&memory, name));
    let check = |hits| Check {
        key: one,
        limit,
        operation: Operation::Charge(hits),
        on_refusal: OnRefusal::TakeBack,
        origin: LimitOrigin::Rule,
    };
    let refused = |decisions: &[CheckDecision]| !decisions[0].verdict.passes();
    operation(&memory, one, limit, Operation::Charge(4), now).unwrap();
    for (name, on_expiry) in [("a", OnExpiry::Release), ("b", OnExpiry::Charge)] {
        let id = HoldId::new(name.as_bytes()).unwrap();
        let terms = HoldTerms::new(id, HOLD_TTL_DEFAULT, on_expiry).unwrap();
        memory.reserve(&Checks::from_slice(&[check(2)]), &terms, now.plus(SECOND), refused).unwrap().unwrap();
    }
    let ended = HoldId::new(b"b").unwrap();
    memory
        .settle(&Checks::from_slice(&[check(1)]), &ended, UnknownId::Remember, now.plus(2 * SECOND))
        .unwrap();
    for _ in 0..2 {
        operation(&memory, one, limit, Operation::Charge(limit.allowance() + 1), now.plus(3 * SECOND))
            .unwrap();
    }
    operation(&elsewhere, other, limit, Operation::Charge(3), now).unwrap();
    let used = elsewhere.whole(Slot(0)).data.difference(&SlotData::default());
    assert!(memory.add(Slot(0), used, now.plus(4 * SECOND)));
    memory.give_up_lead(Lead { at: now.plus(4 * SECOND), until: now.plus(DAY) });
    memory
}

/// A key of the first slot.
fn in_first_slot(memory: &Memory, name: &str) -> Key {
    let keys = (0..).map(|number| key(&format!("{name} {number}")));
    keys.into_iter().find(|key| memory.slot(*key) == Slot(0)).unwrap()
}

#[test]
fn slot_data_has_the_same_bytes_under_any_clock() {
    for limit in limits() {
        let copies = |begun: Timestamp| {
            let (memory, now) = (history(&limit, begun), begun.plus(5 * SECOND));
            let all = memory.whole(Slot(0)).data;
            operation(&memory, in_first_slot(&memory, "one"), &limit, Operation::Charge(1), now).unwrap();
            [all, memory.changes(Slot(0)).data].map(|data| data.without_idle(now))
        };
        let (here, there) = (NOW.plus(5 * SECOND), NOW.plus(AHEAD + 5 * SECOND));
        for (one, other) in copies(NOW).iter().zip(copies(NOW.plus(AHEAD))) {
            let (bytes, expected) = (one.encode(here), other.encode(there));
            assert_eq!(bytes, expected, "{limit:?}");
            assert_eq!(SlotData::decode(&bytes, there), Ok(other), "{limit:?}");
        }
    }
}

#[test]
fn reservation_is_open_as_long_under_another_clock() {
    let there = NOW.plus(AHEAD);
    for limit in limits() {
        let (memory, other) = (history(&limit, NOW), sharing([]));
        let now = NOW.plus(5 * SECOND);
        let by_the_other = there.plus(5 * SECOND);
        other.acquire(Slot(0), sent(&memory.whole(Slot(0)).data, now, by_the_other), by_the_other);
        let expiry = HOLD_TTL_DEFAULT - Duration::from_secs(4);
        for (after, open) in [(expiry - Duration::from_nanos(1), 1), (expiry, 0)] {
            let name = in_first_slot(&memory, "one");
            operation(&other, name, &limit, Operation::Peek, by_the_other.after(after)).unwrap();
            assert_eq!(other.stats().holds_open, open, "{limit:?}");
        }
    }
}
