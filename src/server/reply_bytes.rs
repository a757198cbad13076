//! Accounts bytes of replies that HTTP/2 has not written because of flow control or a full socket.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use hyper::body::{Buf, Bytes};

/// Maximum of unsent bytes on one connection. Later calls are deferred until the client reads some.
const CONNECTION_BYTES_MAX: usize = 1024 * 1024;
/// Unsent bytes that each connection may have even if the process is over its budget. The process counts in steps of
/// this size.
const STEP_BYTES: usize = 16 * 1024;
/// Approximate memory of an unsent reply without its message: stream state, headers and trailers.
const REPLY_BYTES: usize = 1024;

/// The process-wide budget for unsent replies.
#[derive(Debug)]
pub(super) struct ReplyBytes {
    max: usize,
    unsent: AtomicUsize,
}

/// Unsent replies of one connection. Clones share the count.
#[derive(Clone, Debug)]
pub(super) struct Unsent(Arc<ConnectionUnsent>);

#[derive(Debug)]
struct ConnectionUnsent {
    process: Arc<ReplyBytes>,
    bytes: AtomicUsize,
}

/// A part of a reply, counted until HTTP/2 has written or dropped it.
#[derive(Debug)]
pub(super) struct ReplyPart {
    rest: Bytes,
    counted: usize,
    unsent: Unsent,
}

impl ReplyBytes {
    pub(super) fn new(max: usize) -> Self {
        Self { max, unsent: AtomicUsize::new(0) }
    }

    /// Current unsent bytes, in whole steps of each connection.
    pub(super) fn bytes(&self) -> usize {
        self.unsent.load(Relaxed)
    }
}

impl Unsent {
    pub(super) fn new(process: Arc<ReplyBytes>) -> Self {
        Self(Arc::new(ConnectionUnsent { process, bytes: AtomicUsize::new(0) }))
    }

    /// Counts `bytes` until they are written or dropped.
    pub(super) fn part(&self, bytes: Bytes) -> ReplyPart {
        let counted = bytes.len() + REPLY_BYTES;
        let before = self.0.bytes.fetch_add(counted, Relaxed);
        let steps = steps(before, before + counted);
        // Usually none: cores must not share a cache line for each reply.
        if steps > 0 {
            self.0.process.unsent.fetch_add(steps, Relaxed);
        }
        ReplyPart { rest: bytes, counted, unsent: self.clone() }
    }

    /// Whether the next call may be decided.
    pub(super) fn has_room(&self) -> bool {
        let bytes = self.0.bytes.load(Relaxed);
        bytes < STEP_BYTES || bytes < CONNECTION_BYTES_MAX && self.0.process.bytes() < self.0.process.max
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.bytes.load(Relaxed) == 0
    }
}

/// The bytes of whole steps between `low` and `high`.
fn steps(low: usize, high: usize) -> usize {
    (high / STEP_BYTES - low / STEP_BYTES) * STEP_BYTES
}

impl Drop for ReplyPart {
    fn drop(&mut self) {
        let connection = &self.unsent.0;
        let before = connection.bytes.fetch_sub(self.counted, Relaxed);
        let steps = steps(before - self.counted, before);
        if steps > 0 {
            connection.process.unsent.fetch_sub(steps, Relaxed);
        }
    }
}

impl Buf for ReplyPart {
    fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.rest
    }

    fn advance(&mut self, count: usize) {
        self.rest.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(bytes: usize) -> Bytes {
        vec![0; bytes - REPLY_BYTES].into()
    }

    #[test]
    fn process_counts_unsent_bytes_in_steps() {
        let process = Arc::new(ReplyBytes::new(usize::MAX));
        let unsent = Unsent::new(process.clone());
        let small = unsent.part(reply(STEP_BYTES - 1));
        assert_eq!(process.bytes(), 0);
        let large = unsent.part(reply(3 * STEP_BYTES + 1));
        assert_eq!(process.bytes(), 4 * STEP_BYTES);
        drop(small);
        assert_eq!(process.bytes(), 3 * STEP_BYTES);
        drop(large);
        assert_eq!((process.bytes(), unsent.is_empty()), (0, true));
    }

    #[test]
    fn full_connection_has_no_room_until_replies_are_written() {
        let unsent = Unsent::new(Arc::new(ReplyBytes::new(usize::MAX)));
        let part = unsent.part(reply(CONNECTION_BYTES_MAX));
        assert!(!unsent.has_room());
        drop(part);
        assert!(unsent.has_room());
    }

    #[test]
    fn full_process_leaves_room_to_connection_with_few_unsent_bytes() {
        let process = Arc::new(ReplyBytes::new(2 * STEP_BYTES));
        let stalled = Unsent::new(process.clone());
        let other = Unsent::new(process);
        let _part = stalled.part(reply(2 * STEP_BYTES));
        assert!(!stalled.has_room() && other.has_room());
        let _small = other.part(reply(STEP_BYTES));
        assert!(!other.has_room());
    }
}
