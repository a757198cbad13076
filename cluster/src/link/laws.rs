//! Laws of sessions under any sequence of connection failures.

use std::collections::VecDeque;

use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use tokio_util::bytes::Bytes;

use crate::{
    link::{
        assembly::AssemblyBudget,
        frame::{LinkFrame, LinkHello, Piece, RefusalReason},
        session::{HelloOutcome, LinkRole, Session, SessionBounds, SessionError},
    },
    member::MemberId,
};

const BOUNDS: SessionBounds = SessionBounds { piece: 100, unacknowledged: 1_000, batch: 10_000 };
/// The memory for incomplete batches, of both endpoints: less than one batch takes.
const ASSEMBLY_BYTES: usize = 350;

/// A connection, with the frames in flight to endpoint 0 and to endpoint 1.
struct Connection {
    dialler: usize,
    is_open: bool,
    in_flight: [VecDeque<LinkFrame>; 2],
}

/// The state of one process towards the other.
struct Endpoint {
    id: usize,
    sessions: u64,
    session: Session,
    assembly: AssemblyBudget,
    active: Option<usize>,
    sent: Vec<Bytes>,
    received: Vec<Bytes>,
    lost: u32,
}

/// Two processes and all connections ever opened between them.
struct World {
    endpoints: [Endpoint; 2],
    connections: Vec<Connection>,
    batches: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize),
    Write(usize),
    Deliver(usize, usize),
    Heartbeat(usize),
    Dial(usize),
    Cut(usize),
    Forget(usize),
}

impl Endpoint {
    fn new(id: usize, assembly: AssemblyBudget) -> Self {
        Self {
            id,
            sessions: 1,
            session: session(id, 1, &assembly),
            assembly,
            active: None,
            sent: Vec::new(),
            received: Vec::new(),
            lost: 0,
        }
    }

    fn forget(&mut self) {
        self.sessions += 1;
        self.session = session(self.id, self.sessions, &self.assembly);
        self.active = None;
        self.lost += 1;
        self.sent.clear();
        self.received.clear();
    }

    fn hello(&self) -> LinkFrame {
        LinkFrame::Hello(self.session.hello(member(self.id), String::new()))
    }
}

fn member(endpoint: usize) -> MemberId {
    MemberId::from_number(endpoint as u64 + 1)
}

/// A session of this endpoint. Endpoint 0 has the smaller id.
fn session(endpoint: usize, number: u64, assembly: &AssemblyBudget) -> Session {
    let preferred = if endpoint == 0 { LinkRole::Dialler } else { LinkRole::Acceptor };
    let mut session = Session::new(number, preferred, assembly.clone());
    session.bounds = BOUNDS;
    session
}

impl World {
    fn new() -> Self {
        let assembly = AssemblyBudget::new(ASSEMBLY_BYTES);
        let endpoints = [0, 1].map(|id| Endpoint::new(id, assembly.clone()));
        Self { endpoints, connections: Vec::new(), batches: 0 }
    }

    fn step(&mut self, step: Step) -> Result<(), SessionError> {
        match step {
            Step::Send(endpoint, length) => {
                if self.endpoints[endpoint].session.capacity() != 0
                    && self.endpoints[endpoint].session.is_established()
                {
                    self.batches += 1;
                    let mut batch = self.batches.to_le_bytes().to_vec();
                    batch.resize(length.max(4), 0);
                    let batch = Bytes::from(batch);
                    self.endpoints[endpoint].sent.push(batch.clone());
                    self.endpoints[endpoint].session.push(batch);
                }
            }
            Step::Write(endpoint) => {
                if let Some(connection) = self.endpoints[endpoint].active
                    && let Some(piece) = self.endpoints[endpoint].session.next_piece()
                {
                    self.connections[connection].in_flight[1 - endpoint].push_back(LinkFrame::Piece(piece));
                }
            }
            Step::Heartbeat(endpoint) => {
                if let Some(connection) = self.endpoints[endpoint].active {
                    let received = self.endpoints[endpoint].session.report_received();
                    self.connections[connection].in_flight[1 - endpoint]
                        .push_back(LinkFrame::Heartbeat(received));
                }
            }
            Step::Dial(endpoint) => {
                if self.endpoints[endpoint].active.is_none() {
                    let mut connection =
                        Connection { dialler: endpoint, is_open: true, in_flight: Default::default() };
                    connection.in_flight[1 - endpoint].push_back(self.endpoints[endpoint].hello());
                    self.connections.push(connection);
                }
            }
            Step::Cut(connection) => {
                if !self.connections.is_empty() {
                    let connection = connection % self.connections.len();
                    self.close(connection);
                }
            }
            Step::Forget(endpoint) => {
                if let Some(connection) = self.endpoints[endpoint].active {
                    self.endpoints[endpoint].active = None;
                    self.close(connection);
                }
                self.endpoints[endpoint].forget();
            }
            Step::Deliver(endpoint, connection) => {
                if !self.connections.is_empty() {
                    let connection = connection % self.connections.len();
                    self.deliver(endpoint, connection)?;
                }
            }
        }
        Ok(())
    }

    /// Delivers the next frame, unless there is none or no room for it.
    fn deliver(&mut self, endpoint: usize, connection: usize) -> Result<bool, SessionError> {
        let Some(frame) = self.connections[connection].in_flight[endpoint].pop_front() else {
            return Ok(false);
        };
        let Endpoint { active, session, .. } = &mut self.endpoints[endpoint];
        if *active == Some(connection)
            && let LinkFrame::Piece(piece) = &frame
            && !session.take_room(piece)
        {
            self.connections[connection].in_flight[endpoint].push_front(frame);
            return Ok(false);
        }
        self.handle_frame(endpoint, connection, frame)?;
        Ok(true)
    }

    fn close(&mut self, connection: usize) {
        self.connections[connection].is_open = false;
        self.connections[connection].in_flight = Default::default();
        for endpoint in &mut self.endpoints {
            if endpoint.active == Some(connection) {
                endpoint.active = None;
            }
        }
    }

    fn handle_frame(
        &mut self,
        endpoint: usize,
        connection: usize,
        frame: LinkFrame,
    ) -> Result<(), SessionError> {
        let is_active = self.endpoints[endpoint].active == Some(connection);
        match frame {
            LinkFrame::Hello(hello) => self.handle_hello(endpoint, connection, &hello)?,
            LinkFrame::Refusal(_) => {
                let Endpoint { active, session, .. } = &mut self.endpoints[endpoint];
                if active.is_none() {
                    session.replace_link();
                }
                self.close(connection);
            }
            LinkFrame::Piece(piece) if is_active => {
                let batch = self.endpoints[endpoint].session.receive(piece)?;
                self.endpoints[endpoint].received.extend(batch);
            }
            LinkFrame::Heartbeat(received) if is_active => {
                self.endpoints[endpoint].session.acknowledge(received)?
            }
            LinkFrame::Piece(_) | LinkFrame::Heartbeat(_) | LinkFrame::Greeting(_) | LinkFrame::Goodbye => {}
        }
        Ok(())
    }

    fn role(&self, endpoint: usize, connection: usize) -> LinkRole {
        let dials = self.connections[connection].dialler == endpoint;
        if dials { LinkRole::Dialler } else { LinkRole::Acceptor }
    }

    fn handle_hello(
        &mut self,
        endpoint: usize,
        connection: usize,
        hello: &LinkHello,
    ) -> Result<(), SessionError> {
        let role = self.role(endpoint, connection);
        let active = self.endpoints[endpoint].active.map(|active| self.role(endpoint, active));
        let answer = match self.endpoints[endpoint].session.judge(hello, role, active) {
            HelloOutcome::Begin | HelloOutcome::Resume => {
                self.endpoints[endpoint].session.connect(hello);
                if let Some(previous) = self.endpoints[endpoint].active.replace(connection) {
                    self.close(previous);
                }
                (role == LinkRole::Acceptor).then(|| self.endpoints[endpoint].hello())
            }
            HelloOutcome::Refused(reason @ RefusalReason::Linked) if role == LinkRole::Acceptor => {
                Some(LinkFrame::Refusal(reason))
            }
            HelloOutcome::RemoteLost if role == LinkRole::Acceptor => Some(self.endpoints[endpoint].hello()),
            HelloOutcome::Refused(_) | HelloOutcome::RemoteLost => {
                self.close(connection);
                None
            }
            HelloOutcome::LocalLost => {
                if let Some(active) = self.endpoints[endpoint].active {
                    self.close(active);
                }
                self.endpoints[endpoint].forget();
                if role == LinkRole::Acceptor {
                    return self.handle_hello(endpoint, connection, hello);
                }
                self.close(connection);
                None
            }
            HelloOutcome::Invalid(error) => return Err(error),
        };
        self.connections[connection].in_flight[1 - endpoint].extend(answer);
        Ok(())
    }

    /// Closes all connections and lets both endpoints settle over new ones.
    fn settle(&mut self) -> Result<(), SessionError> {
        for connection in 0..self.connections.len() {
            self.close(connection);
        }
        // One endpoint after the other completes its batches.
        for _ in 0..120 {
            for endpoint in [0, 1] {
                // An endpoint has one dial in progress at a time.
                if !self
                    .connections
                    .iter()
                    .any(|connection| connection.is_open && connection.dialler == endpoint)
                {
                    self.step(Step::Dial(endpoint))?;
                }
                self.step(Step::Write(endpoint))?;
                self.step(Step::Heartbeat(endpoint))?;
                for connection in 0..self.connections.len() {
                    while self.deliver(endpoint, connection)? {}
                }
            }
        }
        Ok(())
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let endpoint = || 0..2_usize;
    prop_oneof![
        3 => (endpoint(), prop_oneof![Just(4_usize), 4..450_usize, Just(1_999_usize)]).prop_map(|(endpoint, length)| Step::Send(endpoint, length)),
        4 => endpoint().prop_map(Step::Write),
        8 => (endpoint(), prop::num::usize::ANY).prop_map(|(endpoint, connection)| Step::Deliver(endpoint, connection)),
        1 => endpoint().prop_map(Step::Heartbeat),
        2 => endpoint().prop_map(Step::Dial),
        1 => prop::num::usize::ANY.prop_map(Step::Cut),
    ]
}

proptest! {
    #[test]
    fn batches_arrive_once_and_in_order_over_failing_connections(
        steps in prop::collection::vec(any_step(), 0..300),
    ) {
        let mut world = World::new();
        world.settle().unwrap();
        for step in steps {
            world.step(step).unwrap();
            for (from, to) in [(0, 1), (1, 0)] {
                let (sent, received) = (&world.endpoints[from].sent, &world.endpoints[to].received);
                prop_assert!(sent.starts_with(received), "received batches are a prefix of the sent ones");
            }
        }
        world.settle().unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            prop_assert_eq!(&world.endpoints[from].sent, &world.endpoints[to].received);
        }
        prop_assert_eq!(world.endpoints[0].assembly.available(), ASSEMBLY_BYTES);
        prop_assert_eq!((world.endpoints[0].lost, world.endpoints[1].lost), (0, 0), "no session was lost");
    }

    #[test]
    fn forgotten_session_is_replaced_by_one_that_delivers_all(
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
        for endpoint in [0, 1] {
            prop_assert!(world.endpoints[endpoint].active.is_some(), "linked again");
        }
        let before = world.endpoints.each_ref().map(|endpoint| (endpoint.sent.len(), endpoint.lost));
        for endpoint in [0, 1] {
            world.step(Step::Send(endpoint, 250)).unwrap();
        }
        world.settle().unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            prop_assert_eq!(world.endpoints[from].sent.len(), before[from].0 + 1);
            prop_assert_eq!(&world.endpoints[from].sent, &world.endpoints[to].received);
            prop_assert_eq!(world.endpoints[from].lost, before[from].1);
        }
    }
}

#[test]
fn session_with_full_window_takes_no_batch() {
    let mut session = session(0, 1, &AssemblyBudget::default());
    session.push(Bytes::from(vec![0; 999]));
    assert_eq!(session.capacity(), 1);
    session.push(Bytes::from(vec![0; 999]));
    assert_eq!(session.capacity(), 0);
    while session.next_piece().is_some() {}
    session.acknowledge(10).unwrap();
    assert_eq!(session.capacity(), 1);
}

#[test]
fn protocol_violation_by_peer_is_session_error() {
    let mut session = session(0, 1, &AssemblyBudget::default());
    session.push(Bytes::from_static(b"a"));
    assert_eq!(session.acknowledge(1), Err(SessionError::Acknowledgement), "the piece was not sent yet");
    let piece =
        |number, has_more, length| Piece { number, received: 0, has_more, payload: vec![0; length].into() };
    assert_eq!(session.receive(piece(2, false, 1)), Err(SessionError::Gap));
    for number in 1..=100 {
        assert_eq!(session.receive(piece(number, true, 100)), Ok(None));
    }
    assert_eq!(
        session.receive(piece(101, true, 100)),
        Err(SessionError::TooLarge),
        "the maximum covers all pieces of a batch"
    );
}
