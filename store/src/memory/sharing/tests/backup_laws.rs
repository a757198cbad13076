//! Laws of backups: they take bytes for what has changed, and the copy is that of the owner.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_counter::{
    algorithm::{Excess, Limit, LogCounter, Operation, SlidingLog, Span, laws::every_limit},
    descriptor::Key,
    packed_counter::PackedCounter,
    time::{SECOND, Timestamp},
};

use crate::{
    check::{Check, Checks, LimitOrigin, OnFull, OnRefusal},
    memory::{
        Memory,
        tests::{BYTES, NOW, stored},
    },
    operation::UnknownId,
    reservation::{HoldId, HoldTerms, OnExpiry},
    slot_data::SlotData,
};

const DAY: u64 = 86_400 * SECOND;
/// The most bytes of a backup in addition to those of its counters.
const BATCH_BYTES: usize = 16;
/// The most bytes that a copy has for each counter: two records with the key, and the limit of the holds.
const COUNTER_BYTES: usize = 100;
/// Keys of one slot.
const KEYS: [Key; 3] = [Key::from_halves(1, 1), Key::from_halves(1, 2), Key::from_halves(1, 3)];

#[derive(Clone, Debug)]
enum Step {
    Reserve { name: u8, hits: u64, ttl: u64, on_expiry: OnExpiry },
    Settle { name: u8, hits: u64 },
    Withdraw(u8),
    Charge(u64),
    ChargeWithId { name: u8, hits: u64 },
    Refund(u64),
    RefundWithId { name: u8, hits: u64 },
    Backup,
}

fn any_step() -> impl Strategy<Value = Step> {
    let on_expiry = prop_oneof![Just(OnExpiry::Release), Just(OnExpiry::Charge)];
    let ttl = prop_oneof![1..3_000_u64, Just(50_000)];
    prop_oneof![
        4 => (0..40_u8, 0..4_u64, ttl, on_expiry)
            .prop_map(|(name, hits, ttl, on_expiry)| Step::Reserve { name, hits, ttl, on_expiry }),
        3 => (0..40_u8, 0..6_u64).prop_map(|(name, hits)| Step::Settle { name, hits }),
        1 => (0..40_u8).prop_map(Step::Withdraw),
        3 => (0..4_u64).prop_map(Step::Charge),
        1 => (40..80_u8, 0..4_u64).prop_map(|(name, hits)| Step::ChargeWithId { name, hits }),
        1 => (1..4_u64).prop_map(Step::Refund),
        1 => (80..120_u8, 1..4_u64).prop_map(|(name, hits)| Step::RefundWithId { name, hits }),
        3 => Just(Step::Backup),
    ]
}

/// An owner of one slot, and its last two backups.
struct Owner {
    memory: Memory,
    limits: [Limit; 3],
    now: Timestamp,
}

fn check(key: Key, limit: &Limit, operation: Operation) -> Check<'_> {
    Check { key, limit, operation, on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule }
}

fn id(name: u8) -> HoldId {
    HoldId::new(name.to_string().as_bytes()).unwrap()
}

impl Owner {
    /// The counters have `charged` charges.
    fn new(limits: [Limit; 3], charged: u64) -> Self {
        let memory = Memory::new(BYTES, OnFull::Deny).with_slots(4).shared();
        memory.track_changes();
        memory.each_slot().for_each(|slot| memory.acquire(slot, SlotData::default(), NOW));
        let mut owner = Self { memory, limits, now: NOW };
        for number in 0..charged {
            owner.now = owner.now.plus(SECOND / 50);
            (0..3).for_each(|index| owner.step(index, &Step::Charge(1)));
            // Some entries are held.
            let hold =
                Step::Reserve { name: number as u8, hits: 1, ttl: 50_000, on_expiry: OnExpiry::Release };
            if number % 9 == 0 {
                (0..3).for_each(|index| owner.step(index, &hold));
            }
        }
        owner
    }

    fn step(&self, index: usize, step: &Step) {
        let memory = &self.memory;
        let now = self.now;
        let check = |operation| check(KEYS[index], &self.limits[index], operation);
        let checks = |hits| Checks::from_slice(&[check(Operation::Charge(hits))]);
        let terms = |name, ttl, on_expiry| HoldTerms::new(id(name), Duration::from_millis(ttl), on_expiry);
        // A held place that stays taken becomes an entry before later ones, and these are sent again.
        let frees_places = matches!(self.limits[index], Limit::Concurrency(_));
        match step {
            Step::Reserve { name, hits, ttl, on_expiry } => {
                let on_expiry = if frees_places { OnExpiry::Release } else { *on_expiry };
                let terms = terms(*name, *ttl, on_expiry).unwrap();
                drop(memory.reserve(&checks(*hits), &terms, now, refused).unwrap().unwrap());
            }
            Step::Settle { name, hits } => {
                let hits = if frees_places && *name < 200 { &0 } else { hits };
                memory.settle(&checks(*hits), &id(*name), UnknownId::Remember, now).unwrap();
            }
            Step::Withdraw(name) => {
                memory.withdraw(&checks(0), &id(*name), 0, now).unwrap();
            }
            Step::Charge(hits) => {
                memory.apply_single(&check(Operation::Charge(*hits)), now).unwrap();
            }
            Step::Refund(hits) => {
                memory.apply_single(&check(Operation::Refund(*hits)), now).unwrap();
            }
            Step::ChargeWithId { name, hits } => {
                let terms = terms(*name, 60_000, OnExpiry::Charge).unwrap();
                if memory.reserve(&checks(*hits), &terms, now, refused).unwrap().unwrap().is_held {
                    memory.settle(&checks(*hits), &id(*name), UnknownId::Remember, now).unwrap();
                }
            }
            Step::RefundWithId { name, hits } => {
                memory.settle(&checks(0), &id(*name), UnknownId::Remember, now).unwrap();
                memory.apply_single(&check(Operation::Refund(*hits)), now).unwrap();
            }
            Step::Backup => {}
        }
    }

    fn slot_data(&self) -> SlotData {
        // What a refused call has observed is copied with the next change.
        for index in 0..KEYS.len() {
            self.step(index, &Step::Settle { name: 200 + (self.now.as_nanos() % 50) as u8, hits: 1 });
        }
        let slot = self.memory.slot(KEYS[0]);
        stored(&self.memory, slot, self.now)
    }
}

fn refused(decisions: &[crate::CheckDecision]) -> bool {
    decisions.iter().any(|decision| !decision.verdict.passes())
}

/// The bytes of what has changed since an earlier state.
fn of_changes(data: &SlotData, earlier: &SlotData, now: Timestamp) -> usize {
    let of = |key: Key| {
        let packed = data.counter(key).map_or(0, |packed| packed.bytes_of_changes(earlier.counter(key), now));
        packed + data.holds(key).map_or(0, |holds| holds.bytes_of_changes(earlier.holds(key)))
    };
    KEYS.into_iter().map(of).sum()
}

fn long_log(sub_window: u64) -> Limit {
    let span = Span::from_nanos(DAY).unwrap();
    let sub_window = sub_window.try_into().unwrap();
    Limit::SlidingLog(SlidingLog { limit: 1_000, span, sub_window, excess: Excess::Refuse })
}

fn any_limits() -> impl Strategy<Value = [Limit; 3]> {
    let all = || {
        every_limit(1_000, DAY).into_iter().chain([long_log(1), long_log(SECOND / 10)]).collect::<Vec<_>>()
    };
    let any = || prop::sample::select(all());
    [any(), any(), any()]
}

proptest! {
    #[test]
    fn backup_takes_at_most_twice_the_bytes_of_changes(
        limits in any_limits(),
        charged in 0..120_u64,
        steps in prop::collection::vec((0..3_usize, any_step(), 0..SECOND / 2, 0..SECOND), 1..60),
    ) {
        let mut owner = Owner::new(limits, charged);
        let slot = owner.memory.slot(KEYS[0]);
        let mut last = owner.slot_data();
        let whole = owner.memory.whole(slot).data;
        let mut copy = SlotData::decode(&whole.encode(owner.now), owner.now).unwrap();
        for (index, step, pause, delay) in steps {
            owner.now = owner.now.plus(pause);
            owner.step(index, &step);
            if !matches!(step, Step::Backup) {
                continue;
            }
            let now = owner.now;
            let data = owner.slot_data();
            let changes = owner.memory.changes(slot).data;
            let bytes = changes.encode(now);
            let of_changes = of_changes(&data, &last, now);
            let most = 2 * of_changes + BATCH_BYTES + KEYS.len() * COUNTER_BYTES;
            prop_assert!(bytes.len() <= most, "{} of {of_changes}: {changes:?}", bytes.len());
            prop_assert!(bytes.len() <= changes.encoded_bytes_max());
            // Another clock, and another time on the way.
            let changes = SlotData::decode(&bytes, now.plus(delay)).unwrap();
            prop_assert!(owner.memory.can_merge(&copy, &changes));
            copy.merge(changes);
            for key in KEYS {
                let log = |data: &SlotData| data.counter(key).and_then(PackedCounter::log).cloned();
                let (Some(there), Some(here)) = (log(&copy), log(&data)) else { continue };
                let hits = |log: &LogCounter| log.hits().map(|(_, hits)| hits).collect::<Vec<_>>();
                prop_assert_eq!(hits(&there), hits(&here));
                let positions = |data: &SlotData, log| data.holds(key).map(|holds| holds.positions_in(log));
                prop_assert_eq!(positions(&copy, &there), positions(&data, &here));
            }
            last = data;
        }
    }
}
