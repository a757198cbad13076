//! What is promised of slots that change hands, and of copies of them.

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::Decision,
    store::{
        Check, Elsewhere, OnFull, OnRefusal, Unreadable,
        memory::tests::{BYTES, NOW, bucket, charge, key, left, second_of, window},
    },
    time::SECOND,
};

const SLOTS: u16 = 4;

/// A memory that holds these slots.
fn sharing(held: impl IntoIterator<Item = u16>) -> Memory {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared();
    memory.track_changes();
    held.into_iter().for_each(|slot| memory.hold(Slot(slot), Contents::default(), NOW));
    memory
}

fn number(number: u64) -> Key {
    key(&number.to_string())
}

fn ask(memory: &Memory, key: Key, limit: &Limit, ask: Ask, now: Timestamp) -> Result<Decision, Elsewhere> {
    let check = Check { key, limit, ask, on_refusal: OnRefusal::TakeBack };
    memory.apply(&[check], now, |_| false).map(|decisions| decisions[0])
}

/// Over the wire, to a replica whose clock shows `there`.
fn sent(contents: &Contents, here: Timestamp, there: Timestamp) -> Contents {
    Contents::decode(&contents.encode(here), there).unwrap()
}

#[test]
fn a_call_that_needs_a_slot_of_another_charges_nothing() {
    let (memory, limit) = (sharing(1..SLOTS), window(10));
    let missing = (0..).map(number).find(|key| memory.slot(*key) == Slot(0)).unwrap();
    let here = (0..).map(number).find(|key| memory.slot(*key) == Slot(1)).unwrap();
    let checks = [here, missing].map(|key| Check {
        key,
        limit: &limit,
        ask: Ask::Charge(1),
        on_refusal: OnRefusal::TakeBack,
    });
    assert_eq!(memory.apply(&checks, NOW, |_| false).unwrap_err(), Elsewhere::Slot(Slot(0)));
    assert_eq!(left(&memory, here, &limit), 10);
    memory.hold(Slot(0), Contents::default(), NOW);
    assert!(memory.apply(&checks, NOW, |_| false).is_ok());
    assert_eq!(left(&memory, here, &limit), 9);
}

#[test]
fn a_slot_is_given_once_and_then_not_held() {
    let memory = sharing(0..SLOTS);
    let slot = memory.slot(key("one"));
    assert!(charge(&memory, key("one"), &window(10), NOW));
    let (contents, seq) = memory.give(slot).unwrap();
    assert_eq!((contents.len(), seq), (1, 1));
    assert!(!memory.holds(slot) && memory.give(slot).is_none());
    assert_eq!(memory.figures().live, 0);
}

#[test]
fn a_memory_of_its_own_holds_all_and_gives_none() {
    let memory = Memory::new(BYTES, OnFull::Deny);
    assert!(memory.holds(Slot(17)) && memory.give(Slot(17)).is_none());
    assert!(charge(&memory, key("one"), &window(1), NOW));
    assert_eq!(memory.changed_slots(), []);
}

#[test]
fn what_is_out_of_its_slot_counts_in_the_budget_until_it_is_dropped() {
    let (memory, limit) = (sharing(0..1), window(10));
    let keys: Vec<_> = (0..).map(number).filter(|key| memory.slot(*key) == Slot(0)).take(1_000).collect();
    keys.iter().for_each(|key| assert!(charge(&memory, *key, &limit, NOW)));
    let held = memory.figures().bytes;
    let whole = memory.whole(Slot(0)).contents;
    let copy = whole.clone();
    let figures = memory.figures();
    assert!(1_000 * 2 * 32 <= figures.backup_bytes && figures.bytes == held + figures.backup_bytes);
    drop(whole);
    assert_eq!(memory.figures().backup_bytes, figures.backup_bytes / 2);
    drop(copy);
    assert_eq!(memory.figures().bytes, held);

    let (given, _) = memory.give(Slot(0)).unwrap();
    assert_eq!(memory.figures().bytes, memory.figures().backup_bytes);
    memory.hold(Slot(0), given, NOW);
    assert_eq!((memory.figures().live, memory.figures().backup_bytes), (1_000, 0));
    drop(memory.give(Slot(0)));
    assert_eq!(memory.figures().bytes, 0);
}

#[test]
fn what_has_no_room_in_the_budget_is_not_taken_in() {
    let (rich, poor) = (sharing(0..1), Memory::new(20_000, OnFull::Deny).with_slots(2).shared());
    let keys: Vec<_> = (0..).map(number).filter(|key| rich.slot(*key) == Slot(0)).take(1_000).collect();
    keys.iter().for_each(|key| assert!(charge(&rich, *key, &window(10), NOW)));
    let contents = sent(&rich.whole(Slot(0)).contents, NOW, NOW);
    assert!(poor.within_limit(contents.clone()).is_none());
    let counted = rich.within_limit(contents).unwrap();
    assert_eq!(counted.len(), 1_000);
    assert!(0 < rich.figures().backup_bytes);
}

#[test]
fn slots_with_changes_are_listed_until_they_are_told() {
    let (memory, limit) = (sharing(0..SLOTS), window(10));
    let all: Vec<_> = (0..SLOTS).map(Slot).collect();
    assert_eq!(memory.changed_slots(), all, "a slot that is new here is all changes");
    all.iter().for_each(|slot| drop(memory.changes(*slot)));
    assert_eq!(memory.changed_slots(), []);
    let one = number(1);
    assert_eq!(left(&memory, one, &limit), 10);
    assert_eq!(memory.changed_slots(), [], "a look is no change");
    charge(&memory, one, &limit, NOW);
    assert_eq!(memory.changed_slots(), [memory.slot(one)]);
    let changes = memory.changes(memory.slot(one));
    assert_eq!((changes.seq, changes.contents.len()), (1, 1));
    assert!(memory.changes(memory.slot(one)).contents.is_empty());
}

#[test]
fn a_counter_whose_window_is_far_ahead_is_cut_to_the_next() {
    let hour = 3_600 * SECOND;
    for limit in [window(10), second_of(1), second_of(5), second_of(4)] {
        let (ahead, memory) = (sharing(0..SLOTS), sharing([]));
        let slot = ahead.slot(key("one"));
        let then = NOW.plus(200 * 24 * hour);
        ask(&ahead, key("one"), &limit, Ask::Charge(5), then).unwrap();
        let contents = ahead.give(slot).unwrap().0;
        memory.hold(slot, sent(&contents, then, NOW), NOW);
        let now = ask(&memory, key("one"), &limit, Ask::Look, NOW).unwrap();
        assert_eq!(now.remaining, limit.allowance() - 5);
        // It is one of the next window, and fades in the one after that.
        let period = limit.period().map_or(31 * 24 * hour, |period| period.as_nanos() as u64);
        let later = ask(&memory, key("one"), &limit, Ask::Look, NOW.plus(3 * period)).unwrap();
        assert_eq!(later.remaining, limit.allowance());
    }
}

#[test]
fn of_two_holders_the_keeper_adds_what_the_other_consumed_after_they_parted() {
    for limit in [window(20), bucket(20), second_of(9)] {
        let (first, second, name) = (sharing(0..SLOTS), sharing([]), key("one"));
        let slot = first.slot(name);
        ask(&first, name, &limit, Ask::Charge(1), NOW).unwrap();
        let base = sent(&first.whole(slot).contents, NOW, NOW);
        second.hold(slot, base.clone(), NOW);
        ask(&first, name, &limit, Ask::Charge(2), NOW).unwrap();
        ask(&second, name, &limit, Ask::Charge(4), NOW).unwrap();

        let (lost, _) = second.give(slot).unwrap();
        let extras = lost.difference(&base);
        assert_eq!(extras.len(), 1);
        let extras = Extras::decode(&extras.encode(NOW), NOW).unwrap();
        assert!(first.add(slot, extras, NOW));
        // Also while nobody asks, and over another hand-off.
        let (with_extras, seq) = first.give(slot).unwrap();
        assert_eq!(seq, 3);
        second.hold(slot, sent(&with_extras, NOW, NOW), NOW);
        let look = ask(&second, name, &limit, Ask::Look, NOW).unwrap();
        assert_eq!(look.remaining, limit.allowance() - 7);
        assert_eq!(second.version_seq(slot), 1, "what is absorbed is a change");
    }
}

#[test]
fn a_copy_forgets_what_was_reset_and_what_was_given_back() {
    let (memory, limit, name) = (sharing(0..SLOTS), window(20), key("one"));
    let slot = memory.slot(name);
    for reset in [true, false] {
        ask(&memory, name, &limit, Ask::Charge(3), NOW).unwrap();
        // So that it is one counter among many.
        (0..40).for_each(|other| assert!(charge(&memory, number(other), &limit, NOW)));
        let mut copy = memory.whole(slot).contents;
        if reset {
            memory.replace(name, &limit, NOW, 0);
        } else {
            ask(&memory, name, &limit, Ask::Refund(3), NOW).unwrap();
        }
        copy.merge(sent(&memory.changes(slot).contents, NOW, NOW));
        assert_eq!(copy.without_idle(NOW), memory.whole(slot).contents.without_idle(NOW));
    }
}

#[test]
fn a_copy_forgets_what_was_absorbed() {
    let (memory, limit, name) = (sharing(0..SLOTS), window(20), key("one"));
    let slot = memory.slot(name);
    ask(&memory, name, &limit, Ask::Charge(3), NOW).unwrap();
    let mut copy = memory.whole(slot).contents;
    assert!(memory.add(slot, copy.difference(&Contents::default()), NOW));
    copy.merge(memory.changes(slot).contents);
    assert_eq!(copy.waiting(), 1);
    ask(&memory, name, &limit, Ask::Charge(1), NOW).unwrap();
    copy.merge(memory.changes(slot).contents);
    assert_eq!(copy, memory.whole(slot).contents);
    assert_eq!(copy.waiting(), 0);
}

#[test]
fn consumption_that_waits_is_forgotten_when_it_weighs_nothing_any_more() {
    let (memory, limit, name) = (sharing(0..SLOTS), window(20), key("one"));
    let slot = memory.slot(name);
    ask(&memory, name, &limit, Ask::Charge(3), NOW).unwrap();
    let consumed = memory.whole(slot).contents.difference(&Contents::default());
    assert!(memory.add(slot, consumed, NOW));
    let sweep = |now: Timestamp| (0..4).for_each(|part| memory.sweep_part(part, now));
    sweep(NOW);
    assert!(0 < memory.figures().backup_bytes);
    sweep(NOW.plus(3_600 * SECOND));
    assert_eq!((memory.figures().bytes, memory.figures().backup_bytes), (0, 0));
}

#[test]
fn consumption_is_added_where_it_is_held_and_nowhere_else() {
    let (memory, limit) = (sharing([]), window(20));
    let mut consumed = limit.fresh();
    limit.decide(&mut consumed, NOW, Ask::Charge(5));
    let consumed = Contents::used(key("one"), &limit, consumed, NOW).difference(&Contents::default());
    let slot = memory.slot(key("one"));
    assert!(!memory.add(slot, consumed.clone(), NOW));
    memory.hold(slot, Contents::default(), NOW);
    assert!(memory.add(slot, consumed, NOW));
    assert_eq!(left(&memory, key("one"), &limit), 15);
}

fn any_ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        6 => (1..9_u64).prop_map(Ask::Charge),
        1 => any::<u64>().prop_map(Ask::Charge),
        1 => (1..9_u64).prop_map(Ask::Refund),
    ]
}

proptest! {
    #[test]
    fn a_counter_that_changes_hands_answers_as_one_that_stays(
        index in 0..15_u64,
        asks in prop::collection::vec((prop_oneof![Just(0), 0..SECOND, 0..4 * SECOND], any_ask()), 1..40),
    ) {
        let (limit, name, mut now) = (second_of(index), key("one"), NOW);
        let (mut here, mut there) = (sharing(0..SLOTS), sharing([]));
        let slot = here.slot(name);
        let mut counter = limit.fresh();
        for (pause, next) in asks {
            now = now.plus(pause);
            let (told, expected) = (ask(&here, name, &limit, next, now).unwrap(), limit.decide(&mut counter, now, next));
            prop_assert_eq!((told.verdict, told.remaining), (expected.verdict, expected.remaining));
            let (contents, _) = here.give(slot).unwrap();
            let arrived = sent(&contents, now, now);
            prop_assert_eq!(&arrived, &contents.without_idle(now));
            there.hold(slot, arrived, now);
            std::mem::swap(&mut here, &mut there);
        }
    }

    #[test]
    fn ages_are_the_same_by_another_clock(
        index in 8..15_u64, hits in 1..5_u64, pause in 0..2 * SECOND, behind: bool, offset in 0..1_000 * SECOND,
    ) {
        let (limit, here, there) = (second_of(index), sharing(0..SLOTS), sharing([]));
        let slot = here.slot(key("one"));
        ask(&here, key("one"), &limit, Ask::Charge(hits), NOW).unwrap();
        let then = NOW.plus(pause);
        let by_the_other = if behind { then.minus(offset) } else { then.plus(offset) };
        there.hold(slot, sent(&here.whole(slot).contents, then, by_the_other), by_the_other);
        let expected = ask(&here, key("one"), &limit, Ask::Look, then).unwrap();
        let told = ask(&there, key("one"), &limit, Ask::Look, by_the_other).unwrap();
        prop_assert_eq!((told.verdict, told.remaining), (expected.verdict, expected.remaining));
    }

    #[test]
    fn a_copy_that_takes_in_all_changes_is_the_whole(
        steps in prop::collection::vec((0..12_u64, any_ask(), 0..SECOND / 2, prop::bool::weighted(0.3)), 1..80),
    ) {
        let memory = Memory::new(BYTES, OnFull::Deny).with_slots(2).shared();
        memory.hold(Slot(0), Contents::default(), NOW);
        memory.hold(Slot(1), Contents::default(), NOW);
        memory.track_changes();
        let (mut copy, mut now) = (Contents::default(), NOW);
        for (index, next, pause, told) in steps {
            now = now.plus(pause);
            ask(&memory, number(index), &second_of(index), next, now).unwrap();
            if told {
                let changes = memory.changes(Slot(0));
                prop_assert_eq!(changes.seq, memory.version_seq(Slot(0)));
                copy.merge(sent(&changes.contents, now, now));
            }
        }
        copy.merge(memory.changes(Slot(0)).contents);
        prop_assert_eq!(copy.without_idle(now), memory.whole(Slot(0)).contents.without_idle(now));
    }

    #[test]
    fn contents_that_are_damaged_on_the_way_never_panic(
        asks in prop::collection::vec((0..15_u64, 1..9_u64), 1..30),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        later in prop_oneof![0..SECOND, any::<u64>()],
    ) {
        let memory = sharing(0..SLOTS);
        for (index, hits) in &asks {
            ask(&memory, number(*index), &second_of(*index), Ask::Charge(*hits), NOW).unwrap();
        }
        let slot = memory.slot(number(asks[0].0));
        let (contents, _) = memory.give(slot).unwrap();
        let mut bytes = contents.encode(NOW);
        for (place, flip) in flips {
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
        }
        match Contents::decode(&bytes, NOW) {
            Ok(damaged) => {
                let now = Timestamp::from_nanos(later);
                drop(damaged.encode(now));
                memory.hold(slot, damaged, now);
                for (index, limit) in (0..15).map(|index| (index, second_of(index))) {
                    for next in [Ask::Charge(3), Ask::Look, Ask::Refund(1)] {
                        prop_assert!(ask(&memory, number(index), &limit, next, now).is_ok());
                    }
                }
            }
            Err(Unreadable::Foreign | Unreadable::Malformed) => {}
        }
    }
}
