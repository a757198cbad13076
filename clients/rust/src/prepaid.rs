//! Slices of limits that are reserved in advance and spent without calls.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    Client, Decision, InvalidOptions, InvalidRequest, OnExpiry, Outcome, Request, Reservation, Source, Terms,
    request::CounterKey, reservation::repeated,
};

/// Between attempts to reserve a slice that the server refuses.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A slice that ends sooner is not worth the calls that reserve and settle it.
const LASTS_MIN: Duration = Duration::from_millis(50);

/// Those that a server takes.
const TTLS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);

/// Options of [`Prepaid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// Hits of a slice. Default: 100.
    pub hits: u64,
    /// The time for which a slice is held at most: 1 ms to 24 h. A slice that lasts less than 50 ms is given back
    /// unused. Default: 5 s.
    pub ttl: Duration,
    /// Keys with slices. Checks of further keys go to the server. Default: 100.
    pub keys_max: usize,
}

impl Default for Slices {
    fn default() -> Self {
        Self { hits: 100, ttl: Duration::from_secs(5), keys_max: 100 }
    }
}

/// Decides requests of keys with very many checks: it reserves a slice of the limit, and spends it without a call for
/// each check. The hits of a slice count from its reservation, so no more passes than the limit. What a slice has left
/// is given back when it is renewed, or not used any more, or closed.
///
/// While clients hold slices, others may be refused although not all hits are used. A slice ends before the window of
/// its limit. It needs windows or buckets that are much larger than a slice; of a bucket, a slice has at least as many
/// hits as the bucket refills in the time that the slice shall last. Of a `sliding_log`, slices end as often as a hit
/// leaves the log.
pub struct Prepaid {
    shared: Arc<Shared>,
    keepers: Mutex<JoinSet<()>>,
    closed: watch::Sender<bool>,
}

struct Shared {
    client: Client,
    slices: Slices,
    /// Keys that have a keeper. None while the first slice is being reserved, or was refused.
    keys: Mutex<HashMap<CounterKey, Option<Slice>>>,
}

struct Slice {
    reservation: Reservation,
    left: u64,
    until: Instant,
    /// Wakes the keeper when little is left.
    low: Arc<Notify>,
}

impl Prepaid {
    /// Slices of this client.
    pub fn new(client: Client, slices: Slices) -> Result<Self, InvalidOptions> {
        if slices.hits == 0 {
            return Err(InvalidOptions::Zero("hits"));
        }
        if !TTLS.contains(&slices.ttl) {
            return Err(InvalidOptions::Ttl(slices.ttl));
        }
        let shared = Arc::new(Shared { client, slices, keys: Mutex::default() });
        Ok(Self { shared, keepers: Mutex::default(), closed: watch::Sender::new(false) })
    }

    /// Spends hits of the slice of the request's key. Without a slice, or if it has too few hits left, it is
    /// [`Client::check`]. So is a request with more hits than a slice, with hits of its own for a descriptor, or with a
    /// [`request_id`](Request::request_id).
    pub async fn check(&self, request: &Request) -> Result<Decision, InvalidRequest> {
        let (begin, client) = (Instant::now(), &self.shared.client.0);
        if self.shared.may_spend(request) {
            let key = client.hasher.key_of(request);
            match self.shared.spend(key, request.hits.max(1)) {
                Spent::Allowed(decision) => {
                    client.options.metrics.checked(Outcome::Prepaid, begin.elapsed());
                    return Ok(decision);
                }
                Spent::NotEnough => {}
                Spent::NoKeeper => self.keep(key, request),
            }
        }
        self.shared.client.check(request).await
    }

    /// Settles all slices with what was spent. Checks from then on go to the server. Without it, slices stay charged
    /// as a whole.
    pub async fn close(&self) {
        self.closed.send_replace(true);
        let mut keepers = std::mem::take(&mut *lock(&self.keepers));
        while keepers.join_next().await.is_some() {}
    }

    fn keep(&self, key: CounterKey, request: &Request) {
        let mut keepers = lock(&self.keepers);
        if *self.closed.borrow() {
            return;
        }
        while keepers.try_join_next().is_some() {}
        let mut keys = lock(&self.shared.keys);
        if keys.len() >= self.shared.slices.keys_max || keys.contains_key(&key) {
            return;
        }
        keys.insert(key, None);
        let request = request.clone().hits(self.shared.slices.hits);
        keepers.spawn(self.shared.clone().keep(key, request, self.closed.subscribe()));
    }
}

enum Spent {
    Allowed(Decision),
    NotEnough,
    NoKeeper,
}

impl Shared {
    fn may_spend(&self, request: &Request) -> bool {
        request.hits <= self.slices.hits
            && request.request_id.is_none()
            && request.descriptors.iter().all(|descriptor| descriptor.hits.is_none())
    }

    fn spend(&self, key: CounterKey, hits: u64) -> Spent {
        let mut keys = lock(&self.keys);
        let Some(slice) = keys.get_mut(&key) else { return Spent::NoKeeper };
        let now = Instant::now();
        let Some(slice) = slice.as_mut().filter(|slice| now < slice.until) else {
            return Spent::NotEnough;
        };
        if slice.left <= hits.saturating_add(self.slices.hits / 4) {
            slice.low.notify_one();
        }
        let Some(left) = slice.left.checked_sub(hits) else { return Spent::NotEnough };
        slice.left = left;
        let reservation = &slice.reservation;
        let mut decision = reservation.decision.later(Source::Prepaid, now - reservation.begin);
        for limit in &mut decision.limits {
            limit.remaining = limit.remaining.saturating_add(left);
        }
        Spent::Allowed(decision)
    }

    /// Keeps a slice of one key until it is not used for the time of a slice.
    async fn keep(self: Arc<Self>, key: CounterKey, request: Request, mut closed: watch::Receiver<bool>) {
        loop {
            let Some(slice) = self.reserve(&request, &mut closed).await else { break };
            let renew_at = slice.until - (slice.until - Instant::now()) / 4;
            let low = slice.low.clone();
            let before = lock(&self.keys).insert(key, Some(slice));
            self.settle(before.flatten()).await;
            tokio::select! {
                () = low.notified() => {}
                () = sleep_until(renew_at) => if !self.is_used(key) {
                    break;
                },
                // An error says that it was dropped.
                _ = closed.wait_for(|closed| *closed) => break,
            }
        }
        let last = lock(&self.keys).remove(&key);
        self.settle(last.flatten()).await;
    }

    /// None if the slice is refused, after a pause.
    async fn reserve(&self, request: &Request, closed: &mut watch::Receiver<bool>) -> Option<Slice> {
        let terms = Terms { ttl: self.slices.ttl, on_expiry: OnExpiry::Charge };
        let reservation = self.client.reserve(request, terms).await.ok()?;
        let decision = &reservation.decision;
        // Hits of a window that has ended must not be spent in the next one.
        let times = decision.limits.iter().map(|limit| limit.reset_after).chain([self.slices.ttl]);
        let lasts = times.min().unwrap_or_default();
        if reservation.is_held() && decision.delay.is_zero() && lasts >= LASTS_MIN {
            // Counted from an instant before the server's.
            let until = reservation.begin + lasts;
            return Some(Slice { reservation, left: self.slices.hits, until, low: Arc::default() });
        }
        // It may be held: for too short a time, with a place in a queue, or without an answer. If it cannot be given
        // back, it stays charged.
        let _ = repeated(|| reservation.cancel()).await;
        let pause = decision.retry_after.unwrap_or(REFUSED_PAUSE_MAX).min(REFUSED_PAUSE_MAX);
        tokio::select! {
            () = sleep(pause) => {}
            _ = closed.wait_for(|closed| *closed) => {}
        }
        None
    }

    fn is_used(&self, key: CounterKey) -> bool {
        let keys = lock(&self.keys);
        let slice = keys.get(&key).and_then(Option::as_ref);
        slice.is_some_and(|slice| slice.left < self.slices.hits)
    }

    async fn settle(&self, slice: Option<Slice>) {
        if let Some(slice) = slice {
            let spent = self.slices.hits - slice.left;
            let settled = repeated(|| slice.reservation.settle(spent)).await;
            if settled.is_err() && slice.left > 0 {
                // The slice stays charged as a whole.
                self.client.0.options.metrics.lost_hits(slice.left);
            }
        }
    }
}

/// No code panics while it holds one of the locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
