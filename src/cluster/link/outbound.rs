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
    frame::Frame,
    hub::Hub,
    peer::{NextFrame, Peer},
};

/// The writing side of one connection.
#[derive(Default)]
pub(super) struct OutboundQueue {
    waker: AtomicWaker,
    control: Mutex<ControlFrames>,
    // Set once both sides have said hello.
    peer: OnceLock<Weak<Peer>>,
    /// Something was written since it was last asked.
    pub(super) has_written: AtomicBool,
    /// A heartbeat is due.
    pub(super) heartbeat_due: AtomicBool,
    /// What waits is to be written, and then a goodbye.
    pub(super) goodbye_due: AtomicBool,
    /// The link is not wanted any more.
    pub(super) closed: Notify,
}

/// What is written before any batch.
#[derive(Default)]
struct ControlFrames {
    frames: VecDeque<Frame>,
    is_finished: bool,
}

impl OutboundQueue {
    /// There may be something to write.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Writes this before any batch.
    pub(super) fn send(&self, frame: impl Into<Frame>) {
        self.control().frames.push_back(frame.into());
        self.wake();
    }

    /// Writes nothing after what was said.
    pub(super) fn finish(&self) {
        self.control().is_finished = true;
        self.wake();
    }

    /// From here on, what waits for `peer` is written.
    pub(super) fn attach(&self, peer: &Arc<Peer>) {
        // A connection is attached once; the second time would be to the same peer.
        self.peer.set(Arc::downgrade(peer)).ok();
        self.wake();
    }

    fn control(&self) -> MutexGuard<'_, ControlFrames> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(self: &Arc<Self>, hub: &Hub) -> NextFrame {
        let mut control = self.control();
        if let Some(frame) = control.frames.pop_front() {
            return NextFrame::Frame(frame);
        }
        if control.is_finished {
            return NextFrame::End;
        }
        drop(control);
        let Some(peer) = self.peer.get() else { return NextFrame::Pending };
        peer.upgrade().map_or(NextFrame::End, |peer| peer.next_frame(self, hub))
    }
}

/// The frames that a outbound writes, as gRPC takes them.
pub(super) struct OutboundFrames {
    pub(super) outbound: Arc<OutboundQueue>,
    pub(super) hub: Arc<Hub>,
}

impl Stream for OutboundFrames {
    type Item = Result<Frame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Before looking, so that what comes meanwhile wakes.
        self.outbound.waker.register(cx.waker());
        match self.outbound.next(&self.hub) {
            NextFrame::Frame(frame) => {
                self.outbound.has_written.store(true, Relaxed);
                Poll::Ready(Some(Ok(frame)))
            }
            NextFrame::Pending => Poll::Pending,
            NextFrame::End => Poll::Ready(None),
        }
    }
}

/// The same as the requests of a caller, who cannot tell an error.
pub(super) struct RequestFrames(pub(super) OutboundFrames);

impl Stream for RequestFrames {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        Pin::new(&mut self.0).poll_next(cx).map(|item| item.and_then(Result::ok))
    }
}
