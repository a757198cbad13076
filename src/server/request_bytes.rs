//! Accounts bytes of requests that are not complete, and of those that wait for their decision.
//!
//! A connection is bounded by flow control: beyond [`CONNECTION_BYTES_MAX`] only its oldest incomplete call gets more
//! window. The process is bounded by rejection: beyond its budget the oldest incomplete call is rejected. A call that
//! is about to complete is usually young, so stalled clients do not harm other clients.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use futures_util::task::AtomicWaker;
use tollgate_counter::lock::lock;

/// Maximum of bytes of incomplete calls on one connection: one message of the maximum size. Beyond it only the oldest
/// call gets window.
const CONNECTION_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Approximate memory of an incomplete call without its message and head: stream state and future.
const CALL_BYTES: usize = 2 * 1024;

/// The process-wide budget for incomplete calls. Those that are complete and wait count too, but are not rejected.
#[derive(Debug)]
pub(super) struct RequestBytes {
    max: usize,
    calls: Mutex<IncompleteCalls>,
    // Of complete calls.
    held: AtomicUsize,
    rejected: AtomicU64,
}

#[derive(Debug, Default)]
struct IncompleteCalls {
    bytes: usize,
    begun: u64,
    // By age: the oldest call has the smallest number.
    by_number: BTreeMap<u64, IncompleteCall>,
}

#[derive(Debug)]
struct IncompleteCall {
    bytes: usize,
    rejection: Arc<RejectionSignal>,
}

/// Tells a call that it is rejected.
#[derive(Debug, Default)]
struct RejectionSignal {
    is_rejected: AtomicBool,
    waker: AtomicWaker,
}

/// Incomplete calls of one connection. Clones share the state.
#[derive(Clone, Debug)]
pub(super) struct ConnectionBytes {
    process: Arc<RequestBytes>,
    windows: Arc<Mutex<Windows>>,
}

#[derive(Debug, Default)]
struct Windows {
    bytes: usize,
    // Received bytes whose window is not released yet.
    withheld: usize,
    // Bytes of each call, by age.
    by_number: BTreeMap<u64, usize>,
    // Wakers of calls that wait for window.
    waiting: Vec<Waker>,
}

/// The accounting of one incomplete call; dropping it ends the accounting.
#[derive(Debug)]
pub(super) struct Share {
    connection: ConnectionBytes,
    number: u64,
    rejection: Arc<RejectionSignal>,
    withheld: usize,
}

/// The memory of a complete call that waits; dropping it ends the accounting.
#[derive(Debug)]
pub(super) struct WaitingCallBytes {
    process: Arc<RequestBytes>,
    bytes: usize,
}

impl RequestBytes {
    pub(super) fn new(max: usize) -> Self {
        Self { max, calls: Mutex::default(), held: AtomicUsize::new(0), rejected: AtomicU64::new(0) }
    }

    /// Calls that were rejected because the budget was exhausted.
    pub(super) fn rejected(&self) -> u64 {
        self.rejected.load(Relaxed)
    }

    /// Current bytes of calls that are incomplete or wait.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.calls).bytes + self.held.load(Relaxed)
    }

    fn begin(&self, bytes: usize) -> (u64, Arc<RejectionSignal>) {
        let rejection = Arc::<RejectionSignal>::default();
        let mut calls = lock(&self.calls);
        calls.begun += 1;
        let number = calls.begun;
        calls.by_number.insert(number, IncompleteCall { bytes: 0, rejection: rejection.clone() });
        drop(calls);
        self.grow(number, bytes);
        (number, rejection)
    }

    /// Adds `bytes` to a call, and rejects the oldest calls while the budget is exceeded.
    fn grow(&self, number: u64, bytes: usize) {
        let mut calls = lock(&self.calls);
        // A rejected call is no longer counted.
        let Some(call) = calls.by_number.get_mut(&number) else { return };
        call.bytes += bytes;
        calls.bytes += bytes;
        let mut rejected = Vec::new();
        while calls.bytes + self.held.load(Relaxed) > self.max {
            let Some((_, oldest)) = calls.by_number.pop_first() else { break };
            calls.bytes -= oldest.bytes;
            rejected.push(oldest.rejection);
        }
        drop(calls);
        for rejection in rejected {
            self.rejected.fetch_add(1, Relaxed);
            rejection.is_rejected.store(true, Relaxed);
            rejection.waker.wake();
        }
    }

    /// Ends the accounting of an incomplete call. Returns the bytes that were counted.
    fn end(&self, number: u64) -> usize {
        let mut calls = lock(&self.calls);
        let bytes = calls.by_number.remove(&number).map_or(0, |call| call.bytes);
        calls.bytes -= bytes;
        bytes
    }
}

impl ConnectionBytes {
    pub(super) fn new(process: Arc<RequestBytes>) -> Self {
        Self { process, windows: Arc::default() }
    }

    /// Begins the accounting of an incomplete call with a head of `head` bytes.
    pub(super) fn share(&self, head: usize) -> Share {
        let (number, rejection) = self.process.begin(CALL_BYTES + head);
        lock(&self.windows).by_number.insert(number, 0);
        Share { connection: self.clone(), number, rejection, withheld: 0 }
    }

    /// Counts `bytes` of a complete call that waits.
    pub(super) fn hold(&self, bytes: usize) -> WaitingCallBytes {
        self.process.held.fetch_add(bytes, Relaxed);
        WaitingCallBytes { process: self.process.clone(), bytes }
    }

    /// Received bytes whose window is not released yet.
    pub(super) fn withheld(&self) -> usize {
        lock(&self.windows).withheld
    }
}

impl Share {
    /// Counts received bytes. Their window is withheld until [`Share::poll_window`] returns it.
    pub(super) fn receive(&mut self, bytes: usize) {
        self.withheld += bytes;
        let mut windows = lock(&self.connection.windows);
        windows.bytes += bytes;
        windows.withheld += bytes;
        *windows.by_number.entry(self.number).or_default() += bytes;
        drop(windows);
        self.connection.process.grow(self.number, bytes);
    }

    /// The window to release, once the connection is within its bound or this is its oldest call.
    pub(super) fn poll_window(&mut self, cx: &Context<'_>) -> Poll<usize> {
        if self.withheld == 0 {
            return Poll::Ready(0);
        }
        let mut windows = lock(&self.connection.windows);
        let is_oldest = windows.by_number.first_key_value().is_some_and(|(number, _)| *number == self.number);
        if !is_oldest && windows.bytes > CONNECTION_BYTES_MAX {
            windows.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        windows.withheld -= self.withheld;
        Poll::Ready(mem::take(&mut self.withheld))
    }

    /// The call is complete. Returns the window that is still withheld, and its memory for as long as it waits.
    pub(super) fn complete(self) -> (usize, WaitingCallBytes) {
        let bytes = self.connection.process.end(self.number);
        (self.withheld, self.connection.hold(bytes))
    }

    /// Ready once the call is rejected because the process is over its budget.
    pub(super) fn poll_rejected(&self, cx: &Context<'_>) -> Poll<()> {
        self.rejection.waker.register(cx.waker());
        if self.rejection.is_rejected.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for WaitingCallBytes {
    fn drop(&mut self) {
        self.process.held.fetch_sub(self.bytes, Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut windows = lock(&self.connection.windows);
        let bytes = windows.by_number.remove(&self.number).unwrap_or_default();
        windows.bytes -= bytes;
        windows.withheld -= self.withheld;
        let waiting = mem::take(&mut windows.waiting);
        drop(windows);
        waiting.into_iter().for_each(Waker::wake);
        self.connection.process.end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOOP: Context<'static> = Context::from_waker(Waker::noop());

    fn connection(max: usize) -> ConnectionBytes {
        ConnectionBytes::new(Arc::new(RequestBytes::new(max)))
    }

    #[test]
    fn full_budget_rejects_oldest_call() {
        let process = Arc::new(RequestBytes::new(3 * CALL_BYTES));
        let (one, other) = (ConnectionBytes::new(process.clone()), ConnectionBytes::new(process.clone()));
        let oldest = one.share(0);
        let _second = other.share(0);
        let third = other.share(0);
        assert!(oldest.poll_rejected(&NOOP).is_pending());
        let fourth = other.share(0);
        assert!(oldest.poll_rejected(&NOOP).is_ready());
        assert!(third.poll_rejected(&NOOP).is_pending() && fourth.poll_rejected(&NOOP).is_pending());
        assert_eq!(process.rejected(), 1);
    }

    #[test]
    fn completed_calls_free_the_budget() {
        let process = Arc::new(RequestBytes::new(CALL_BYTES + 100));
        let connection = ConnectionBytes::new(process.clone());
        for _ in 0..10 {
            let mut share = connection.share(0);
            share.receive(100);
            assert!(share.poll_rejected(&NOOP).is_pending());
        }
        assert_eq!((process.rejected(), process.bytes(), connection.withheld()), (0, 0, 0));
    }

    #[test]
    fn complete_call_counts_while_it_is_held() {
        let process = Arc::new(RequestBytes::new(2 * CALL_BYTES + 100));
        let connection = ConnectionBytes::new(process.clone());
        let mut share = connection.share(0);
        share.receive(100);
        let (withheld, held) = share.complete();
        assert_eq!((withheld, process.bytes(), connection.withheld()), (100, CALL_BYTES + 100, 0));
        let (first, second) = (connection.share(0), connection.share(0));
        assert!(first.poll_rejected(&NOOP).is_ready(), "what is held leaves room for one");
        assert!(second.poll_rejected(&NOOP).is_pending());
        drop(held);
        assert_eq!(process.bytes(), CALL_BYTES);
    }

    #[test]
    fn call_larger_than_budget_is_rejected() {
        let connection = connection(CALL_BYTES + 100);
        let mut share = connection.share(0);
        share.receive(101);
        assert!(share.poll_rejected(&NOOP).is_ready());
    }

    #[test]
    fn full_connection_gives_window_to_its_oldest_call_only() {
        let connection = connection(usize::MAX);
        let mut oldest = connection.share(0);
        let mut younger = connection.share(0);
        oldest.receive(CONNECTION_BYTES_MAX);
        younger.receive(7);
        assert_eq!(younger.poll_window(&NOOP), Poll::Pending);
        assert_eq!(oldest.poll_window(&NOOP), Poll::Ready(CONNECTION_BYTES_MAX));
        assert_eq!(connection.withheld(), 7);
        drop(oldest);
        assert_eq!(younger.poll_window(&NOOP), Poll::Ready(7));
        assert_eq!(connection.withheld(), 0);
    }
}
