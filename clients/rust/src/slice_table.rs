//! The state of prepaid slices, without calls and without a clock.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    Decision, Error, InvalidRequest, Request, Reservation, Settlement, SliceOptions, Source,
    request::CounterKey,
};

/// The longest pause between attempts to reserve a slice that the server refuses.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A slice that lasts less is not worth its calls.
const LASTS_MIN: Duration = Duration::from_millis(50);
/// Pauses before an end without an answer is repeated.
const END_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// The slices of all keys.
pub(crate) struct SliceTable {
    options: SliceOptions,
    keys: HashMap<CounterKey, KeyState>,
    closed: bool,
}

/// What an event begins for its key.
#[derive(Default)]
pub(crate) struct Actions {
    pub(crate) ends: Vec<Arc<End>>,
    /// The request whose hits are reserved.
    pub(crate) reserve: Option<Request>,
    /// Hits that stay charged.
    pub(crate) lost: u64,
}

/// A settlement or a cancellation of a reservation.
pub(crate) struct End {
    pub(crate) reservation: Reservation,
    /// The hits of the slice that were spent. None to cancel the reservation, because it is no slice.
    pub(crate) spent: Option<u64>,
    /// Hits that stay charged if the end has no answer.
    unspent: u64,
}

struct KeyState {
    request: Request,
    slice: Option<Slice>,
    is_reserving: bool,
    /// When the last reservation was sent.
    begin: Instant,
    /// Nothing is reserved until this instant.
    paused_until: Option<Instant>,
    /// Ends that are under way or wait to be repeated.
    ends: Vec<PendingEnd>,
}

struct PendingEnd {
    end: Arc<End>,
    /// Attempts without an answer.
    attempts: usize,
    /// When the end is sent again. None while a call is under way.
    repeat_at: Option<Instant>,
}

/// Hits that this process may spend.
struct Slice {
    reservation: Reservation,
    /// When the slice begins here: before the instant of the server, so it ends no later than there.
    begin: Instant,
    renew_at: Instant,
    until: Instant,
    left: u64,
    /// Whether little is left, or a check did not fit.
    is_low: bool,
}

impl SliceTable {
    /// A table without slices.
    pub(crate) fn new(options: SliceOptions) -> Self {
        Self { options, keys: HashMap::new(), closed: false }
    }

    /// The number of keys with a state.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether a request may be spent from slices.
    pub(crate) fn serves(&self, request: &Request) -> bool {
        request.hits <= self.options.hits
            && request.request_id.is_empty()
            && request.descriptors.iter().all(|each| each.hits.is_none() && each.on_expiry.is_none())
    }

    /// The decision of a slice. Without one, the server decides.
    pub(crate) fn check(
        &mut self,
        key: CounterKey,
        request: &Request,
        now: Instant,
    ) -> (Option<Decision>, Actions) {
        let mut actions = self.due(key, now);
        let (slice_hits, keys) = (self.options.hits, self.keys.len());
        let state = match self.keys.entry(key) {
            Entry::Occupied(state) => state.into_mut(),
            Entry::Vacant(vacant) => {
                if !self.closed && keys < self.options.keys_max {
                    let request = request.clone().hits(slice_hits);
                    actions.reserve = Some(request.clone());
                    vacant.insert(KeyState::reserving(request, now));
                }
                return (None, actions);
            }
        };
        let Some(slice) = &mut state.slice else { return (None, actions) };
        let left = slice.left.checked_sub(request.hits.max(1));
        slice.left = left.unwrap_or(slice.left);
        slice.is_low |= left.is_none() || slice.left <= slice_hits / 4;
        let decision = left.map(|_| slice.decision(now));
        state.renew(now, &mut actions);
        (decision, actions)
    }

    /// Takes the answer to a reservation.
    pub(crate) fn reserved(
        &mut self,
        key: CounterKey,
        result: Result<Reservation, InvalidRequest>,
        now: Instant,
    ) -> Actions {
        let mut actions = Actions::default();
        let Self { options: SliceOptions { hits, ttl, .. }, closed, .. } = *self;
        let Some(state) = self.keys.get_mut(&key) else { return actions };
        state.is_reserving = false;
        match result {
            Ok(reservation) if !closed && lasts(&reservation, ttl) >= LASTS_MIN => {
                state.settle(hits, &mut actions);
                let (begin, lasts) = (state.begin, lasts(&reservation, ttl));
                let (renew_at, until) = (begin + (lasts - lasts / 4), begin + lasts);
                state.slice = Some(Slice { reservation, begin, renew_at, until, left: hits, is_low: false });
            }
            Ok(reservation) => {
                let Decision { source, retry_after, .. } = reservation.decision;
                let wait = retry_after.filter(|wait| !wait.is_zero()).unwrap_or(REFUSED_PAUSE_MAX);
                state.paused_until = Some(now + wait.min(REFUSED_PAUSE_MAX));
                if !reservation.id.is_empty() {
                    // Without an answer, it is not known whether hits are held.
                    let unspent = if source == Source::Server { hits } else { 0 };
                    state.end(End { reservation, spent: None, unspent }, &mut actions);
                }
            }
            // The check that asked the server has the same error.
            Err(InvalidRequest(_)) => state.paused_until = Some(now + REFUSED_PAUSE_MAX),
        }
        self.advance(key, now, &mut actions);
        actions
    }

    /// Takes the answer to an end.
    pub(crate) fn ended(
        &mut self,
        key: CounterKey,
        end: &Arc<End>,
        result: &Result<Settlement, Error>,
        now: Instant,
    ) -> Actions {
        let mut actions = Actions::default();
        let Some(state) = self.keys.get_mut(&key) else { return actions };
        let Some(index) = state.ends.iter().position(|pending| Arc::ptr_eq(&pending.end, end)) else {
            return actions;
        };
        let pending = &mut state.ends[index];
        let pause = match result {
            Err(Error::NoAnswer(_)) => END_PAUSES.get(pending.attempts),
            Ok(_) | Err(Error::InvalidRequest(_)) => None,
        };
        if let Some(pause) = pause {
            pending.repeat_at = Some(now + *pause);
            pending.attempts += 1;
        } else {
            state.ends.remove(index);
            actions.lost = if result.is_err() { end.unspent } else { 0 };
        }
        self.advance(key, now, &mut actions);
        actions
    }

    /// Ends all slices.
    pub(crate) fn close(&mut self, now: Instant) -> Vec<(CounterKey, Actions)> {
        self.closed = true;
        let keys: Vec<_> = self.keys.keys().copied().collect();
        let close = |key| {
            let mut actions = Actions::default();
            if let Some(state) = self.keys.get_mut(&key) {
                state.settle(self.options.hits, &mut actions);
            }
            self.advance(key, now, &mut actions);
            (key, actions)
        };
        keys.into_iter().map(close).collect()
    }

    /// Does what is due at this instant.
    pub(crate) fn due(&mut self, key: CounterKey, now: Instant) -> Actions {
        let mut actions = Actions::default();
        self.advance(key, now, &mut actions);
        actions
    }

    /// The next instant after `now` at which something is due.
    pub(crate) fn next_due(&self, key: CounterKey, now: Instant) -> Option<Instant> {
        let state = self.keys.get(&key)?;
        let slice = state.slice.iter().flat_map(|slice| [slice.renew_at, slice.until]);
        let repeats = state.ends.iter().filter_map(|pending| pending.repeat_at);
        slice.chain(state.paused_until).chain(repeats).filter(|at| *at > now).min()
    }

    /// Does what is due, and forgets a key of which nothing is left.
    fn advance(&mut self, key: CounterKey, now: Instant, actions: &mut Actions) {
        let Some(state) = self.keys.get_mut(&key) else { return };
        for pending in &mut state.ends {
            if pending.repeat_at.take_if(|at| *at <= now).is_some() {
                actions.ends.push(pending.end.clone());
            }
        }
        state.paused_until = state.paused_until.filter(|until| !self.closed && now < *until);
        let hits = self.options.hits;
        if state.slice.as_ref().is_some_and(|slice| slice.is_over(hits, now)) {
            state.settle(hits, actions);
        } else {
            state.renew(now, actions);
        }
        if state.slice.is_none() && state.is_idle() {
            self.keys.remove(&key);
        }
    }
}

impl KeyState {
    fn reserving(request: Request, now: Instant) -> Self {
        Self { request, slice: None, is_reserving: true, begin: now, paused_until: None, ends: Vec::new() }
    }

    /// Whether no call is under way and no pause goes on. One call at a time bounds them.
    fn is_idle(&self) -> bool {
        !self.is_reserving && self.paused_until.is_none() && self.ends.is_empty()
    }

    fn renew(&mut self, now: Instant, actions: &mut Actions) {
        let is_due = self.slice.as_ref().is_some_and(|slice| slice.is_low || now >= slice.renew_at);
        if is_due && self.is_idle() {
            self.is_reserving = true;
            self.begin = now;
            actions.reserve = Some(self.request.clone());
        }
    }

    fn settle(&mut self, hits: u64, actions: &mut Actions) {
        if let Some(Slice { reservation, left, .. }) = self.slice.take() {
            self.end(End { reservation, spent: Some(hits - left), unspent: left }, actions);
        }
    }

    fn end(&mut self, end: End, actions: &mut Actions) {
        let end = Arc::new(end);
        actions.ends.push(end.clone());
        self.ends.push(PendingEnd { end, attempts: 0, repeat_at: None });
    }
}

impl Slice {
    /// Whether a slice of this many hits ends, or is not worth a renewal because it is not used.
    fn is_over(&self, hits: u64, now: Instant) -> bool {
        now >= self.until || (self.left == hits && now >= self.renew_at)
    }

    fn decision(&self, now: Instant) -> Decision {
        let mut decision = self.reservation.decision.later(Source::Prepaid, now - self.begin);
        for limit in &mut decision.limits {
            limit.remaining = limit.remaining.saturating_add(self.left);
        }
        decision
    }
}

/// The time for which a reservation may be spent; 0 if it may not.
fn lasts(reservation: &Reservation, ttl: Duration) -> Duration {
    let Decision { source, delay, limits, .. } = &reservation.decision;
    // A turn in a queue cannot be spent later.
    if reservation.id.is_empty() || *source != Source::Server || !delay.is_zero() {
        return Duration::ZERO;
    }
    // Hits of a window that has ended must not be spent in the next one.
    limits.iter().map(|limit| limit.reset_after).fold(ttl, Duration::min)
}
