//! The limiter inside a program, without a service: rules as text, counters in memory, one call for each question.

use std::{path::Path, sync::Arc, time::Duration};

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::Operation,
    descriptor::Entry,
    resilience::Caller,
    time::{Clock, ClockReading},
};
use tollgate_rules::{ActiveRules, Problems, Rules};
use tollgate_store::{HoldId, HoldTerms, Memory, OnExpiry, OnFull, Settled};

use crate::limiter::{
    Limiter,
    answer::{AnswerOf, LimiterError, Status},
    hold::{HeldAnswer, HoldError, HoldRequest},
    request::{Descriptor, Request, RequestError},
};

/// The memory of the counters of an embedded limiter: 256 MiB, about four million counters.
const MEMORY_LIMIT: u64 = 256 << 20;

/// The answer to one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Whether the caller may go on.
    pub passes: bool,
    /// The time that the caller waits before it goes on; not zero only for `leaky_queue`.
    pub delay: Duration,
    /// Hits in one unit of the limit that applies; `None` without a limit.
    pub limit: Option<u64>,
    /// Hits that are left; `u64::MAX` without a limit.
    pub remaining: u64,
    /// The time until the whole limit is available again; `None` without a limit.
    pub reset_after: Option<Duration>,
    /// After a refusal: the time until the same hits pass; `None` if they never do, or if it is not known.
    pub retry_after: Option<Duration>,
    /// After a refusal of hits that never pass: the most that can.
    pub most_hits: Option<u64>,
    /// Whether the shared store could not be reached, so that the rule's `on_owner_unavailable` has decided.
    pub degraded: bool,
}

/// The answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservation {
    /// The answer.
    pub checked: Checked,
    /// The id by which [`Limiter::settle`] finds the reservation; `None` if nothing is reserved.
    pub id: Option<HoldId>,
    /// Whether a reservation with this id was made before and has ended: it was settled or has expired. The answer is
    /// that of its first call, and nothing more is reserved.
    pub has_ended: bool,
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The content of the question is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The limiter cannot answer.
    #[error(transparent)]
    Limiter(#[from] LimiterError),
}

impl Limiter {
    /// A limiter with the rules in `yaml`, the format of the rule files, and new counters in at most 256 MiB of memory.
    ///
    /// ```
    /// let limiter = tollgate_limiter::Limiter::from_yaml(
    ///     "
    /// domain: shop
    /// descriptors:
    ///   - key: user
    ///     rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_log}
    /// ",
    /// )?;
    /// assert!(limiter.check("shop", &[("user", "ada")], 1)?.passes);
    /// assert!(limiter.check("shop", &[("user", "ada")], 1)?.passes);
    /// let refused = limiter.check("shop", &[("user", "ada")], 1)?;
    /// assert!(!refused.passes && refused.retry_after.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// All problems of the rules, each with line and column.
    pub fn from_yaml(yaml: &str) -> Result<Self, Problems> {
        Ok(Self::embedded(Rules::parse("rules", yaml)?, MEMORY_LIMIT))
    }

    /// A limiter with the rules in a file, or in all `*.yaml` and `*.yml` files of a directory, and new counters in at
    /// most `memory_limit` bytes. A charge to a new key for which there is no memory is refused.
    ///
    /// # Errors
    ///
    /// All problems of the rules, each with file, line and column.
    pub fn from_path(path: &Path, memory_limit: u64) -> Result<Self, Problems> {
        Ok(Self::embedded(tollgate_rules::load(path)?, memory_limit))
    }

    fn embedded(rules: Rules, memory_limit: u64) -> Self {
        let clock = Clock::system();
        let active_rules = Arc::new(ActiveRules::from_rules(rules, clock.now()));
        let limiter = Self::new(active_rules, Arc::new(Memory::new(memory_limit, OnFull::Deny)), clock);
        Self { follows_wall: true, ..limiter }
    }

    /// Follows the wall clock, and reads the clock.
    #[cold]
    pub(super) fn follow_wall(&self) -> ClockReading {
        self.clock.follow(|lead| self.memory.give_up_lead(lead));
        self.clock.read()
    }

    /// Replaces the rules by those in `yaml`. Counters stay, and new limits apply to them at once.
    ///
    /// # Errors
    ///
    /// All problems of the rules. The old rules stay active.
    pub fn replace_rules(&self, yaml: &str) -> Result<(), Problems> {
        self.active_rules.replace(Rules::parse("rules", yaml)?, self.clock.now());
        Ok(())
    }

    /// Follows rule files: replaces the rules whenever the files change, for as long as it is polled. Broken files change
    /// nothing and are logged through `tracing`. Needs a runtime of tokio.
    #[cfg(feature = "watch")]
    pub async fn follow_files(&self, settings: tollgate_rules::FileSettings) {
        tollgate_rules::Watcher::new(settings, self.clock.clone(), self.active_rules.clone()).run().await;
    }

    /// Charges `hits` to the limit of a descriptor if they pass. A descriptor without a rule passes.
    ///
    /// # Errors
    ///
    /// The domain is empty, or there are no rules.
    pub fn check(&self, domain: &str, entries: &[(&str, &str)], hits: u64) -> Result<Checked, CheckError> {
        self.ask(domain, entries, Operation::Charge(hits))
    }

    /// The answer that a charge of one hit would get, which is not charged.
    ///
    /// # Errors
    ///
    /// The domain is empty, or there are no rules.
    pub fn peek(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Checked, CheckError> {
        self.ask(domain, entries, Operation::Peek)
    }

    /// Gives `hits` back that were charged earlier, at most those that the counter still holds.
    ///
    /// # Errors
    ///
    /// The domain is empty, or there are no rules.
    pub fn refund(&self, domain: &str, entries: &[(&str, &str)], hits: u64) -> Result<Checked, CheckError> {
        self.ask(domain, entries, Operation::Refund(hits))
    }

    /// Reserves `amount` hits until [`Limiter::settle`] says how many were used. They count at once, and are given back
    /// after `ttl` (from 1 ms to 24 h) if that is never said.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let limiter = tollgate_limiter::Limiter::from_yaml(
    ///     "
    /// domain: models
    /// descriptors:
    ///   - key: tokens
    ///     rate_limit: {unit: minute, requests_per_unit: 1000, algorithm: token_bucket}
    /// ",
    /// )?;
    /// let tokens = [("tokens", "ada")];
    /// // The prompt is known, and the answer has at most 700 tokens.
    /// let reservation = limiter.reserve("models", &tokens, 800, Duration::from_secs(60))?;
    /// let id = reservation.id.expect("800 tokens are left");
    /// assert!(limiter.reserve("models", &tokens, 800, Duration::from_secs(60))?.id.is_none());
    /// // The model has used 300.
    /// let settled = limiter.settle("models", &tokens, &id, 300)?;
    /// assert!(settled.is_some_and(|settled| settled.remaining >= 700));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `ttl` is out of bounds, the domain is empty, there are no rules, or there are too many reservations.
    pub fn reserve(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        amount: u64,
        ttl: Duration,
    ) -> Result<Reservation, HoldError> {
        let hold = HoldRequest::Reserve(HoldTerms::new(HoldId::random(), ttl, OnExpiry::Release)?);
        let mut buffer = SmallVec::new();
        let request = request(domain, each_entry(entries, &mut buffer), Operation::Charge(amount))?;
        // Each call is a caller of its own: none is greedy, because all are of one program.
        let view = self.view();
        let held = view.hold(&request, hold.clone(), &Caller::default())?.answer()?;
        Ok(Reservation::new(&held, &hold, amount))
    }

    /// Settles a reservation at the hits that were used: the others are given back, missing ones are charged as far as
    /// the limit goes. 0 cancels it. If its time has passed, or the id is unknown, all of them are charged. A repeated
    /// call answers as the first and changes nothing. `None` if the descriptor has no limit.
    ///
    /// # Errors
    ///
    /// The domain is empty, or there are no rules.
    pub fn settle(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        id: &HoldId,
        actual: u64,
    ) -> Result<Option<Settled>, HoldError> {
        let mut buffer = SmallVec::new();
        let request = request(domain, each_entry(entries, &mut buffer), Operation::Charge(actual))?;
        let hold = HoldRequest::Settle(id.clone());
        Ok(self.view().hold(&request, hold, &Caller::default())?.answer()?.settled[0])
    }

    /// Evicts counters that are idle. The memory limit holds without it; called every few seconds, it returns unused
    /// memory earlier.
    pub fn sweep(&self) {
        self.memory.sweep(self.clock.now());
    }

    pub(super) fn ask(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        operation: Operation,
    ) -> Result<Checked, CheckError> {
        let mut buffer = SmallVec::new();
        self.ask_entries(domain, each_entry(entries, &mut buffer), operation)
    }

    // `inline(always)`: two callers, of which only one is hot.
    #[inline(always)]
    pub(super) fn ask_entries(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        operation: Operation,
    ) -> Result<Checked, CheckError> {
        let request = request(domain, entries, operation)?;
        let view = self.view();
        let decided = view.decide_as(
            &request,
            |answer| Checked::from_answer(&answer, operation),
            |answer| Checked::from_answer(&answer, operation),
        );
        Ok(decided?.answer()?)
    }
}

impl Reservation {
    /// The reservation of `amount` hits that `hold` has asked for.
    pub(crate) fn new(held: &HeldAnswer<'_>, hold: &HoldRequest, amount: u64) -> Self {
        let HeldAnswer { answer, is_held, has_ended, .. } = held;
        let id = hold.id().clone();
        let checked = Checked::from_answer(answer, Operation::Charge(amount));
        Self { checked, id: is_held.then_some(id), has_ended: *has_ended }
    }
}

impl Checked {
    /// The answer to a request with one descriptor.
    #[inline(always)]
    pub(crate) fn from_answer<'s>(answer: &AnswerOf<impl AsRef<[Status<'s>]>>, operation: Operation) -> Self {
        let status = &answer.statuses.as_ref()[0];
        let limit = status.limit.map(|limit| limit.requests_per_unit);
        Self {
            passes: answer.passes,
            delay: answer.delay,
            limit,
            remaining: if limit.is_some() { status.remaining } else { u64::MAX },
            reset_after: status.reset_after,
            retry_after: status.retry_after,
            most_hits: status.most_hits(&Descriptor { entries: &[], operation, limit: None }),
            degraded: status.degraded,
        }
    }
}

/// The entries, which are written to `buffer`.
#[inline(always)]
pub(crate) fn each_entry<'b, 'a>(
    entries: &[(&'a str, &'a str)],
    buffer: &'b mut SmallVec<[Entry<'a>; 4]>,
) -> &'b [Entry<'a>] {
    buffer.extend(entries.iter().map(|&(key, value)| Entry::new(key, value)));
    buffer
}

/// A request with one descriptor.
#[inline(always)]
pub(crate) fn request<'a>(
    domain: &'a str,
    entries: &'a [Entry<'a>],
    operation: Operation,
) -> Result<Request<'a>, RequestError> {
    Request::new(domain, [Descriptor { entries, operation, limit: None }], None)
}

#[cfg(test)]
mod tests;
