//! The outbound queue of one connection.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, atomic::AtomicBool},
    task::{Context, Poll},
};

use futures_util::{stream::Stream, task::AtomicWaker};
use tokio::sync::Notify;
use tonic::Status;

use crate::link::frame::Frame;

/// What the connection writes next.
pub(super) enum NextFrame {
    Frame(Frame),
    /// Nothing to write until the queue is woken.
    Pending,
    End,
}

/// Supplies the frames of a queue after its control frames.
pub(super) trait FrameSource: Send + Sync {
    /// The next frame to write on `outbound`.
    fn next_frame(&self, outbound: &Arc<OutboundQueue>) -> NextFrame;
}

/// The writing side of one connection: control frames first, then the batches of its peer.
#[derive(Default)]
pub(super) struct OutboundQueue {
    waker: AtomicWaker,
    control: Mutex<ControlFrames>,
    // Set once both sides have sent a hello.
    source: OnceLock<Weak<dyn FrameSource>>,
    /// A heartbeat is due.
    pub(super) heartbeat_due: AtomicBool,
    /// Queued batches are written, then a goodbye.
    pub(super) goodbye_due: AtomicBool,
    /// Notified when the connection must close.
    pub(super) closed: Notify,
}

/// Frames that are written before any batch.
#[derive(Default)]
struct ControlFrames {
    frames: VecDeque<Frame>,
    is_finished: bool,
}

impl OutboundQueue {
    /// Wakes the writer to poll for frames.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Queues a frame before all batches.
    pub(super) fn send(&self, frame: impl Into<Frame>) {
        self.control().frames.push_back(frame.into());
        self.wake();
    }

    /// Ends the stream after the queued control frames.
    pub(super) fn finish(&self) {
        self.control().is_finished = true;
        self.wake();
    }

    /// Attaches the peer whose batches are written from now on.
    pub(super) fn attach(&self, peer: Weak<dyn FrameSource>) {
        // A connection has one peer, so setting it again would change nothing.
        let _ = self.source.set(peer);
        self.wake();
    }

    fn control(&self) -> MutexGuard<'_, ControlFrames> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(self: &Arc<Self>) -> NextFrame {
        let mut control = self.control();
        if let Some(frame) = control.frames.pop_front() {
            return NextFrame::Frame(frame);
        }
        if control.is_finished {
            return NextFrame::End;
        }
        drop(control);
        let Some(source) = self.source.get() else { return NextFrame::Pending };
        source.upgrade().map_or(NextFrame::End, |source| source.next_frame(self))
    }
}

/// The frames of a queue as the stream that a gRPC server sends.
pub(super) struct OutboundFrames(pub(super) Arc<OutboundQueue>);

impl Stream for OutboundFrames {
    type Item = Result<Frame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Register before polling, so that a frame queued meanwhile wakes the task.
        self.0.waker.register(cx.waker());
        match self.0.next() {
            NextFrame::Frame(frame) => Poll::Ready(Some(Ok(frame))),
            NextFrame::Pending => Poll::Pending,
            NextFrame::End => Poll::Ready(None),
        }
    }
}
