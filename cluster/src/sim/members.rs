//! What a cluster costs and how soon its replicas agree, by the number of members. There are no calls and no counters.
//!
//! `SIMULATION_MEMBERS=3,8,16` in the environment plays other sizes; `tests/simulate --members` prints the table.

use std::{env, time::Duration};

use tollgate_counter::time::SECOND;
use tollgate_store::SLOTS;

use crate::{
    link::ticks::interval,
    replica::node_settings,
    sim::{
        Step::{self, Freeze, Kill, Pass, Settle, Start, Thaw},
        World,
        world::{MILLISECOND, Shape},
    },
    tuning::Tuning,
};

/// A cluster as it runs, in one network. A message takes up to 5 ms, because the world goes on by such steps.
const SHAPE: Shape = Shape {
    settings: node_settings(Tuning {
        backup_interval: Some(Duration::from_millis(100)),
        lease_from: Some(50),
        ..Tuning::FOR_TESTS
    }),
    slots: SLOTS,
    delay_max: MILLISECOND,
    regions: 1,
};
/// The sizes of the short form.
const SIZES: &str = "3,8";
const IDLE: Duration = Duration::from_secs(4);
/// A frame that carries a batch or a heartbeat: the header of a TLS record, the length, the kind and the numbers.
const FRAME_BYTES: f64 = 22.0 + 4.0 + 6.0;
/// The longest time until all replicas agree, in milliseconds.
const AGREE_MAX: f64 = 1_000.0;
/// The most that an idle replica may write, in Mbit/s.
const IDLE_MBIT_MAX: f64 = 1.0;

/// What a change has cost until all replicas agreed.
struct Cost {
    ms: f64,
    messages: f64,
    megabytes: f64,
}

/// A row of the table.
struct Row {
    members: usize,
    /// Frames a second of an idle replica, and what it writes.
    frames: f64,
    mbit: f64,
    join: Cost,
    ten: Cost,
    death: Cost,
}

/// Runs the change, and waits until all replicas agree.
fn cost_of(world: &mut World, change: Step) -> Cost {
    let before = world.totals.clone();
    let begin = world.now();
    world.run(&[change, Settle]);
    assert_eq!(world.unsettled(), None, "all replicas agree");
    Cost {
        ms: (world.now() - begin) as f64 / MILLISECOND as f64,
        messages: (world.totals.messages - before.messages) as f64,
        megabytes: (world.totals.bytes - before.bytes) as f64 / 1e6,
    }
}

fn row(members: usize) -> Row {
    let mut world = World::with_shape(SHAPE, members as u64);
    // The others have a member that serves as their seed.
    world.run(&[Start(1), Settle, Start(members - 1), Settle, Pass(IDLE)]);
    assert_eq!(world.serving().len(), members);
    let before = world.totals.clone();
    let begin = world.now();
    world.run(&[Pass(IDLE)]);
    let replica_seconds = (members as u64 * (world.now() - begin)) as f64 / SECOND as f64;
    let heartbeats = (members - 1) as f64 / interval(members - 1).as_secs_f64();
    let frames = (world.totals.batches - before.batches) as f64 / replica_seconds + heartbeats;
    let bytes = (world.totals.bytes - before.bytes) as f64 / replica_seconds + frames * FRAME_BYTES;
    Row {
        members,
        frames,
        mbit: bytes * 8.0 / 1e6,
        join: cost_of(&mut world, Start(1)),
        death: cost_of(&mut world, Kill(1)),
        ten: cost_of(&mut world, Start(10)),
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "plays other sizes")]
fn replicas_agree_within_a_second_of_each_change() {
    println!(
        "| members | frames/s | Mbit/s | join (ms) | messages | MB | death (ms) | messages | MB | ten joins (ms) | messages | MB |"
    );
    println!("|{}", "---:|".repeat(12));
    let sizes = env::var("SIMULATION_MEMBERS").unwrap_or_else(|_| SIZES.to_owned());
    for size in sizes.split(',') {
        let Row { members, frames, mbit, join, death, ten } = row(size.parse().expect("a number of members"));
        let changes = [&join, &death, &ten]
            .map(|Cost { ms, messages, megabytes }| format!("{ms:.0} | {messages:.0} | {megabytes:.2}"));
        println!("| {members} | {frames:.0} | {mbit:.3} | {} |", changes.join(" | "));
        assert!(mbit <= IDLE_MBIT_MAX, "{members} members: {mbit} Mbit/s");
        for Cost { ms, .. } in [join, death, ten] {
            assert!(ms <= AGREE_MAX, "{members} members: {ms} ms");
        }
    }
}

/// A machine that is too busy for its members: each is silent for longer than the time after which silence leaves it out,
/// one after the other. `members_silent_by_turns_change_the_placement_seldom` bounds what that moves.
#[test]
fn dead_member_is_replaced_soon_after_others_were_silent_by_turns() {
    // Each is silent at least three times. 8 members and 40 rounds take some seven times as long, and 70 members are silent by
    // turns for ten minutes in the test named above.
    const MEMBERS: usize = 5;
    const ROUNDS: usize = 16;
    let mut world = World::with_shape(SHAPE, 1);
    world.run(&[Start(1), Settle, Start(MEMBERS - 1), Settle, Pass(IDLE)]);
    for round in 0..ROUNDS {
        world.run(&[Freeze(round % MEMBERS), Pass(Duration::from_millis(1_400)), Thaw]);
        world.run(&[Pass(Duration::from_millis(200))]);
    }
    world.run(&[Kill(1), Pass(Duration::from_millis(AGREE_MAX as u64))]);
    let without_owner = world.keys.iter().filter(|key| world.owner(key.key).is_none()).count();
    assert_eq!(without_owner, 0, "keys of the dead member have no owner");
    world.run(&[Settle]);
    assert_eq!(world.unsettled(), None, "all replicas agree");
}
