//! The fuzz target of the frames that a member sends.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, LazyLock, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{
    io::{AsyncWriteExt, duplex, split},
    runtime,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::{
    bytes::{Buf, Bytes, BytesMut},
    codec::{Decoder, FramedRead},
};
use tollgate_counter::{
    files::fuzz::temporary,
    lock::lock,
    time::{Clock, SECOND, Timestamp},
};

use crate::{
    link::{
        LinkHandler, LinkSettings,
        connection::run_accepted,
        frame::{FrameCodec, LENGTH_BYTES, LinkFrame, PIECE_BYTES_MAX, Piece, frame_stream},
        links::{COMMANDS_MAX, Links},
    },
    member::{Departure, MemberId},
    trust::{Credentials, Trust},
};

const LOCAL: MemberId = MemberId::from_number(2);
const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
/// An empty frame: the connection ends, and the member connects again.
const CONNECTION_END: [u8; LENGTH_BYTES] = [0; LENGTH_BYTES];
/// The batches that this replica sends: the second one is cut into pieces.
const BATCHES_BYTES: [usize; 3] = [10, 2 * PIECE_BYTES_MAX + 1, 100];
/// The time between two frames, in which this replica writes.
const PAUSE: Duration = Duration::from_millis(1);
/// Longer than a handshake takes that is not completed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The bytes on their way in each direction, fewer than a large piece has.
const IN_FLIGHT_BYTES: usize = 64 * 1024;

static SETTINGS: LazyLock<LinkSettings> = LazyLock::new(|| LinkSettings {
    listen: ([127, 0, 0, 1], 0).into(),
    advertise: None,
    seeds: Vec::new(),
    trust: Trust {
        files: None,
        secret_file: Some(temporary("link-secret", b"a secret of 24 letters..")),
        poll_interval: TIMEOUT,
    },
});

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

/// To derive them takes longer than to run a link.
static CREDENTIALS: LazyLock<Arc<Credentials>> = LazyLock::new(|| {
    let clock = Clock::manual(NOW);
    let loaded = runtime().block_on(Credentials::load(SETTINGS.trust.clone(), clock));
    Arc::new(loaded.expect("the secret is valid"))
});

/// The frames of a member on one connection after another: each connection ends. Pieces are sent in order, and
/// again until they are acknowledged; their content stays the same.
pub fn link(bytes: &[u8]) {
    LazyLock::force(&CREDENTIALS);
    runtime().block_on(run(bytes));
}

/// What both sides have sent.
#[derive(Debug, PartialEq, Eq)]
struct Sent {
    received_bytes: usize,
    /// In the last session.
    pieces: usize,
}

/// A runtime whose time passes when it is idle.
fn runtime() -> runtime::Runtime {
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("the machine has resources for a runtime")
}

async fn run(bytes: &[u8]) -> Sent {
    let (commands, _commands) = mpsc::channel(COMMANDS_MAX);
    let address = "local:1".to_owned();
    let clock = Clock::manual(NOW);
    let links = Links::new(LOCAL, address, SETTINGS.clone(), CREDENTIALS.clone(), clock, commands);
    let handler = Arc::new(Batches::default());
    let listening: Arc<dyn LinkHandler> = handler.clone();
    links.handler.set(Arc::downgrade(&listening)).expect("the links is new");
    let mut pieces = BTreeMap::new();
    let mut acknowledged = 0;
    for messages in connections(bytes) {
        let sessions = handler.state().sessions;
        let acknowledges = acknowledges(&messages);
        let written = serve(&links, messages).await;
        if handler.state().sessions != sessions {
            pieces.clear();
            acknowledged = 0;
        }
        acknowledged = acknowledges.max(acknowledged);
        check_written(&written, &mut pieces, acknowledged, bytes.len() as u64);
    }
    let received_bytes = handler.state().received_bytes;
    assert!(received_bytes <= bytes.len(), "{received_bytes} bytes were received");
    Sent { received_bytes, pieces: pieces.len() }
}

/// Runs the link of one connection, and returns the frames that it writes.
async fn serve(links: &Links, messages: Vec<Bytes>) -> Vec<LinkFrame> {
    let (local, member) = duplex(IN_FLIGHT_BYTES);
    let (reader, mut writer) = split(member);
    let sending = async {
        for message in messages {
            sleep(PAUSE).await;
            // The replica may have closed the connection.
            let _ = writer.write_all(&message).await;
        }
        sleep(PAUSE).await;
        let _ = writer.shutdown().await;
    };
    let written =
        FramedRead::new(reader, FrameCodec::default()).map(|frame| frame.expect("frames are valid"));
    let exchange = run_accepted(links, frame_stream(local), FROM);
    let ended = timeout(TIMEOUT, async { tokio::join!(sending, written.collect(), exchange) }).await;
    ended.expect("the connection ends").1
}

/// Checks the frames of one connection. `pieces` holds what earlier connections have sent. A piece that the member has
/// acknowledged before it was written is never written.
fn check_written(
    written: &[LinkFrame],
    pieces: &mut BTreeMap<u64, Bytes>,
    acknowledged: u64,
    received_max: u64,
) {
    let mut last = None;
    for frame in written {
        if let LinkFrame::Piece(Piece { number, payload, .. }) = frame {
            assert!(last.is_none_or(|last| *number == last + 1), "piece {number} follows {last:?}");
            last = Some(*number);
            assert_eq!(pieces.entry(*number).or_insert_with(|| payload.clone()), payload);
        }
        let received = received(frame);
        assert!(received <= received_max, "piece {received} was not sent");
    }
    let last = pieces.keys().next_back().copied().unwrap_or_default();
    let mut owed = acknowledged.saturating_add(1)..=last;
    assert!(owed.all(|number| pieces.contains_key(&number)), "a piece is missing");
}

/// The last piece that a frame acknowledges.
fn received(frame: &LinkFrame) -> u64 {
    match frame {
        LinkFrame::Piece(piece) => piece.received,
        LinkFrame::Hello(hello) => hello.received,
        LinkFrame::Heartbeat(received) => *received,
        LinkFrame::Greeting(_) | LinkFrame::Goodbye | LinkFrame::Refusal(_) => 0,
    }
}

/// The last piece that these messages acknowledge.
fn acknowledges(messages: &[Bytes]) -> u64 {
    let frame =
        |message: &Bytes| FrameCodec::default().decode(&mut BytesMut::from(&message[..])).ok().flatten();
    messages.iter().filter_map(frame).map(|frame| received(&frame)).max().unwrap_or_default()
}

/// The messages of each connection.
fn connections(bytes: &[u8]) -> Vec<Vec<Bytes>> {
    let messages = messages_of(Bytes::copy_from_slice(bytes));
    messages.split(|message| message == &CONNECTION_END[..]).map(<[Bytes]>::to_vec).collect()
}

/// Splits bytes into frames with their lengths; the last one may be incomplete.
fn messages_of(mut bytes: Bytes) -> Vec<Bytes> {
    let mut messages = Vec::new();
    while bytes.has_remaining() {
        let length = bytes
            .get(..LENGTH_BYTES)
            .map_or(bytes.len(), |mut length| LENGTH_BYTES.saturating_add(length.get_u32() as usize));
        messages.push(bytes.split_to(length.min(bytes.len())));
    }
    messages
}

/// Sends [`BATCHES_BYTES`] in each session, and counts what arrives.
#[derive(Default)]
struct Batches(Mutex<BatchesState>);

#[derive(Default)]
struct BatchesState {
    sessions: u64,
    unsent: VecDeque<usize>,
    received_bytes: usize,
}

impl Batches {
    fn state(&self) -> MutexGuard<'_, BatchesState> {
        lock(&self.0)
    }
}

impl LinkHandler for Batches {
    fn connected(&self, _peer: MemberId, _address: &str) {
        let mut state = self.state();
        state.sessions += 1;
        state.unsent = BATCHES_BYTES.into();
    }

    fn heard(&self, _peer: MemberId) {}

    fn received(&self, _peer: MemberId, batch: Bytes) {
        self.state().received_bytes += batch.len();
    }

    fn next_batch(&self, _peer: MemberId) -> Option<Bytes> {
        let length = self.state().unsent.pop_front()?;
        Some(vec![length as u8; length].into())
    }

    fn disconnected(&self, _peer: MemberId, _reason: Departure) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_with_a_session_exchange_batches() {
        LazyLock::force(&CREDENTIALS);
        for (seed, received_bytes) in [
            (&include_bytes!("../../../fuzz/seeds/link/session")[..], "one batch half of a batch".len() - 1),
            (include_bytes!("../../../fuzz/seeds/link/resumed_session"), "one batch another one".len() - 1),
        ] {
            assert_eq!(runtime().block_on(run(seed)), Sent { received_bytes, pieces: 5 });
        }
    }
}
