//! What all streams share: the dividers, the outboxes and the bounds.

use std::{
    collections::HashMap,
    net::SocketAddr,
    ptr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};
use tollgate_limiter::{
    descriptor::Key,
    divider::{Assignments, Dividers, Subscribers},
    limiter::Limiter,
    store::Memory,
    time::{Clock, Timestamp},
};
use tonic::Status;

use crate::api::rlqs::{
    Settings,
    action::Action,
    outbox::Outbox,
    stats::{Reading, Stats},
};

/// How often turns without a report are made.
const TURN_EVERY: Duration = Duration::from_millis(50);

/// The rate limit quota service.
#[derive(Debug)]
pub struct QuotaService {
    pub(super) limiter: Limiter,
    pub(super) dividers: Dividers,
    pub(super) memory: Arc<Memory>,
    pub(super) settings: Settings,
    pub(super) stats: Stats,
    clock: Clock,
    outboxes: RwLock<HashMap<u64, Arc<Outbox>>>,
    next_stream: AtomicU64,
}

impl QuotaService {
    /// A service whose rules are those of `limiter`, with all counters in `memory`.
    pub fn new(limiter: Limiter, memory: Arc<Memory>, clock: Clock, settings: Settings) -> Self {
        Self {
            limiter,
            dividers: Dividers::new(memory.clone(), clock.now()),
            memory,
            settings,
            stats: Stats::default(),
            clock,
            outboxes: RwLock::default(),
            next_stream: AtomicU64::new(1),
        }
    }

    /// The number and the outbox of another stream, of the client at this address.
    pub(super) fn open(&self, client: Option<SocketAddr>) -> Result<(u64, Arc<Outbox>), Status> {
        if !Stats::take(&self.stats.streams, self.settings.max_streams) {
            self.stats.refused_streams.increase();
            return Err(Status::resource_exhausted("too many streams of quotas: see rlqs.max_streams"));
        }
        let (stream, outbox) =
            (self.next_stream.fetch_add(1, Ordering::Relaxed), Arc::new(Outbox::new(client)));
        self.outboxes.write().unwrap_or_else(PoisonError::into_inner).insert(stream, outbox.clone());
        Ok((stream, outbox))
    }

    /// Ends a stream.
    pub(super) fn close(&self, stream: u64) {
        self.outboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&stream);
        Stats::give_back(&self.stats.streams, 1);
    }

    /// Makes the turns of dividers that are due, and sends new rules to streams, for as long as it is polled.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = interval(TURN_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Kept, so that no other rules take its place in memory.
        let mut rules = self.limiter.view();
        loop {
            ticks.tick().await;
            self.deliver(self.dividers.turn(self.clock.now()));
            let view = self.limiter.view();
            if !ptr::eq(view.rules(), rules.rules()) {
                rules = view;
                let outboxes = self.outboxes.read().unwrap_or_else(PoisonError::into_inner);
                outboxes.values().for_each(|outbox| outbox.announce_rules());
            }
        }
    }

    /// Passes assignments to their streams.
    pub(super) fn deliver(&self, assignments: Assignments) {
        if assignments.is_empty() {
            return;
        }
        let outboxes = self.outboxes.read().unwrap_or_else(PoisonError::into_inner);
        for (id, assignment) in assignments {
            if let Some(outbox) = outboxes.get(&id.stream) {
                outbox.push(id.bucket, Action::Assign(assignment));
            }
        }
    }

    /// The subscribers of the counter of `key`, at most `max` of them; `None` if it is not divided.
    pub fn subscribers(&self, key: Key, max: usize) -> Option<Subscribers> {
        self.dividers.subscribers(key, max, self.now())
    }

    /// The address of the client of a stream, while the stream is open.
    pub fn client(&self, stream: u64) -> Option<SocketAddr> {
        self.outboxes.read().unwrap_or_else(PoisonError::into_inner).get(&stream)?.client()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The numbers of this moment.
    pub fn reading(&self) -> Reading {
        let (stats, dividers) = (&self.stats, self.dividers.stats());
        let granted = self.dividers.granted(self.now());
        Reading {
            streams: stats.streams.load(Ordering::Relaxed),
            buckets: stats.buckets.load(Ordering::Relaxed),
            divided: self.dividers.len(),
            granted_per_second: granted.rate.per_second,
            granted_hits: granted.hits,
            reports: stats.reports.get(),
            allowed: stats.allowed.get(),
            denied: stats.denied.get(),
            beyond_grant: dividers.beyond_grant.get(),
            convergence: dividers.convergence.buckets(),
            assignments: stats.assignments.get(),
            abandoned: stats.abandoned.get(),
            refused_streams: stats.refused_streams.get(),
            invalid: stats.invalid.get(),
            too_many: stats.too_many.get(),
        }
    }
}
