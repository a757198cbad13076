//! The clocks of the shared store: one for durations, and the servers' for counters.

use std::sync::{Arc, Mutex};

use crate::{
    remote::lock,
    shared_store::server_clock::ServerClock,
    store::Now,
    time::{Clock, Stopwatch, Timestamp},
};

/// The clocks. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    started: Stopwatch,
    /// The clock of this replica.
    clock: Clock,
    servers: Arc<Mutex<ServerClock>>,
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instants {
    pub(super) local: Timestamp,
    pub(super) server: Now,
}

impl Clocks {
    /// The clocks before the first answer. A manual `clock` takes the place of the servers' clock.
    pub(super) fn new(clock: Clock) -> Self {
        Self { started: Stopwatch::start(), clock, servers: Arc::default() }
    }

    /// The local instant: monotonic, and of no meaning elsewhere.
    pub(super) fn local(&self) -> Timestamp {
        Timestamp::EPOCH.after(self.started.elapsed())
    }

    /// Adds the time that an answer shows, which arrived at the local instant `local`.
    pub(super) fn observe(&self, server: Timestamp, local: Timestamp) {
        lock(&self.servers).observe(server, local);
    }

    /// The current instants; `None` before the first answer.
    pub(super) fn now(&self) -> Option<Instants> {
        let local = self.local();
        if self.clock.is_manual() {
            return Some(Instants { local, server: Now { now: self.clock.now(), given_up: None } });
        }
        let mut servers = lock(&self.servers);
        let now = servers.now(local)?;
        let given_up = servers.given_up_at().map(|at| at.min(now));
        Some(Instants { local, server: Now { now, given_up } })
    }

    /// The instant of decisions without the store: by the servers' clock if it is known.
    pub(super) fn degraded(&self) -> Timestamp {
        self.now().map_or_else(|| self.clock.now(), |instants| instants.server.now)
    }
}
