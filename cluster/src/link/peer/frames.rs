//! The frames that a peer sends, and those that it is sent.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use crate::link::{
    DisconnectReason,
    frame::{Frame, Goodbye, Heartbeat, Kind, PIECE_BYTES_MAX, Piece},
    outbound::{FrameSource, NextFrame, OutboundQueue},
    peer::{Flow, Peer},
};

impl Peer {
    /// Whether a frame received on the connection of `outbound` can be handled now. Otherwise the memory for incomplete
    /// batches is full, and the connection must not be read further until the frame is handled.
    pub(in crate::link) fn has_room_for(&self, outbound: &Arc<OutboundQueue>, frame: &Frame) -> bool {
        let Some(Kind::Piece(piece @ Piece { has_more: true, .. })) = &frame.kind else { return true };
        let mut state = self.state();
        if !state.is_active(outbound) || state.session.take_room(piece) {
            return true;
        }
        // The peer is not silent.
        self.handler.heard(self.id);
        false
    }

    /// Handles a frame received on the connection of `outbound`, for which there is room.
    pub(in crate::link) fn handle_frame(&self, outbound: &Arc<OutboundQueue>, frame: Frame) -> Flow {
        let mut state = self.state();
        if !state.is_active(outbound) {
            return Flow::Close;
        }
        self.handler.heard(self.id);
        let was_full = state.session.capacity() == 0;
        let result = match frame.kind {
            Some(Kind::Piece(piece)) => state.session.receive(piece),
            Some(Kind::Heartbeat(heartbeat)) => state.session.acknowledge(heartbeat.received).map(|()| None),
            Some(Kind::Goodbye(Goodbye {})) => {
                state.end(self, DisconnectReason::Dead);
                return Flow::Close;
            }
            Some(Kind::Refusal(_)) => return Flow::Close,
            // A repeated greeting or hello has no effect; an unknown kind is from a later version.
            Some(Kind::Greeting(_) | Kind::Hello(_)) | None => Ok(None),
        };
        match result {
            Ok(Some(batch)) => {
                self.local.stats.batches_in.increase();
                self.local.stats.bytes_in.add(batch.len() as u64);
                self.handler.received(self.id, batch);
            }
            Ok(None) => {}
            Err(error) => {
                state.abort(self, error);
                return Flow::Close;
            }
        }
        if (was_full && state.session.capacity() != 0) || state.session.must_acknowledge() {
            outbound.wake();
        }
        Flow::Continue
    }
}

impl FrameSource for Peer {
    fn next_frame(&self, outbound: &Arc<OutboundQueue>) -> NextFrame {
        let mut state = self.state();
        if !state.is_active(outbound) {
            return NextFrame::End;
        }
        if let Some(frame) = state.piece(&self.local.stats) {
            return NextFrame::Frame(frame);
        }
        let capacity = state.session.capacity().min(PIECE_BYTES_MAX);
        let batch = if capacity == 0 { None } else { self.handler.next_batch(self.id, capacity) };
        if let Some(batch) = batch {
            self.local.stats.batches_out.increase();
            self.local.stats.bytes_out.add(batch.len() as u64);
            state.session.push(batch);
            if let Some(frame) = state.piece(&self.local.stats) {
                return NextFrame::Frame(frame);
            }
        }
        if outbound.goodbye_due.load(Relaxed) && capacity != 0 {
            outbound.finish();
            return NextFrame::Frame(Kind::Goodbye(Goodbye {}).into());
        }
        if outbound.heartbeat_due.swap(false, Relaxed) || state.session.must_acknowledge() {
            let received = state.session.report_received();
            return NextFrame::Frame(Kind::Heartbeat(Heartbeat { received }).into());
        }
        NextFrame::Pending
    }
}
