//! Tracks activity of the connections of a listener, so that a full listener can close the connection that has been
//! idle longest.
//!
//! A connection is idle while the server waits for its client: for a request, for the rest of a body, or for the client
//! to read a response. So a slow client cannot lock out a probe.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::{sync::Notify, time::Instant};
use tollgate_counter::lock::lock;

/// The open connections of one listener.
// Invariant: contains every open connection; closed ones are removed when the next one opens.
#[derive(Debug, Default)]
pub(super) struct ConnectionTracker(Mutex<Vec<Weak<Activity>>>);

/// The activity of one open connection.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<RunningRequests>,
    close: Notify,
}

#[derive(Debug)]
struct RunningRequests {
    /// Complete requests without a response yet.
    running: usize,
    idle_since: Instant,
    // Invariant: once set, no request starts to run.
    is_closing: bool,
}

/// A request from its head to its response.
#[derive(Debug)]
pub(super) struct RequestActivity {
    activity: Arc<Activity>,
    is_running: AtomicBool,
}

impl ConnectionTracker {
    /// Registers a connection, which is idle at first, until its activity is dropped.
    pub(super) fn track(&self) -> Arc<Activity> {
        let state = RunningRequests { running: 0, idle_since: Instant::now(), is_closing: false };
        let activity = Arc::new(Activity { state: Mutex::new(state), close: Notify::new() });
        let mut open = lock(&self.0);
        open.retain(|each| each.strong_count() > 0);
        open.push(Arc::downgrade(&activity));
        activity
    }

    /// Requests the close of the connection that has been idle longest. Returns `false` if no connection is idle.
    pub(super) fn close_longest_idle(&self) -> bool {
        let open = lock(&self.0);
        loop {
            let idle =
                open.iter().filter_map(Weak::upgrade).filter_map(|each| Some((each.idle_since()?, each)));
            let Some((_, longest)) = idle.min_by_key(|(since, _)| *since) else { return false };
            // If a request has arrived in the meantime, try the next one.
            if longest.close_if_idle() {
                return true;
            }
        }
    }
}

impl Activity {
    /// Waits until the close is requested.
    pub(super) fn close_requested(&self) -> impl Future<Output = ()> + '_ {
        self.close.notified()
    }

    /// Requests the close unless a request is running. Returns whether the close was requested.
    pub(super) fn close_if_idle(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_closing |= state.running == 0;
        if state.is_closing {
            self.close.notify_one();
        }
        state.is_closing
    }

    /// When the connection became idle; `None` if it is not idle, or is being closed.
    fn idle_since(&self) -> Option<Instant> {
        let state = lock(&self.state);
        (state.running == 0 && !state.is_closing).then_some(state.idle_since)
    }
}

impl RequestActivity {
    /// Begins a request whose head has arrived.
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        lock(&activity.state).idle_since = Instant::now();
        Self { activity, is_running: AtomicBool::new(false) }
    }

    /// Marks the request as complete. Returns `false` if the connection is being closed: the request must not run then.
    pub(super) fn start(&self) -> bool {
        let mut state = lock(&self.activity.state);
        if !state.is_closing && !self.is_running.swap(true, Relaxed) {
            state.running += 1;
        }
        !state.is_closing
    }
}

impl Drop for RequestActivity {
    fn drop(&mut self) {
        let mut state = lock(&self.activity.state);
        state.idle_since = Instant::now();
        if self.is_running.load(Relaxed) {
            state.running -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    /// Opens `number` connections, one per second.
    async fn connections(number: usize) -> (Arc<ConnectionTracker>, Vec<Arc<Activity>>) {
        let connections = Arc::new(ConnectionTracker::default());
        let mut open = Vec::new();
        for _ in 0..number {
            open.push(connections.track());
            advance(Duration::from_secs(1)).await;
        }
        (connections, open)
    }

    fn closing(open: &[Arc<Activity>]) -> Vec<bool> {
        open.iter().map(|each| lock(&each.state).is_closing).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn longest_idle_connection_is_closed_first() {
        let (connections, open) = connections(3).await;
        drop(RequestActivity::new(open[0].clone()));
        assert!(connections.close_longest_idle());
        assert_eq!(closing(&open), [false, true, false]);
        open[1].close_requested().await;
        assert!(connections.close_longest_idle());
        assert_eq!(closing(&open), [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_running_request_is_not_closed() {
        let (connections, open) = connections(2).await;
        let (first, second) = (RequestActivity::new(open[0].clone()), RequestActivity::new(open[1].clone()));
        assert!(first.start() && second.start() && second.start());
        assert!(!connections.close_longest_idle());
        drop(first);
        assert!(connections.close_longest_idle());
        assert_eq!(closing(&open), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn request_on_closing_connection_does_not_run() {
        let (connections, open) = connections(1).await;
        let request = RequestActivity::new(open[0].clone());
        assert!(connections.close_longest_idle());
        assert!(!request.start());
        drop(request);
        assert_eq!(lock(&open[0].state).running, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn closed_connection_is_no_longer_tracked() {
        let (connections, open) = connections(1).await;
        drop(open);
        assert!(!connections.close_longest_idle());
    }
}
