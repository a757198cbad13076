//! A limit with a penalty: a key that was refused too often in a row is refused for a time, longer each time.
//!
//! The penalty wraps the counter of its limit, as long as refusals are remembered; a counter without any is that of the
//! limit alone. All of them are of the kind of that limit, so a penalty can be added and removed by a reload.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Admission, Algorithm, Classic, Concurrency, Counter, Decision, Excess, FixedWindow, Held, LeakyQueue,
        Limit, Operation, Place, Receipt, SlidingLog, SlidingWindow, Span, SteppedBucket, TokenBucket,
        Verdict, Window,
    },
    time::Timestamp,
};

/// When a key is refused whatever its limit has left, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Penalty {
    /// The refusals in a row, with no pass between, after which a penalty begins.
    pub after: u32,
    /// The length of the first penalty.
    pub first: Span,
    /// Each penalty is this many times as long as the one before.
    pub factor: u32,
    /// The greatest length of a penalty.
    pub max: Span,
    /// Refusals and penalties are forgotten this long after the last refusal, or at the end of a penalty that lasts
    /// longer.
    pub forget_after: Span,
}

/// A limit with a penalty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Received")]
pub struct Penalized {
    // Invariant: the limit has no penalty itself.
    both: Box<(Limit, Penalty)>,
}

/// A counter of which refusals or penalties are remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PenalizedCounter {
    /// That of the limit alone.
    pub(crate) counter: Counter,
    pub(crate) record: PenaltyRecord,
}

/// What is remembered of the refusals of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PenaltyRecord {
    /// Refusals in a row since the last penalty began.
    pub(crate) refusals: u32,
    /// Whether the last charge has passed, so that the row has ended. If that charge is taken back, it has not.
    pub(crate) has_passed: bool,
    /// Penalties so far.
    pub(crate) penalties: u32,
    /// The end of the last penalty.
    pub(crate) until: Timestamp,
    // Invariant: not before `until`.
    pub(crate) forgotten_at: Timestamp,
}

/// What is remembered of the refusals of one key, as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PenaltyState {
    /// Refusals in a row that count for the next penalty.
    pub refusals: u32,
    /// Penalties so far, with one that lasts.
    pub penalties: u32,
    /// The time until the penalty ends; `None` if none lasts.
    pub ends_after: Option<Duration>,
    /// The time until everything is forgotten, unless the key is refused before.
    pub forgotten_after: Duration,
}

macro_rules! received {
    ($($variant:ident($limit:ident)),* $(,)?) => {
        /// A limit without a penalty, encoded like [`Limit`]. A penalty of a penalty would be read without a bound on its
        /// depth.
        #[derive(Deserialize)]
        enum PlainLimit {
            $($variant($limit)),*
        }

        impl From<PlainLimit> for Limit {
            fn from(limit: PlainLimit) -> Self {
                match limit {
                    $(PlainLimit::$variant(limit) => Self::$variant(limit)),*
                }
            }
        }
    };
}

received! {
    Classic(Classic),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    SteppedBucket(SteppedBucket),
    LeakyBucket(TokenBucket),
    LeakyQueue(LeakyQueue),
    Concurrency(Concurrency),
}

/// A limit with a penalty, as received from another replica.
#[derive(Deserialize)]
struct Received {
    both: (PlainLimit, Penalty),
}

impl From<Received> for Penalized {
    fn from(Received { both: (limit, penalty) }: Received) -> Self {
        Self::new(limit.into(), penalty)
    }
}

impl Penalty {
    /// The length of the penalty that follows this many others, in nanoseconds.
    pub(crate) fn nanos(&self, others: u32) -> u64 {
        let nanos = u64::from(self.factor).saturating_pow(others).saturating_mul(self.first.nanos());
        nanos.min(self.max.nanos())
    }
}

impl Penalized {
    /// A limit with a penalty; it replaces one that the limit has.
    pub fn new(limit: Limit, penalty: Penalty) -> Self {
        let limit = match limit {
            Limit::Penalized(penalized) => penalized.both.0,
            other => other,
        };
        Self { both: Box::new((limit, penalty)) }
    }

    /// The limit without its penalty.
    pub fn limit(&self) -> &Limit {
        &self.both.0
    }

    /// The penalty.
    pub fn penalty(&self) -> &Penalty {
        &self.both.1
    }

    pub(super) fn limit_mut(&mut self) -> &mut Limit {
        &mut self.both.0
    }

    /// The same penalty of another limit.
    pub(super) fn with(&self, limit: Limit) -> Self {
        Self::new(limit, *self.penalty())
    }

    /// Decides a charge outside of a penalty.
    fn charge(&self, counter: &mut Counter, now: Timestamp, charge: Operation) -> Decision {
        let decision = self.limit().decide(counter, now, charge);
        if decision.verdict.passes() {
            counter.end_row();
            return decision;
        }
        let mut record = counter.record().copied().unwrap_or(PenaltyRecord::NONE);
        let until = record.add_refusal(self.penalty(), now);
        counter.set_record(Some(record));
        if now < until { during_penalty(decision, until, now) } else { decision }
    }

    /// Refuses a charge during a penalty that ends at `until`.
    fn refuse(&self, counter: &mut Counter, until: Timestamp, now: Timestamp, charge: Operation) -> Decision {
        if let Some(record) = counter.record().copied() {
            counter.set_record(Some(record.remembered_from(self.penalty(), now)));
        }
        let limit = self.limit();
        let decision = match limit.excess() {
            Excess::Count => {
                limit.decide(counter, now, charge);
                // The charge counts already, so this is about the next one of its size.
                limit.without_refused_charges().decide(&mut counter.clone(), now, charge)
            }
            Excess::Refuse | Excess::Overdraft(_) => {
                let peek = limit.decide(counter, now, Operation::Peek);
                let predicted = limit.predict(charge, &peek);
                // A refusal changes nothing, and names the instant at which the limit lets the charge pass.
                if predicted.verdict.passes() { predicted } else { limit.decide(counter, now, charge) }
            }
        };
        during_penalty(Decision { receipt: None, ..decision }, until, now)
    }
}

/// A decision during a penalty that ends at `until`: nothing passes before.
fn during_penalty(decision: Decision, until: Timestamp, now: Timestamp) -> Decision {
    let left = until.since(now);
    let (retry_after, reset_after) = match decision.verdict {
        Verdict::Pass | Verdict::Delay(_) => (Some(left), left),
        Verdict::Refuse { retry_after: Some(wait) } => (Some(wait.max(left)), wait.max(left)),
        Verdict::Refuse { retry_after: None } => (None, decision.reset_after.max(left)),
    };
    Decision { verdict: Verdict::Refuse { retry_after }, remaining: 0, reset_after, ..decision }
}

impl Algorithm for Penalized {
    type Counter = Counter;
    type Receipt = Receipt;
    // Of most limits: see `Limit::admission`.
    const ADMISSION: Admission = Admission::AtOnce;
    // A borrower would not know of refusals elsewhere.
    const LEASABLE: bool = false;

    fn decide(&self, counter: &mut Counter, now: Timestamp, operation: Operation) -> Decision {
        let until = counter.record().map_or(Timestamp::EPOCH, |record| record.until);
        let is_penalized = now < until;
        match operation {
            Operation::Charge(_) if is_penalized => self.refuse(counter, until, now, operation),
            Operation::Charge(_) => {
                if counter.record().is_some_and(|record| record.forgotten_at <= now) {
                    counter.set_record(None);
                }
                self.charge(counter, now, operation)
            }
            Operation::Peek => {
                let peek = self.limit().decide(counter, now, operation);
                if is_penalized { during_penalty(peek, until, now) } else { peek }
            }
            Operation::Refund(_) => {
                let decision = self.limit().decide(counter, now, operation);
                if is_penalized { Decision { remaining: 0, ..decision } } else { decision }
            }
        }
    }

    fn undo(&self, counter: &mut Counter, receipt: Receipt, now: Timestamp) {
        self.limit().undo(counter, receipt, now);
        counter.resume_row();
    }

    fn idle_at(&self, counter: &Counter) -> Timestamp {
        let remembered = counter.record().map_or(Timestamp::EPOCH, |record| record.forgotten_at);
        self.limit().idle_at(counter).max(remembered)
    }

    fn since(&self, counter: &Counter, base: &Counter, now: Timestamp) -> Counter {
        let mut since = self.limit().since(counter.plain(), base.plain(), now);
        since.set_record(counter.record().copied().filter(|record| Some(record) != base.record()));
        since
    }

    /// The stricter record stays: what both have in common would count twice otherwise.
    fn absorb(&self, counter: &mut Counter, other: &Counter, now: Timestamp) {
        self.limit().absorb(counter, other.plain(), now);
        if let Some(other) = other.record().filter(|record| now < record.forgotten_at) {
            let record = counter.record().map_or(*other, |record| record.and(other));
            counter.set_record(Some(record));
        }
    }

    fn charge_at(&self, counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp) {
        self.limit().charge_at(counter, hits, at, now);
    }

    fn clamp_ahead(&self, counter: &mut Counter, at: Timestamp, now: Timestamp) {
        self.limit().clamp_ahead(counter, at, now);
        if let Some(record) = counter.record().copied() {
            counter.set_record(Some(record.clamped(self.penalty(), at, now)));
        }
    }

    fn place(&self, counter: &Counter, now: Timestamp) -> Place {
        self.limit().place(counter, now)
    }

    fn weight(&self, counter: &Counter, place: Place, now: Timestamp) -> u128 {
        self.limit().weight(counter, place, now)
    }

    fn lighten(&self, counter: &mut Counter, held: &Held, units: u128, now: Timestamp) {
        self.limit().lighten_by(counter, held, units, now);
    }

    fn units(&self, hits: u64) -> u128 {
        self.limit().units(hits)
    }

    fn converted(&self, units: u128, before: &Self) -> u128 {
        self.limit().converted(units, before.limit())
    }

    fn allowance(&self) -> u64 {
        self.limit().allowance()
    }

    fn excess(&self) -> Excess {
        self.limit().excess()
    }

    fn window(&self) -> Option<&Window> {
        self.limit().window()
    }

    fn hits_per_period(&self) -> u64 {
        self.limit().hits_per_period()
    }

    fn period(&self) -> Option<u64> {
        self.limit().period_nanos()
    }

    fn passing_debt_max(&self) -> u64 {
        self.limit().passing_debt_max()
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        self.limit_mut().change(&number, &excess);
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.limit_mut().set_timeout(timeout);
    }

    fn refund_beside(&self, counter: &mut Counter, held: &[Held], hits: u64, now: Timestamp) -> Decision {
        let decision = self.limit().refund_beside(counter, held, hits, now);
        let is_penalized = counter.record().is_some_and(|record| now < record.until);
        if is_penalized { Decision { remaining: 0, ..decision } } else { decision }
    }
}

impl PenaltyRecord {
    const NONE: Self = Self {
        refusals: 0,
        has_passed: false,
        penalties: 0,
        until: Timestamp::EPOCH,
        forgotten_at: Timestamp::EPOCH,
    };

    /// Adds a refusal outside of a penalty. Returns the end of the penalty that it begins, an earlier instant if none.
    fn add_refusal(&mut self, penalty: &Penalty, now: Timestamp) -> Timestamp {
        self.refusals = if self.has_passed { 1 } else { self.refusals.saturating_add(1) };
        self.has_passed = false;
        if self.refusals >= penalty.after {
            self.until = now.plus(penalty.nanos(self.penalties));
            self.penalties = self.penalties.saturating_add(1);
            self.refusals = 0;
        }
        *self = self.remembered_from(penalty, now);
        self.until
    }

    /// The same after a refusal at `now`.
    fn remembered_from(self, penalty: &Penalty, now: Timestamp) -> Self {
        let forgotten_at = self.until.max(now.plus(penalty.forget_after.nanos()));
        Self { forgotten_at: self.forgotten_at.max(forgotten_at), ..self }
    }

    /// The stricter of both.
    fn and(&self, other: &Self) -> Self {
        Self {
            refusals: self.refusals.max(other.refusals),
            has_passed: self.has_passed && other.has_passed,
            penalties: self.penalties.max(other.penalties),
            until: self.until.max(other.until),
            forgotten_at: self.forgotten_at.max(other.forgotten_at),
        }
    }

    /// The same after a clock gave up a lead at `at`: what lies further ahead than this penalty allows is cut.
    fn clamped(self, penalty: &Penalty, at: Timestamp, now: Timestamp) -> Self {
        let cut = |instant: Timestamp, nanos: u64| {
            if now.plus(nanos) < instant { at.plus(nanos) } else { instant }
        };
        let until = cut(self.until, penalty.max.nanos());
        let remembered = penalty.max.nanos().max(penalty.forget_after.nanos());
        Self { until, forgotten_at: cut(self.forgotten_at, remembered).max(until), ..self }
    }

    fn state(&self, now: Timestamp) -> PenaltyState {
        PenaltyState {
            refusals: if self.has_passed { 0 } else { self.refusals },
            penalties: self.penalties,
            ends_after: (now < self.until).then(|| self.until.since(now)),
            forgotten_after: self.forgotten_at.since(now),
        }
    }

    pub(crate) fn shifted_back(self, back: u64) -> Self {
        Self { until: self.until.minus(back), forgotten_at: self.forgotten_at.minus(back), ..self }
    }
}

impl Limit {
    /// What is remembered of the refusals of a key; `None` if nothing is, or without a penalty.
    pub fn penalty_state(&self, counter: &Counter, now: Timestamp) -> Option<PenaltyState> {
        let record = counter.record().filter(|record| now < record.forgotten_at);
        self.penalized().and(record).map(|record| record.state(now))
    }
}

impl Counter {
    /// What is remembered of its refusals.
    pub(crate) fn record(&self) -> Option<&PenaltyRecord> {
        self.penalized().map(|penalized| &penalized.record)
    }

    /// That of the limit alone.
    pub(crate) fn plain(&self) -> &Self {
        self.penalized().map_or(self, |penalized| &penalized.counter)
    }

    /// Replaces what is remembered of its refusals.
    fn set_record(&mut self, record: Option<PenaltyRecord>) {
        match (self.penalized_mut(), record) {
            (Some(penalized), Some(record)) => penalized.record = record,
            (Some(penalized), None) => *self = std::mem::take(&mut penalized.counter),
            (None, Some(record)) => {
                let counter = std::mem::take(self);
                *self = Self::Penalized(Box::new(PenalizedCounter { counter, record }));
            }
            (None, None) => {}
        }
    }

    /// Ends a row of refusals: a charge has passed. The row is forgotten when another one passes.
    fn end_row(&mut self) {
        let Some(record) = self.record().copied() else { return };
        let is_new = record.refusals > 0 && !record.has_passed;
        let refusals = if is_new { record.refusals } else { 0 };
        let ended = PenaltyRecord { refusals, has_passed: is_new, ..record };
        self.set_record(Some(ended).filter(|ended| ended.has_passed || ended.penalties > 0));
    }

    /// Resumes a row of refusals: the charge that has ended it is taken back.
    fn resume_row(&mut self) {
        if let Some(record) = self.record().copied().filter(|record| record.has_passed) {
            self.set_record(Some(PenaltyRecord { has_passed: false, ..record }));
        }
    }
}
