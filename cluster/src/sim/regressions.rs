//! Scripts that have broken a promise, reduced, so that they mean the same when the random scripts change.

use std::time::Duration;

use crate::sim::{
    Step::{
        self, Cut, CutOneWay, Delay, Drain, Freeze, Heal, Hold, Hot, Kill, Mixed, Own, Pass, Resume, Rules,
        Settle, Start, Store, Stranger, Thaw, Traffic,
    },
    record::Faults,
    scripts::play,
};

const fn millis(millis: u64) -> Step {
    Pass(Duration::from_millis(millis))
}

/// Plays the script with these seeds, and asserts that every promise holds.
fn holds(seeds: std::ops::Range<u64>, script: &[Step], faults: Faults) {
    for seed in seeds {
        if let Err(problem) = play(seed, script, faults) {
            panic!("seed {seed}: {problem}");
        }
    }
}

#[test]
fn replica_killed_in_full_stop_leaves_its_counters_to_copies() {
    let begin = [Settle, Traffic(300), millis(400), Store, millis(300), Traffic(0), millis(600)];
    let two = [&[Start(2)], &begin[..], &[Kill(0), millis(15), Drain(1), millis(5_000), Resume(2), Settle]];
    let three = [
        &[Start(3)],
        &begin[..],
        &[Kill(2), Drain(1), millis(20), Drain(0), millis(5_000), Resume(1), millis(300), Resume(2), Settle],
    ];
    holds(0..10, &two.concat(), Faults::Crashes);
    holds(0..10, &three.concat(), Faults::Crashes);
}

#[test]
fn late_take_back_frees_only_the_last_place_of_a_queue() {
    let script = [Start(3), Settle, Mixed(150), millis(300), Delay(300), millis(1_300), Delay(20), Settle];
    holds(0..20, &script, Faults::Late);
}

#[test]
fn joiner_waits_for_hello_of_a_peer_before_it_bootstraps() {
    // Longer than the time after which a replica bootstraps; the id of the last replica is the smallest.
    let script = [Start(3), Settle, Traffic(60), millis(400), Start(1), Freeze(3), millis(450), Thaw, Settle];
    holds(0..10, &script, Faults::Late);
}

#[test]
fn death_behind_a_cut_is_known_after_it() {
    // Shorter and longer than the time after which a silent member has departed.
    for cut_for in [3_000, 12_000] {
        let cut = [Start(5), Settle, Traffic(60), millis(500), Cut(vec![0]), millis(1_500)];
        let leave = [Drain(1), Drain(2), Drain(3), millis(cut_for), Heal, millis(500)];
        let script = [&cut[..], &leave].concat();
        holds(0..5, &script, Faults::Partition { minority: 1, members: 5 });
    }
}

#[test]
fn one_way_cut_leaves_one_majority() {
    let begin = [Start(4), Settle, Mixed(151), millis(248), Drain(3), millis(110), Drain(0), millis(250)];
    let cut = [Delay(23), millis(129), Settle, CutOneWay(vec![2]), millis(13_646), Heal, millis(539)];
    holds(259..260, &[&begin[..], &cut].concat(), Faults::Partition { minority: 1, members: 2 });
}

#[test]
fn copy_of_a_recovery_is_dropped_when_the_slot_has_an_owner() {
    let begin = [Start(2), Settle, Traffic(60), millis(500), Start(1), millis(156), Settle];
    let cut = [CutOneWay(vec![0]), millis(1_123), Drain(2), millis(13_167), Heal, millis(254)];
    let script = [&begin[..], &cut].concat();
    holds(0..10, &script, Faults::Partition { minority: 1, members: 2 });
}

#[test]
fn majority_ends_with_the_member_that_leaves_during_a_cut() {
    let begin = [Start(2), Settle, Mixed(124), Hold(30), Own(60), millis(138), Start(1), millis(171)];
    let leave = [Delay(25), millis(86), Drain(0), millis(197), millis(341), Rules(3), millis(237), Settle];
    let cut = [Cut(vec![2]), millis(12_541), Heal, millis(143)];
    holds(1_341..1_342, &[&begin[..], &leave, &cut].concat(), Faults::Partition { minority: 1, members: 2 });
}

#[test]
fn reservation_is_later_by_the_time_that_its_copies_were_under_way() {
    let begin = [Start(2), Settle, Mixed(137), Hold(30), millis(370), Start(1), millis(212)];
    let delay = [Delay(354), millis(1_390), Delay(20), Settle, millis(154), Start(1), millis(254)];
    let freeze = [Freeze(0), millis(286), Thaw, millis(375), Drain(1), millis(102), Freeze(0), millis(814)];
    let leave = [Thaw, millis(404), Drain(0), millis(395), Delay(72), millis(1_114), Delay(20), Settle];
    holds(1_566..1_567, &[&begin[..], &delay, &freeze, &leave].concat(), Faults::Late);
}

#[test]
fn refund_is_lost_in_an_older_snapshot_that_starts_first() {
    let begin = [Start(3), Settle, Mixed(72), Stranger, millis(210), millis(299), Delay(16), millis(299)];
    let leave = [Rules(1), millis(397), Drain(1), millis(19), millis(143), Settle, millis(1_200), Store];
    let stop = [millis(492), Traffic(0), millis(600), Kill(2), millis(57), Drain(0), millis(90)];
    let start = [millis(5_000), Resume(1), millis(533), Resume(1), Settle];
    holds(1_108..1_109, &[&begin[..], &leave, &stop, &start].concat(), Faults::Crashes);
}

#[test]
fn lease_in_a_late_reply_is_returned_to_its_owner() {
    let in_time = [Delay(20), Settle];
    let one_key = [Start(2), Settle, Hot(300), millis(10), Delay(400), millis(30), Traffic(0), millis(1_000)];
    let mixed = [Start(2), Settle, Mixed(500), millis(60), Delay(300), millis(400)];
    holds(0..10, &[&one_key[..], &in_time].concat(), Faults::Late);
    holds(0..10, &[&mixed[..], &in_time].concat(), Faults::Late);
}

#[test]
fn reservations_in_snapshots_of_different_ages_end_once() {
    let stop = [Settle, millis(1_200), Store, millis(130), Traffic(0), millis(600)];
    let late_death = [
        &[Start(2), Settle, Mixed(81), Hold(30), Hot(1_069), millis(462), Delay(24), millis(69)][..],
        &stop,
        &[Kill(1), millis(8), Drain(0), millis(0), millis(5_000), Resume(1), millis(474), Resume(1), Settle],
    ];
    holds(30..31, &late_death.concat(), Faults::Crashes);
    let first_death = [
        &[Start(2), Settle, Traffic(112), Hold(30), millis(522), Delay(8), millis(108), Settle][..],
        &[millis(1_200), Store, millis(548), Traffic(0), millis(600)],
        &[Kill(0), millis(34), Drain(1), millis(40), millis(5_000)],
        &[Resume(1), millis(1_480), Resume(1), Settle],
    ];
    holds(384..385, &first_death.concat(), Faults::Crashes);
    let planned = [
        &[Start(2), Settle, Traffic(54), Hold(30), Hot(2_066), millis(298), millis(74), Start(1)][..],
        &[millis(275), Start(1), millis(387), Settle, millis(1_200), Store, millis(172), Traffic(0)],
        &[millis(600), Drain(0), millis(37), Drain(3), millis(33), Drain(1), millis(16), Drain(2)],
        &[millis(94), millis(5_000), Resume(1), millis(673), Resume(3), Settle],
    ];
    holds(99..100, &planned.concat(), Faults::None);
}
