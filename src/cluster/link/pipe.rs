//! What is written to one connection.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use futures_util::{stream::Stream, task::AtomicWaker};
use tokio::sync::Notify;
use tonic::Status;

use crate::cluster::link::{
    hub::Hub,
    peer::{Next, Peer},
    wire::Frame,
};

/// The writing side of one connection.
#[derive(Default)]
pub(super) struct Pipe {
    waker: AtomicWaker,
    first: Mutex<First>,
    // Set once both sides have said hello.
    peer: OnceLock<Weak<Peer>>,
    /// Something was written since it was last asked.
    pub(super) wrote: AtomicBool,
    /// A heartbeat is due.
    pub(super) beat: AtomicBool,
    /// What waits is to be written, and then a goodbye.
    pub(super) closing: AtomicBool,
    /// The link is not wanted any more.
    pub(super) end: Notify,
}

/// What is written before any batch.
#[derive(Default)]
struct First {
    frames: VecDeque<Frame>,
    ends: bool,
}

impl Pipe {
    /// There may be something to write.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Writes this before any batch.
    pub(super) fn say(&self, frame: impl Into<Frame>) {
        self.first().frames.push_back(frame.into());
        self.wake();
    }

    /// Writes nothing after what was said.
    pub(super) fn finish(&self) {
        self.first().ends = true;
        self.wake();
    }

    /// From here on, what waits for `peer` is written.
    pub(super) fn carry(&self, peer: &Arc<Peer>) {
        // A connection is attached once; the second time would be to the same peer.
        self.peer.set(Arc::downgrade(peer)).ok();
        self.wake();
    }

    fn first(&self) -> MutexGuard<'_, First> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(self: &Arc<Self>, hub: &Hub) -> Next {
        let mut first = self.first();
        if let Some(frame) = first.frames.pop_front() {
            return Next::Frame(frame);
        }
        if first.ends {
            return Next::End;
        }
        drop(first);
        let Some(peer) = self.peer.get() else { return Next::Nothing };
        peer.upgrade().map_or(Next::End, |peer| peer.next(self, hub))
    }
}

/// The frames that a pipe writes, as gRPC takes them.
pub(super) struct Outgoing {
    pub(super) pipe: Arc<Pipe>,
    pub(super) hub: Arc<Hub>,
}

impl Stream for Outgoing {
    type Item = Result<Frame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Before looking, so that what comes meanwhile wakes.
        self.pipe.waker.register(cx.waker());
        match self.pipe.next(&self.hub) {
            Next::Frame(frame) => {
                self.pipe.wrote.store(true, Relaxed);
                Poll::Ready(Some(Ok(frame)))
            }
            Next::Nothing => Poll::Pending,
            Next::End => Poll::Ready(None),
        }
    }
}

/// The same as the requests of a caller, who cannot tell an error.
pub(super) struct Asking(pub(super) Outgoing);

impl Stream for Asking {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        Pin::new(&mut self.0).poll_next(cx).map(|item| item.and_then(Result::ok))
    }
}
