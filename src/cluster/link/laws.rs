//! What sessions keep to, whatever happens to connections.

use std::collections::VecDeque;

use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use prost::bytes::Bytes;

use crate::cluster::{
    MemberId,
    link::{
        pact::{Claim, Meeting, Pact, replaces},
        session::{Bounds, Broken, Piece, Session},
    },
};

const BOUNDS: Bounds = Bounds { piece: 100, kept: 1_000, batch: 10_000 };

/// What a side writes.
#[derive(Clone, Debug)]
enum Frame {
    Hello { claim: Claim, received: u64, insists: bool },
    Refusal,
    Piece(Piece),
    Beat(u64),
}

/// A connection: what is under way to side 0 and to side 1.
struct Wire {
    dialler: usize,
    is_open: bool,
    under_way: [VecDeque<Frame>; 2],
}

/// One process, as far as the other goes.
struct Side {
    sessions: u64,
    pact: Pact,
    session: Session,
    present: Option<usize>,
    insists: bool,
    sent: Vec<Bytes>,
    received: Vec<Bytes>,
    lost: u32,
}

/// Two processes and all the connections that were ever between them.
struct World {
    sides: [Side; 2],
    wires: Vec<Wire>,
    batches: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize),
    Write(usize),
    Deliver(usize, usize),
    Beat(usize),
    Dial(usize),
    Cut(usize),
    Forget(usize),
}

impl Side {
    fn new() -> Self {
        Self {
            sessions: 1,
            pact: Pact::new(1),
            session: Session::within(BOUNDS),
            present: None,
            insists: false,
            sent: Vec::new(),
            received: Vec::new(),
            lost: 0,
        }
    }

    fn forget(&mut self) {
        self.sessions += 1;
        self.pact = Pact::new(self.sessions);
        self.session = Session::within(BOUNDS);
        self.present = None;
        self.lost += 1;
        self.sent.clear();
        self.received.clear();
    }

    fn hello(&self, insists: bool) -> Frame {
        Frame::Hello { claim: self.pact.claim(), received: self.session.received(), insists }
    }
}

impl World {
    fn new() -> Self {
        Self { sides: [Side::new(), Side::new()], wires: Vec::new(), batches: 0 }
    }

    fn step(&mut self, step: Step) -> Result<(), Broken> {
        match step {
            Step::Send(side, length) => {
                if self.sides[side].session.room() != 0 && self.sides[side].pact.has_begun() {
                    self.batches += 1;
                    let mut batch = self.batches.to_le_bytes().to_vec();
                    batch.resize(length.max(4), 0);
                    let batch = Bytes::from(batch);
                    self.sides[side].sent.push(batch.clone());
                    self.sides[side].session.push(batch)?;
                }
            }
            Step::Write(side) => {
                if let Some(wire) = self.sides[side].present
                    && let Some(handed) = self.sides[side].session.hand()
                {
                    self.wires[wire].under_way[1 - side].push_back(Frame::Piece(handed.piece));
                }
            }
            Step::Beat(side) => {
                if let Some(wire) = self.sides[side].present {
                    let received = self.sides[side].session.tell_received();
                    self.wires[wire].under_way[1 - side].push_back(Frame::Beat(received));
                }
            }
            Step::Dial(side) => {
                if self.sides[side].present.is_none() {
                    let insists = self.sides[side].insists;
                    let mut wire = Wire { dialler: side, is_open: true, under_way: Default::default() };
                    wire.under_way[1 - side].push_back(self.sides[side].hello(insists));
                    self.wires.push(wire);
                }
            }
            Step::Cut(wire) => {
                if !self.wires.is_empty() {
                    let wire = wire % self.wires.len();
                    self.close(wire);
                }
            }
            Step::Forget(side) => {
                if let Some(wire) = self.sides[side].present {
                    self.sides[side].present = None;
                    self.close(wire);
                }
                self.sides[side].forget();
            }
            Step::Deliver(side, wire) => {
                if !self.wires.is_empty() {
                    let wire = wire % self.wires.len();
                    if let Some(frame) = self.wires[wire].under_way[side].pop_front() {
                        self.take(side, wire, frame)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, wire: usize) {
        self.wires[wire].is_open = false;
        self.wires[wire].under_way = Default::default();
        for side in &mut self.sides {
            if side.present == Some(wire) {
                side.present = None;
            }
        }
    }

    fn take(&mut self, side: usize, wire: usize, frame: Frame) -> Result<(), Broken> {
        let is_present = self.sides[side].present == Some(wire);
        match frame {
            Frame::Hello { claim, received, insists } => self.meet(side, wire, claim, received, insists)?,
            Frame::Refusal => {
                self.sides[side].insists = self.sides[side].present.is_none();
                self.close(wire);
            }
            Frame::Piece(piece) if is_present => {
                let batch = self.sides[side].session.receive(piece)?;
                self.sides[side].received.extend(batch);
            }
            Frame::Beat(received) if is_present => self.sides[side].session.acknowledge(received)?,
            Frame::Piece(_) | Frame::Beat(_) => {}
        }
        Ok(())
    }

    fn meet(
        &mut self,
        side: usize,
        wire: usize,
        claim: Claim,
        received: u64,
        insists: bool,
    ) -> Result<(), Broken> {
        let accepts = self.wires[wire].dialler != side;
        match self.sides[side].pact.meet(claim) {
            Meeting::Stale => {
                self.close(wire);
                return Ok(());
            }
            Meeting::TheyAreBehind => {
                if accepts {
                    let hello = self.sides[side].hello(false);
                    self.wires[wire].under_way[1 - side].push_back(hello);
                } else {
                    self.close(wire);
                }
                return Ok(());
            }
            Meeting::WeAreBehind => {
                if let Some(present) = self.sides[side].present {
                    self.close(present);
                }
                self.sides[side].forget();
                if accepts {
                    return self.meet(side, wire, claim, received, insists);
                }
                self.close(wire);
                return Ok(());
            }
            Meeting::Begins => {}
            Meeting::GoesOn => {
                let id = |side: usize| MemberId::from_number(side as u64);
                let dialler = |wire: usize| id(self.wires[wire].dialler);
                let stays = |present| !replaces(dialler(present), dialler(wire), id(0), insists);
                if self.sides[side].present.is_some_and(stays) {
                    if accepts {
                        self.wires[wire].under_way[1 - side].push_back(Frame::Refusal);
                    } else {
                        self.close(wire);
                    }
                    return Ok(());
                }
            }
        }
        self.sides[side].session.resume(received)?;
        if accepts {
            let hello = self.sides[side].hello(false);
            self.wires[wire].under_way[1 - side].push_back(hello);
        }
        self.sides[side].insists = false;
        if let Some(former) = self.sides[side].present.replace(wire) {
            self.close(former);
        }
        Ok(())
    }

    /// Ends all that was and lets both sides come to rest over new connections.
    fn settle(&mut self) -> Result<(), Broken> {
        for wire in 0..self.wires.len() {
            self.close(wire);
        }
        for _ in 0..60 {
            for side in [0, 1] {
                // Nobody dials again while an attempt is under way.
                if !self.wires.iter().any(|wire| wire.is_open && wire.dialler == side) {
                    self.step(Step::Dial(side))?;
                }
                self.step(Step::Write(side))?;
                self.step(Step::Beat(side))?;
                for wire in 0..self.wires.len() {
                    while !self.wires[wire].under_way[side].is_empty() {
                        self.step(Step::Deliver(side, wire))?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let side = || 0..2_usize;
    prop_oneof![
        3 => (side(), prop_oneof![Just(4_usize), 4..450_usize]).prop_map(|(side, length)| Step::Send(side, length)),
        4 => side().prop_map(Step::Write),
        8 => (side(), prop::num::usize::ANY).prop_map(|(side, wire)| Step::Deliver(side, wire)),
        1 => side().prop_map(Step::Beat),
        2 => side().prop_map(Step::Dial),
        1 => prop::num::usize::ANY.prop_map(Step::Cut),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_to_connections_each_batch_arrives_once_and_in_order(
        steps in prop::collection::vec(any_step(), 0..300),
    ) {
        let mut world = World::new();
        world.settle().unwrap();
        for step in steps {
            world.step(step).unwrap();
            for (from, to) in [(0, 1), (1, 0)] {
                let (sent, received) = (&world.sides[from].sent, &world.sides[to].received);
                prop_assert!(sent.starts_with(received), "nothing is lost between what has come");
            }
        }
        world.settle().unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            prop_assert_eq!(&world.sides[from].sent, &world.sides[to].received);
        }
        prop_assert_eq!((world.sides[0].lost, world.sides[1].lost), (0, 0), "and no session was lost for it");
    }

    #[test]
    fn whoever_forgets_whenever_both_come_to_a_new_session_that_carries_all(
        steps in prop::collection::vec(
            prop_oneof![12 => any_step(), 1 => (0..2_usize).prop_map(Step::Forget)],
            0..300,
        ),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step).unwrap();
        }
        world.settle().unwrap();
        for side in [0, 1] {
            prop_assert!(world.sides[side].present.is_some(), "linked again");
        }
        let before = world.sides.each_ref().map(|side| (side.sent.len(), side.lost));
        for side in [0, 1] {
            world.step(Step::Send(side, 250)).unwrap();
        }
        world.settle().unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            prop_assert_eq!(world.sides[from].sent.len(), before[from].0 + 1);
            prop_assert_eq!(&world.sides[from].sent, &world.sides[to].received);
            prop_assert_eq!(world.sides[from].lost, before[from].1);
        }
    }
}

#[test]
fn while_too_much_is_on_its_way_nothing_more_is_taken() {
    let mut session = Session::within(BOUNDS);
    session.push(Bytes::from(vec![0; 999])).unwrap();
    assert_eq!(session.room(), 1);
    session.push(Bytes::from(vec![0; 999])).unwrap();
    assert_eq!(session.room(), 0);
    while session.hand().is_some() {}
    session.acknowledge(10).unwrap();
    assert_eq!(session.room(), 1);
}

#[test]
fn a_side_that_lies_breaks_the_session_and_nothing_else() {
    let mut session = Session::within(BOUNDS);
    session.push(Bytes::from_static(b"a")).unwrap();
    assert_eq!(session.acknowledge(1), Err(Broken::Acknowledgement), "it was not sent yet");
    let piece =
        |number, goes_on, length| Piece { number, received: 0, goes_on, payload: vec![0; length].into() };
    assert_eq!(session.receive(piece(2, false, 1)), Err(Broken::Gap));
    for number in 1..=100 {
        assert_eq!(session.receive(piece(number, true, 100)), Ok(None));
    }
    assert_eq!(
        session.receive(piece(101, true, 100)),
        Err(Broken::TooLarge),
        "however many pieces it comes in"
    );
    assert_eq!(session.push(Bytes::from(vec![0; 10_001])), Err(Broken::TooLarge));
}
