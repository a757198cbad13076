//! What all streams share: the dividers, the outboxes and the bounds.

use std::{
    net::SocketAddr,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_counter::{
    descriptor::Key,
    metrics::MetricCounter,
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter::Limiter;
use tollgate_store::divider::{
    Assignments, Divide, Dividers, SUBSCRIBERS_LISTED_MAX, SubscriberId, SubscriberReport, Subscribers,
};
use tonic::Status;

use crate::{
    bucket::QuotaAction,
    memory::{BucketOwner, CallerNumber, QuotaMemory},
    outbox::Outbox,
    settings::QuotaSettings,
};

/// How often turns without a report are made.
const TURN_EVERY: Duration = Duration::from_millis(50);

/// Approximate memory of a stream without its domain and its buckets, in bytes.
const STREAM_BYTES: usize = 4 * 1024;

/// The rate limit quota service.
#[derive(Debug)]
pub struct QuotaService {
    pub(super) limiter: Limiter,
    pub(super) dividers: Arc<Dividers>,
    // The dividers of all replicas, in a cluster.
    cluster: Option<Arc<dyn Divide>>,
    // This replica among those of the cluster; without one, this process among those that have gone on with one snapshot.
    pub(super) replica: u64,
    pub(super) settings: QuotaSettings,
    pub(super) memory: QuotaMemory,
    pub(super) stats: QuotaStats,
    clock: Clock,
    outboxes: DashMap<u64, Arc<Outbox>, FxBuildHasher>,
    next_stream: AtomicU32,
}

/// What has happened to streams and their buckets.
#[derive(Debug, Default)]
pub(super) struct QuotaStats {
    pub(super) streams: AtomicUsize,
    pub(super) buckets: AtomicUsize,
    pub(super) reports: MetricCounter,
    pub(super) allowed: MetricCounter,
    pub(super) denied: MetricCounter,
    pub(super) assignments: MetricCounter,
    pub(super) abandoned: MetricCounter,
    pub(super) refused_streams: MetricCounter,
    pub(super) invalid: MetricCounter,
    pub(super) unassigned: MetricCounter,
    pub(super) implausible: MetricCounter,
    pub(super) too_many: MetricCounter,
}

impl QuotaService {
    /// A service whose rules are those of `limiter`. All counters are divided by `dividers`.
    pub fn new(limiter: Limiter, dividers: Arc<Dividers>, clock: Clock, settings: QuotaSettings) -> Self {
        Self {
            limiter,
            dividers,
            cluster: None,
            replica: clock.now().as_nanos(),
            settings,
            memory: QuotaMemory::new(settings.memory),
            stats: QuotaStats::default(),
            clock,
            outboxes: DashMap::default(),
            next_stream: AtomicU32::new(1),
        }
    }

    /// Joins the service to a cluster as the replica `replica`: counters are divided where they are.
    #[must_use]
    pub fn in_cluster(self, replica: u64, cluster: Arc<dyn Divide>) -> Self {
        Self { replica, cluster: Some(cluster), ..self }
    }

    /// Sends reports to the dividers of their counters.
    pub(super) fn report(&self, reports: Vec<SubscriberReport>) {
        if let Some(cluster) = &self.cluster {
            return cluster.report(reports);
        }
        let now = self.clock.now();
        self.deliver(reports.iter().flat_map(|report| self.dividers.report(report, now)).collect());
    }

    /// The number and the outbox of another stream, of the client at this address.
    pub(super) fn open(
        &self,
        caller: CallerNumber,
        client: Option<SocketAddr>,
    ) -> Result<(BucketOwner, Arc<Outbox>), Status> {
        self.take_memory(caller, STREAM_BYTES)?;
        self.stats.streams.fetch_add(1, Ordering::Relaxed);
        let stream = caller.stream(self.next_stream.fetch_add(1, Ordering::Relaxed));
        let outbox = Arc::new(Outbox::new(client));
        self.outboxes.insert(stream, outbox.clone());
        Ok((BucketOwner { caller, stream }, outbox))
    }

    /// Takes memory for a stream of this caller, without its buckets.
    pub(super) fn take_memory(&self, caller: CallerNumber, bytes: usize) -> Result<(), Status> {
        if self.memory.take(caller, bytes, self.now()) {
            return Ok(());
        }
        self.stats.refused_streams.increase();
        Err(Status::resource_exhausted("the caller has its share of the memory for quotas: see rlqs.memory"))
    }

    /// Ends a stream with a domain of this size.
    pub(super) fn close(&self, BucketOwner { caller, stream }: BucketOwner, domain: usize) {
        self.outboxes.remove(&stream);
        self.stats.streams.fetch_sub(1, Ordering::Relaxed);
        self.memory.give_back(caller, STREAM_BYTES + domain, self.now());
    }

    /// Makes the turns of dividers that are due, and sends new rules to streams, for as long as it is polled.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = interval(TURN_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Kept, so that no other rules take its place in memory.
        let mut rules = self.limiter.view();
        loop {
            ticks.tick().await;
            self.turn();
            let view = self.limiter.view();
            if !ptr::eq(view.rules(), rules.rules()) {
                rules = view;
                self.outboxes.iter().for_each(|outbox| outbox.announce_rules());
            }
        }
    }

    /// Makes the turns of dividers that are due. In a cluster replicas make those of the counters that they own.
    pub fn turn(&self) {
        if self.cluster.is_none() {
            self.deliver(self.dividers.turn(self.clock.now(), |_| true));
        }
    }

    /// Passes assignments to their streams.
    pub fn deliver(&self, assignments: Assignments) {
        for of_stream in assignments.chunk_by(|(one, _), (other, _)| one.stream == other.stream) {
            if let Some(outbox) = self.outboxes.get(&of_stream[0].0.stream) {
                outbox.push(
                    of_stream.iter().map(|(id, assignment)| (id.bucket, QuotaAction::Assign(*assignment))),
                );
            }
        }
    }

    /// The subscribers of the counter of `key`, as many as are displayed; `None` if it is not divided here.
    pub fn subscribers(&self, key: Key) -> Option<Arc<Subscribers>> {
        self.dividers.subscribers(key, SUBSCRIBERS_LISTED_MAX, self.clock.now()).map(Arc::new)
    }

    /// The address of the client of a stream of this replica, while the stream is open.
    pub fn client(&self, id: SubscriberId) -> Option<SocketAddr> {
        self.outboxes.get(&id.stream).filter(|_| id.replica == self.replica)?.client
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Memory that streams, their buckets and the divisions of these take, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.bytes(self.now())
    }

    /// The number of buckets that were refused, for lack of memory or of a place of their limit.
    pub(super) fn refused_buckets(&self) -> u64 {
        self.stats.too_many.get() + self.dividers.stats().refused.get()
    }
}
