//! What is said over a connection, from hello to the end.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tonic::{Status, Streaming};
use tracing::debug;

use crate::cluster::{
    MemberId,
    link::{
        figures::Refused,
        hub::{Hub, Stage},
        peer::{Met, Peer, Reading, Side},
        pipe::Pipe,
        wire::{Frame, Greeting, Hello, Kind, Reason, VERSION, refusal},
    },
};

/// How long a side may take to say hello, once it can.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// How often a link is looked at. One that had nothing to write for two of these writes a heartbeat.
const TICK: Duration = Duration::from_millis(100);
/// After how many of these without a sign of the other side a connection is given up: 2 s.
const SILENT_TICKS_MAX: u32 = 20;
/// After how many in which nothing of what waits was acknowledged: 5 s.
const STALLED_TICKS_MAX: u32 = 50;

/// What became of a connection that was dialled.
#[derive(Debug)]
pub(super) enum Ending {
    /// It was a link.
    WasLinked,
    /// We have dialled ourselves.
    Ourselves,
    /// There is a link to that process already.
    Linked(MemberId),
    /// Another process than the expected answers there.
    Other,
    /// It was refused for a link that is there, says the other side.
    TurnedAway,
    /// The session was over; another can begin at once.
    Anew,
    /// Nothing that can be used was said.
    Nothing,
}

/// Whom we expect, and how much we want it.
#[derive(Clone, Copy)]
pub(super) struct Wish<'p> {
    pub(super) expected: Option<&'p Arc<Peer>>,
    pub(super) insists: bool,
}

/// Greets back who has been dialled and has answered with `frames`; then carries the link to its end.
/// `met` is told with whom there is a link, when there is.
pub(super) async fn dialled(
    hub: &Hub,
    pipe: &Arc<Pipe>,
    frames: impl Future<Output = Result<Streaming<Frame>, Status>>,
    wish: Wish<'_>,
    met: impl FnOnce(MemberId),
) -> Ending {
    let found = OnceLock::new();
    let hello = async {
        let mut frames = frames.await.map_err(|status| nothing(&status))?;
        let peer = greeted(hub, &mut frames, wish).await?;
        found.set(peer.clone()).ok();
        pipe.say(Kind::Hello(peer.hello(hub, wish.insists)));
        let hello = match next(&mut frames).await? {
            Kind::Hello(hello) if hello.member() == peer.id && hello.session != 0 => hello,
            Kind::Refusal(refusal) => {
                return Err(match refusal.reason() {
                    Reason::Linked => Ending::TurnedAway,
                    Reason::Stale => Ending::Anew,
                    Reason::Closed | Reason::Unspecified => Ending::Nothing,
                });
            }
            Kind::Hello(_) | Kind::Greeting(_) | Kind::Piece(_) | Kind::Heartbeat(_) | Kind::Goodbye(_) => {
                return Err(Ending::Nothing);
            }
        };
        match peer.meet(hub, &hello, Side::Dialled, pipe) {
            Met::Linked => Ok((peer, frames)),
            Met::Refused(Reason::Linked) => Err(Ending::Linked(peer.id)),
            Met::Refused(_) | Met::Behind(_) | Met::Anew => Err(Ending::Anew),
        }
    };
    let ending = match hub.while_open(timeout(HELLO_WITHIN, hello)).await {
        Some(Ok(Ok((peer, frames)))) => {
            met(peer.id);
            carry(hub, &peer, pipe, frames).await;
            return Ending::WasLinked;
        }
        Some(Ok(Err(ending))) => ending,
        Some(Err(_)) | None => Ending::Nothing,
    };
    if let Some(peer) = found.get() {
        peer.end_unless_begun(hub);
    }
    ending
}

/// Who has greeted us, if a link to it is wanted.
async fn greeted(hub: &Hub, frames: &mut Streaming<Frame>, wish: Wish<'_>) -> Result<Arc<Peer>, Ending> {
    let id = match next(frames).await? {
        Kind::Greeting(Greeting { version: 1.., member: member @ 1.. }) => MemberId::from_number(member),
        Kind::Greeting(_)
        | Kind::Hello(_)
        | Kind::Piece(_)
        | Kind::Heartbeat(_)
        | Kind::Goodbye(_)
        | Kind::Refusal(_) => return Err(Ending::Nothing),
    };
    if id == hub.shared.me {
        return Err(Ending::Ourselves);
    }
    if wish.expected.is_some_and(|expected| expected.id != id) {
        return Err(Ending::Other);
    }
    let peer = match wish.expected {
        Some(expected) => expected.clone(),
        None => hub.shared.peer(id).ok_or(Ending::Nothing)?,
    };
    if peer.is_linked() { Err(Ending::Linked(peer.id)) } else { Ok(peer) }
}

/// Greets who has dialled us; then carries the link to its end.
pub(super) async fn accepted(hub: &Hub, pipe: &Arc<Pipe>, mut frames: Streaming<Frame>) {
    pipe.say(Kind::Greeting(Greeting { version: VERSION, member: hub.shared.me.number() }));
    let hello = match hub.while_open(timeout(HELLO_WITHIN, next(&mut frames))).await {
        Some(Ok(Ok(Kind::Hello(hello)))) if hello.version != 0 && hello.member != 0 && hello.session != 0 => {
            hello
        }
        Some(Ok(Ok(_) | Err(_)) | Err(_)) | None => return,
    };
    if let Some(peer) = welcome(hub, pipe, &hello) {
        return carry(hub, &peer, pipe, frames).await;
    }
    // What was said last has to arrive: the other side closes when it has read it.
    pipe.finish();
    timeout(HELLO_WITHIN, async { while next(&mut frames).await.is_ok() {} }).await.ok();
}

/// Answers a hello; the peer, if that makes a link.
fn welcome(hub: &Hub, pipe: &Arc<Pipe>, hello: &Hello) -> Option<Arc<Peer>> {
    if hello.member() == hub.shared.me || !hub.is_open() {
        pipe.say(refusal(Reason::Closed));
        return None;
    }
    loop {
        let Some(peer) = hub.shared.peer(hello.member()) else {
            hub.shared.counts.refuse(Refused::Full, &hello.address, &"there are too many peers");
            pipe.say(refusal(Reason::Closed));
            return None;
        };
        match peer.meet(hub, hello, Side::Accepted, pipe) {
            Met::Linked => return Some(peer),
            Met::Refused(reason) => pipe.say(refusal(reason)),
            Met::Behind(answer) => pipe.say(Kind::Hello(answer)),
            // The next one is a new one, so this comes to an end.
            Met::Anew => continue,
        }
        peer.end_unless_begun(hub);
        return None;
    }
}

/// Carries a link to its end: reads, and sees to it that there is always something to read.
async fn carry(hub: &Hub, peer: &Arc<Peer>, pipe: &Arc<Pipe>, mut frames: Streaming<Frame>) {
    let mut watch = Watch::default();
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    // A process that has stood still has not been silent for as long.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stages = hub.shared.stage.subscribe();
    loop {
        tokio::select! {
            frame = frames.message() => match frame {
                Ok(Some(frame)) => {
                    watch.silent = 0;
                    if peer.take(pipe, hub, frame) == Reading::Ends {
                        break;
                    }
                }
                Ok(None) => break,
                Err(status) => {
                    debug!(peer = %peer.id, %status, "a link has broken");
                    break;
                }
            },
            _ = ticks.tick() => if watch.tick(peer, pipe) == Reading::Ends {
                debug!(peer = %peer.id, "a link is silent or stuck");
                break;
            },
            () = pipe.end.notified() => break,
            () = closing(&mut stages), if !pipe.closing.load(Relaxed) => {
                pipe.closing.store(true, Relaxed);
                pipe.wake();
            }
        }
    }
    if peer.detach(pipe, hub) {
        hub.redial(peer.clone());
    }
}

/// Ready when the process leaves.
async fn closing(stages: &mut watch::Receiver<Stage>) {
    // An error means that nobody is left to tell, which is the end as well.
    stages.wait_for(|stage| *stage != Stage::Open).await.ok();
}

/// What has not happened on a link for how many ticks.
#[derive(Default)]
struct Watch {
    silent: u32,
    stalled: u32,
    acknowledged: Option<u64>,
}

impl Watch {
    fn tick(&mut self, peer: &Peer, pipe: &Pipe) -> Reading {
        self.silent += 1;
        let awaited = peer.awaited();
        let is_stalled = awaited.is_some() && awaited == self.acknowledged;
        self.acknowledged = awaited;
        self.stalled = if is_stalled { self.stalled + 1 } else { 0 };
        if !pipe.wrote.swap(false, Relaxed) {
            pipe.beat.store(true, Relaxed);
            pipe.wake();
        }
        let lives = self.silent <= SILENT_TICKS_MAX && self.stalled <= STALLED_TICKS_MAX;
        if lives { Reading::GoesOn } else { Reading::Ends }
    }
}

/// The next frame of a kind that we know.
async fn next(frames: &mut Streaming<Frame>) -> Result<Kind, Ending> {
    loop {
        match frames.message().await {
            Ok(Some(Frame { kind: Some(kind) })) => return Ok(kind),
            Ok(Some(Frame { kind: None })) => {}
            Ok(None) => return Err(Ending::Nothing),
            Err(status) => return Err(nothing(&status)),
        }
    }
}

fn nothing(status: &Status) -> Ending {
    debug!(%status, "a connection has come to nothing");
    Ending::Nothing
}
