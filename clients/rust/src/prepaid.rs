//! Slices of limits that are reserved in advance and spent without calls.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use crate::{
    Client, Decision, InvalidOptions, InvalidRequest, OnExpiry, OutOfRange, Outcome, Request, Terms,
    options::{DAY, MILLISECOND, in_range},
    request::CounterKey,
    slice_table::{Actions, End, SliceTable},
};

/// Options of [`PrepaidSlices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceOptions {
    /// Hits of a slice: at least 1. Default: 100.
    pub hits: u64,
    /// The time for which a slice is held at most: 1 ms to 24 h. A slice that lasts less than 50 ms is given back
    /// unused. Default: 5 s.
    pub ttl: Duration,
    /// Keys with slices: 1 to 1,000,000. Checks of further keys ask the server. Default: 100.
    pub keys_max: usize,
}

impl Default for SliceOptions {
    fn default() -> Self {
        Self { hits: 100, ttl: Duration::from_secs(5), keys_max: 100 }
    }
}

impl SliceOptions {
    /// Fails with the first option that is out of its range.
    pub(crate) fn validate(&self) -> Result<(), OutOfRange> {
        in_range("hits", self.hits, 1..=u64::MAX)?;
        in_range("ttl", self.ttl, MILLISECOND..=DAY)?;
        in_range("keys_max", self.keys_max, 1..=1_000_000)
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
///
/// Clones share the slices.
#[derive(Clone)]
pub struct PrepaidSlices(Arc<Shared>);

struct Shared {
    client: Client,
    options: SliceOptions,
    state: Mutex<State>,
    /// The number of keys with a state.
    keys: watch::Sender<usize>,
}

struct State {
    table: SliceTable,
    /// Wake a key when something is due.
    timers: HashMap<CounterKey, AbortHandle>,
}

impl PrepaidSlices {
    /// Slices of this client. Close the slices before the client.
    pub fn new(client: Client, options: SliceOptions) -> Result<Self, InvalidOptions> {
        options.validate()?;
        let state = Mutex::new(State { table: SliceTable::new(options), timers: HashMap::new() });
        Ok(Self(Arc::new(Shared { client, options, state, keys: watch::Sender::default() })))
    }

    /// Spends hits of the slice of the request's key. Without a slice, or if it has too few hits left, it is
    /// [`Client::check`]. So is a request with more hits than a slice, with hits or `on_expiry` of a descriptor, or with
    /// a [`request_id`](Request::request_id).
    pub async fn check(&self, request: &Request) -> Result<Decision, InvalidRequest> {
        let (begin, client) = (Instant::now(), &self.0.client);
        match self.0.spend(request, begin) {
            Some(decision) => {
                client.0.options.metrics.checked(Outcome::Prepaid, begin.elapsed());
                Ok(decision)
            }
            None => client.check(request).await,
        }
    }

    /// Settles all slices with what was spent, which takes at most four timeouts of the client and half a second.
    /// Checks from then on ask the server. If the program ends without it, slices stay charged as a whole.
    pub async fn close(&self) {
        self.0.end_slices();
        // An error says that the sender is gone, which this borrows.
        let _ = self.0.keys.subscribe().wait_for(|keys| *keys == 0).await;
    }
}

impl Shared {
    fn spend(self: &Arc<Self>, request: &Request, now: Instant) -> Option<Decision> {
        let mut state = self.lock();
        if !state.table.serves(request) {
            return None;
        }
        let key = self.client.0.hasher.key_of(request);
        let (decision, actions) = state.table.check(key, request, now);
        // What is due changes only with a call.
        if actions.reserve.is_some() || !actions.ends.is_empty() {
            self.act(&mut state, key, actions, now);
        }
        decision
    }

    fn end_slices(self: &Arc<Self>) {
        let (mut state, now) = (self.lock(), Instant::now());
        for (key, actions) in state.table.close(now) {
            self.act(&mut state, key, actions, now);
        }
    }

    /// Takes an event of a key.
    fn step(self: &Arc<Self>, key: CounterKey, event: impl FnOnce(&mut SliceTable, Instant) -> Actions) {
        let (mut state, now) = (self.lock(), Instant::now());
        let actions = event(&mut state.table, now);
        let lost = actions.lost;
        self.act(&mut state, key, actions, now);
        drop(state);
        if lost > 0 {
            self.client.0.options.metrics.lost(lost);
        }
    }

    /// Begins the calls of a key, and sets its timer.
    fn act(self: &Arc<Self>, state: &mut State, key: CounterKey, actions: Actions, now: Instant) {
        let runtime = &self.client.0.runtime;
        if let Some(request) = actions.reserve {
            runtime.spawn(self.clone().reserve(key, request));
        }
        for end in actions.ends {
            runtime.spawn(self.clone().end(key, end));
        }
        if let Some(timer) = state.timers.remove(&key) {
            timer.abort();
        }
        if let Some(at) = state.table.next_due(key, now) {
            let shared = self.clone();
            let timer = runtime.spawn(async move {
                sleep_until(at).await;
                shared.step(key, |table, now| table.due(key, now));
            });
            state.timers.insert(key, timer.abort_handle());
        }
        self.keys.send_replace(state.table.len());
    }

    async fn reserve(self: Arc<Self>, key: CounterKey, request: Request) {
        let terms = Terms { ttl: self.options.ttl, on_expiry: OnExpiry::Charge };
        let result = self.client.reserve(&request, terms).await;
        self.step(key, |table, now| table.reserved(key, result, now));
    }

    async fn end(self: Arc<Self>, key: CounterKey, end: Arc<End>) {
        let result = match end.spent {
            Some(spent) => end.reservation.settle(spent).await,
            None => end.reservation.cancel().await,
        };
        self.step(key, |table, now| table.ended(key, &end, &result, now));
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
