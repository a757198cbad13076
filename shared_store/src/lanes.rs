//! The lanes: give each part to its lane, and send the batches of a lane one after the other while parts wait.
//!
//! What waits until the store answers goes to the lanes too: withdrawals, and charges that local shares have admitted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use redis::RedisResult;
use smallvec::SmallVec;
use tokio::sync::{Semaphore, oneshot};
use tollgate_counter::{
    descriptor::Key,
    lock::lock,
    metrics::Histogram,
    resilience::BreakerState,
    time::{Stopwatch, Timestamp},
};
use tollgate_remote::{Admitted, CounterCheck, CounterChecks, LATE_MAX, MEMORY_DIVISOR, SubmissionMode};
use tollgate_store::{Check, CounterOperation, HoldOutcome, OperationOutcome};

use crate::{
    StoreParts,
    batch::{BatchPart, PartOutcomes, StoreBatch},
    clocks::Clocks,
    connection::{Link, StoreConnection},
    failure::{BatchFailure, LastFailure, unexpected, within},
    lane::{Lane, LaneAnswers, LaneStep},
    script::{self, SCRIPT, SOURCE},
    settings::{SharedStoreSettings, StoreMode},
    stats::{ROUND_TRIP_BOUNDS, SharedStoreCounters},
};

/// The lanes, and the links that their batches take.
#[derive(Debug)]
pub(super) struct Lanes {
    settings: Arc<SharedStoreSettings>,
    clocks: Clocks,
    counts: Arc<SharedStoreCounters>,
    each: Box<[Mutex<Lane>]>,
    pub(super) links: Box<[Link]>,
    pub(super) last_failure: LastFailure,
    /// The withdrawals that may still be opened.
    withdrawals: Arc<Semaphore>,
    pub(super) round_trips: Histogram,
}

impl Lanes {
    /// Lanes without a connection, of the replica with this number.
    pub(super) fn new(
        settings: Arc<SharedStoreSettings>,
        clocks: Clocks,
        counts: Arc<SharedStoreCounters>,
        replica: u64,
    ) -> Self {
        let known_bytes = settings.memory_limit - settings.memory_limit / MEMORY_DIVISOR;
        let known_bytes_max = usize::try_from(known_bytes).unwrap_or(usize::MAX) / settings.lanes();
        let lane = |_| Mutex::new(Lane::new(known_bytes_max, replica));
        Self {
            each: (0..settings.lanes()).map(lane).collect(),
            links: (0..settings.connections).map(|_| Link::new()).collect(),
            last_failure: LastFailure::default(),
            withdrawals: Arc::new(Semaphore::new(WITHDRAWALS_MAX)),
            round_trips: Histogram::new(&ROUND_TRIP_BOUNDS),
            settings,
            clocks,
            counts,
        }
    }

    /// The number of lanes whose circuit breaker is not closed.
    pub(super) fn breakers_open(&self) -> usize {
        let local = self.clocks.local();
        self.each.iter().filter(|lane| lock(lane).breaker.state(local) != BreakerState::Closed).count()
    }

    /// The refusal of a check whose counter is known to be exhausted.
    pub(super) fn refuse_known(&self, check: &Check<'_>) -> Option<OperationOutcome> {
        let instants = self.clocks.now()?;
        let refusal = lock(&self.each[self.settings.lane_of(check.key)]).refuse_known(check, instants)?;
        self.counts.refused_locally.increase();
        Some(refusal)
    }

    /// Forgets what is known of a counter that another replica has refunded or reset.
    pub(super) fn forget(&self, key: Key) {
        lock(&self.each[self.settings.lane_of(key)]).forget(key);
    }

    /// Forgets all that is known.
    pub(super) fn forget_all(&self) {
        self.each.iter().for_each(|lane| lock(lane).forget_all());
    }

    /// The local instant `within` from now.
    pub(super) fn deadline(&self, within: Duration) -> Timestamp {
        self.clocks.local().after(within)
    }

    /// Lets a lane decide a part, and waits for the outcomes; `None` if the store does not decide it.
    pub(super) async fn apply(self: &Arc<Self>, part: BatchPart) -> Option<PartOutcomes> {
        let (reply, outcomes) = oneshot::channel();
        let left = part.deadline.since(self.clocks.local());
        self.submit(BatchPart { reply: Some(reply), ..part });
        // A part that its lane does not accept is dropped, and its reply with it.
        let outcomes = tokio::time::timeout(left, outcomes).await.ok()?.ok()??;
        let is_exhausted = outcomes.iter().any(|outcome| outcome.hold == HoldOutcome::Exhausted);
        self.counts.events.holds_exhausted.add(is_exhausted.into());
        Some(outcomes)
    }

    /// Lets the lanes decide a part, the checks of one lane in one step, and waits for the outcomes; `None` for those
    /// that the store does not decide.
    pub(super) async fn apply_by_lane(
        self: &Arc<Self>,
        part: BatchPart,
    ) -> SmallVec<[Option<OperationOutcome>; 1]> {
        let BatchPart { checks, deadline, open, .. } = part;
        let mut all = SmallVec::from_elem(None, checks.len());
        let mut lanes: BTreeMap<usize, (Vec<usize>, CounterChecks)> = BTreeMap::new();
        for (index, check) in checks.into_iter().enumerate() {
            let (indices, checks) = lanes.entry(self.settings.lane_of(check.key)).or_default();
            indices.push(index);
            checks.push(check);
        }
        let parts = lanes.into_values().map(|(indices, checks)| {
            let outcomes = self.apply(BatchPart::new(checks, SubmissionMode::Each, deadline, open.clone()));
            async move { (indices, outcomes.await) }
        });
        for (indices, outcomes) in futures_util::future::join_all(parts).await {
            let outcomes = outcomes.into_iter().flatten();
            indices.into_iter().zip(outcomes).for_each(|(index, outcome)| all[index] = Some(outcome));
        }
        all
    }

    /// Takes charges back for which no caller waits. If the store is gone by then, they stay.
    pub(super) fn take_back_late(self: &Arc<Self>, checks: CounterChecks) {
        for check in checks {
            let checks = CounterChecks::from_iter([check]);
            self.submit(BatchPart::new(checks, SubmissionMode::Each, self.deadline(LATE_MAX), None));
        }
    }

    /// Gives a part to its lane, or drops it if the lane cannot reach the store.
    fn submit(self: &Arc<Self>, part: BatchPart) {
        let Some(first) = part.checks.first() else { return };
        let number = self.settings.lane_of(first.key);
        let mut lane = lock(&self.each[number]);
        if self.link_of(number).is_closed() || !lane.accepts(self.clocks.local()) {
            return;
        }
        if lane.push(part) {
            tokio::spawn(self.clone().drive(number));
        }
    }

    fn link_of(&self, lane: usize) -> &Link {
        &self.links[lane % self.links.len()]
    }

    /// Sends what waits in a lane until nothing waits.
    async fn drive(self: Arc<Self>, number: usize) {
        let lane = &self.each[number];
        let link = self.link_of(number);
        loop {
            let mut answers = LaneAnswers::new();
            let breaker = lock(lane).breaker.state(self.clocks.local());
            let connection = match breaker {
                // In a cluster a lane may be unreachable while the link is open.
                BreakerState::Open => None,
                BreakerState::Closed | BreakerState::HalfOpen => link.connection(self.settings.timeout).await,
            };
            let (Some((connection, number)), Some(instants)) = (connection, self.clocks.now()) else {
                lock(lane).fail_waiting(&mut answers);
                self.answer(answers);
                return;
            };
            let step = lock(lane).step(instants, &mut answers);
            self.answer(answers);
            match step {
                LaneStep::Send(batch) => {
                    if self.send(lane, connection, batch).await {
                        link.report_broken(number);
                    }
                }
                LaneStep::Wait(pause) => tokio::time::sleep(pause).await,
                LaneStep::End => return,
            }
        }
    }

    /// Sends one batch. Returns whether the connection broke.
    async fn send(
        self: &Arc<Self>,
        lane: &Mutex<Lane>,
        connection: StoreConnection,
        mut batch: StoreBatch,
    ) -> bool {
        batch.prepare();
        let sent = self.clocks.local();
        let reply = self.call(connection, &batch).await;
        let arrived = self.clocks.local();
        let replies = match reply {
            Ok(reply) => {
                self.clocks.observe(reply.time, arrived);
                self.last_failure.end();
                Ok(reply.groups)
            }
            Err(error) => {
                self.last_failure.note(&error);
                Err(BatchFailure::from_error(&error))
            }
        };
        let is_broken = matches!(replies, Err(BatchFailure { is_broken: true, .. }));
        self.counts.batches.increase();
        self.round_trips.record(arrived.since(sent));
        let mut answers = LaneAnswers::new();
        let forgotten = lock(lane).complete(batch, replies, sent, arrived, &self.counts, &mut answers);
        self.counts.checks.add(answers.iter().map(|(part, _)| part.checks.len() as u64).sum());
        self.answer(answers);
        drop(forgotten);
        is_broken
    }

    async fn call(
        &self,
        mut connection: StoreConnection,
        batch: &StoreBatch,
    ) -> RedisResult<script::ScriptReply> {
        let channel = self.settings.channel();
        let name = |key| self.settings.name(key);
        let call = |command: &str, script: &str| batch.call(command, script, &channel, name);
        let answer = connection.call(&None, (SCRIPT.get_hash(), SOURCE), call);
        let value = within(self.settings.timeout, answer).await?;
        script::read(value, batch.groups()).ok_or_else(unexpected)
    }

    /// Answers callers. If a caller does not wait any more, its charge is taken back.
    fn answer(self: &Arc<Self>, answers: LaneAnswers) {
        for (part, outcomes) in answers {
            let BatchPart { checks, mode, reply, .. } = part;
            let Some(reply) = reply else { continue };
            let Err(Some(outcomes)) = reply.send(outcomes) else { continue };
            if matches!(mode, SubmissionMode::DryRun(_)) {
                continue;
            }
            let undone: CounterChecks = checks
                .into_iter()
                .zip(outcomes)
                .filter_map(|(check, outcome)| {
                    let receipt = outcome.decision.receipt.filter(|_| outcome.charged > 0)?;
                    Some(check.with(CounterOperation::Undo(receipt)))
                })
                .collect();
            if !undone.is_empty() {
                self.counts.late.increase();
                self.take_back_late(undone);
            }
        }
    }
}

/// The hexadecimal digits of a key that name the hash slot of its counter in a cluster.
const TAG_DIGITS: usize = 3;
/// The lanes of a cluster: one for each such tag, so that all counters of a lane are in one hash slot.
const CLUSTER_LANES: usize = 1 << (4 * TAG_DIGITS);

/// The keys of a store.
impl SharedStoreSettings {
    /// The number of lanes.
    pub(super) fn lanes(&self) -> usize {
        match self.mode {
            StoreMode::Standalone | StoreMode::Sentinel { .. } => self.connections,
            StoreMode::Cluster => CLUSTER_LANES,
        }
    }

    /// The lane of a key. In a cluster only counters of one lane can change in one step.
    pub(super) fn lane_of(&self, key: Key) -> usize {
        match self.mode {
            StoreMode::Standalone | StoreMode::Sentinel { .. } => key.low() as usize % self.connections,
            StoreMode::Cluster => (key.high() >> (u64::BITS as usize - 4 * TAG_DIGITS)) as usize,
        }
    }

    /// Whether the counters can change in one step: those of a hash slot can, and all outside a cluster.
    pub(super) fn is_one_step(&self, keys: impl Iterator<Item = Key>) -> bool {
        let mut lanes = keys.map(|key| self.lane_of(key));
        self.mode != StoreMode::Cluster || lanes.next().is_none_or(|first| lanes.all(|lane| lane == first))
    }

    /// The name of a key in the store: the prefix and the hexadecimal key, whose first digits are in braces, so that
    /// they alone select the hash slot in a cluster. It is the same outside a cluster, so that data can be moved.
    pub(super) fn name(&self, key: Key) -> Vec<u8> {
        let digits = format!("{:016x}{:016x}", key.high(), key.low());
        let (tag, rest) = digits.split_at(TAG_DIGITS);
        [&self.prefix, "{", tag, "}", rest].concat().into_bytes()
    }

    /// The pattern of the names of keys.
    pub(super) fn names(&self) -> String {
        // A prefix has no special character.
        format!("{}{{{}}}{}", self.prefix, "?".repeat(TAG_DIGITS), "?".repeat(32 - TAG_DIGITS))
    }

    /// The key with this name.
    pub(super) fn key_of(&self, name: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(name.strip_prefix(self.prefix.as_bytes())?).ok()?;
        let (tag, rest) = name.strip_prefix('{')?.split_once('}')?;
        let digits = format!("{tag}{rest}");
        let half = |range: std::ops::Range<usize>| u64::from_str_radix(digits.get(range)?, 16).ok();
        Some(Key::from_halves(half(0..16)?, half(16..32)?))
    }

    /// The channel of announcements.
    pub(super) fn channel(&self) -> String {
        format!("{}refunds", self.prefix)
    }
}

/// How often charging is tried while something is to be charged.
const INTERVAL: Duration = Duration::from_millis(250);
/// Counters that are charged at once, so that callers need not wait for all.
const KEYS_AT_ONCE: usize = 256;

impl StoreParts {
    /// Charges what was admitted, until it is cancelled.
    pub(super) async fn charge_admitted(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let keys: Vec<Key> = self.local_share.lock().admitted_keys().collect();
            for keys in keys.chunks(KEYS_AT_ONCE) {
                if !join_all(keys.iter().map(|key| self.charge(*key))).await.contains(&true) {
                    break;
                }
            }
        }
    }

    /// Charges what was admitted of one key. Returns whether the store took it. If only the answer is lost, it is charged
    /// twice.
    async fn charge(&self, key: Key) -> bool {
        let Some(Admitted { limit, counter }) = self.local_share.lock().take_admitted(key) else {
            return true;
        };
        let operation = CounterOperation::Absorb(counter.clone());
        let checks = CounterChecks::from_iter([CounterCheck::by_counter(key, limit.clone(), operation)]);
        // The lane answers every part, so there is no other bound on the wait.
        let part = BatchPart::new(checks, SubmissionMode::Each, Timestamp::MAX, None);
        if self.lanes.apply(part).await.is_some() {
            return true;
        }
        self.local_share.lock().put_back(key, Admitted { limit, counter }, self.clocks.degraded());
        false
    }
}

/// How often a withdrawal is repeated.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_millis(250);
/// The most withdrawals that are open. The expiry ends what others would take back.
const WITHDRAWALS_MAX: usize = 1_024;

impl Lanes {
    /// Withdraws holds in the background until the store has answered, unless too many withdrawals are open.
    pub(super) fn withdraw(self: &Arc<Self>, mut left: CounterChecks) {
        let Ok(permit) = self.withdrawals.clone().try_acquire_owned() else { return };
        let lanes = self.clone();
        tokio::spawn(async move {
            let started = Stopwatch::start();
            // After that the expiry ends what is held.
            while started.elapsed() < LATE_MAX {
                let deadline = lanes.deadline(lanes.settings.timeout);
                let part = BatchPart::new(left.clone(), SubmissionMode::Each, deadline, None);
                let mut outcomes = lanes.apply_by_lane(part).await.into_iter();
                left.retain(|_| outcomes.next().flatten().is_none());
                if left.is_empty() {
                    break;
                }
                tokio::time::sleep(WITHDRAWAL_INTERVAL).await;
            }
            drop(permit);
        });
    }
}
