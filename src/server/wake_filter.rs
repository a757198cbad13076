//! Per-future wakers: a task that polls several futures polls only those that were woken.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU8,
            Ordering::{AcqRel, Acquire},
        },
    },
    task::{Context, Poll, Wake, Waker},
};

use tollgate_counter::lock::lock;

// States of a filter.
const IDLE: u8 = 0;
const POLLING: u8 = 1;
const WOKEN: u8 = 2;

/// A waker that records a wake and passes it on to a task.
pub(super) struct WakeFilter {
    shared: Arc<WakeState>,
    waker: Waker,
    task: Option<Waker>,
}

struct WakeState {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl Wake for WakeState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, AcqRel) == IDLE {
            lock(&self.task).as_ref().inspect(|task| task.wake_by_ref());
        }
    }
}

impl WakeFilter {
    /// A filter in the woken state, so that the first poll happens.
    pub(super) fn new() -> Self {
        let shared = Arc::new(WakeState { state: AtomicU8::new(WOKEN), task: Mutex::default() });
        Self { waker: shared.clone().into(), shared, task: None }
    }

    /// The waker that sets the woken state.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether the waker was woken since [`WakeFilter::end_poll`]. Registers the task of `cx` for later wakes.
    pub(super) fn is_woken(&mut self, cx: &Context<'_>) -> bool {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *lock(&self.shared.task) = Some(cx.waker().clone());
            self.task = Some(cx.waker().clone());
        }
        self.shared.state.load(Acquire) == WOKEN
    }

    /// Clears the woken state. Until [`WakeFilter::end_poll`] the task is not woken.
    pub(super) fn begin_poll(&self) {
        self.shared.state.swap(POLLING, AcqRel);
    }

    /// Wakes the task from now on. Returns `false` if a wake arrived since [`WakeFilter::begin_poll`].
    pub(super) fn end_poll(&self) -> bool {
        self.shared.state.compare_exchange(POLLING, IDLE, AcqRel, Acquire).is_ok()
    }
}

/// A future that is polled only if its own waker was woken.
pub(super) struct WakeFiltered<F> {
    filter: WakeFilter,
    future: F,
}

impl<F> WakeFiltered<F> {
    pub(super) fn new(future: F) -> Self {
        Self { filter: WakeFilter::new(), future }
    }
}

impl<F: Future + Unpin> Future for WakeFiltered<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { filter, future } = self.get_mut();
        if !filter.is_woken(cx) {
            return Poll::Pending;
        }
        filter.begin_poll();
        let polled = Pin::new(future).poll(&mut Context::from_waker(filter.waker()));
        if polled.is_pending() && !filter.end_poll() {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    /// Counts wakes.
    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn filtered_future_is_polled_only_after_its_own_wake() {
        let wakes = Arc::new(WakeCount::default());
        let polls = AtomicUsize::new(0);
        let mut inner = None;
        let mut filtered = WakeFiltered::new(poll_fn(|cx| {
            inner = Some(cx.waker().clone());
            if polls.fetch_add(1, Relaxed) == 0 { Poll::Pending } else { Poll::Ready(()) }
        }));
        let waker = wakes.clone().into();
        let mut cx = Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(Pin::new(&mut filtered).poll(&mut cx).is_pending());
        }
        assert_eq!((polls.load(Relaxed), wakes.0.load(Relaxed)), (1, 0));
    }

    #[test]
    fn wake_filter_wakes_task_once_and_not_during_poll() {
        let wakes = Arc::new(WakeCount::default());
        let waker = wakes.clone().into();
        let cx = Context::from_waker(&waker);
        let mut filter = WakeFilter::new();
        assert!(filter.is_woken(&cx));
        filter.begin_poll();
        filter.waker().wake_by_ref();
        assert!(!filter.end_poll(), "a wake arrived during the poll");
        filter.begin_poll();
        assert!(filter.end_poll());
        assert_eq!(wakes.0.load(Relaxed), 0);
        assert!(!filter.is_woken(&cx));
        filter.waker().wake_by_ref();
        filter.waker().wake_by_ref();
        assert!(filter.is_woken(&cx));
        assert_eq!(wakes.0.load(Relaxed), 1);
        filter.begin_poll();
        assert!(filter.end_poll());
        filter.waker().wake_by_ref();
        assert_eq!(wakes.0.load(Relaxed), 2, "the next wake passes again");
    }
}
