//! How far a replay is, and whether it is to stop.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The progress of a replay, which another thread shows. Only numbers: no order between them matters.
#[derive(Debug, Default)]
pub(super) struct Progress {
    bytes: AtomicU64,
    // 0 if unknown.
    bytes_max: AtomicU64,
    requests: AtomicU64,
    passes: AtomicU64,
    is_stopped: AtomicBool,
}

impl Progress {
    /// Begins a pass over an input of this size.
    pub(super) fn begin(&self, bytes_max: u64) {
        self.bytes.store(0, Relaxed);
        self.bytes_max.store(bytes_max, Relaxed);
        self.passes.fetch_add(1, Relaxed);
    }

    pub(super) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn add_requests(&self, requests: u64) {
        self.requests.fetch_add(requests, Relaxed);
    }

    /// Asks the replay to end with what it has.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Relaxed)
    }

    /// A line for a terminal, `elapsed` after the start.
    pub(super) fn line(&self, elapsed: Duration) -> String {
        let requests = self.requests.load(Relaxed);
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let mut line = format!("{requests} requests, {:.0} a second", requests as f64 / seconds);
        let bytes = self.bytes.load(Relaxed);
        let bytes_max = self.bytes_max.load(Relaxed);
        let passes = self.passes.load(Relaxed);
        if passes > 1 {
            line.push_str(&format!(", pass {passes}"));
        }
        if bytes_max > 0 && bytes > 0 {
            let share = (bytes as f64 / bytes_max as f64).min(1.0);
            line.push_str(&format!(", {:.0} %", share * 100.0));
            if passes == 1 {
                line.push_str(&format!(", {:.0} s left", seconds * (1.0 - share) / share));
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_rate_and_time_left() {
        let progress = Progress::default();
        progress.begin(1_000);
        progress.add_bytes(250);
        progress.add_requests(600);
        assert_eq!(progress.line(Duration::from_secs(3)), "600 requests, 200 a second, 25 %, 9 s left");
        progress.begin(1_000);
        assert_eq!(progress.line(Duration::from_secs(3)), "600 requests, 200 a second, pass 2");
    }
}
