//! The limiter inside a program, with counters in Redis or Valkey that several processes share.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::task::JoinSet;
use tollgate_counter::{algorithm::Operation, resilience::Caller};
use tollgate_remote::Remote;
use tollgate_rules::Problems;
use tollgate_shared_store::SharedStore;
use tollgate_store::{HoldId, HoldTerms, OnExpiry, Settled};

use crate::limiter::{
    Limiter,
    answer::LimiterError,
    embedded::{CheckError, Checked, Reservation, each_entry},
    hold::{HeldAnswer, HoldError, HoldRequest},
    plan::AnswerOrPlan,
    request,
};

#[doc(inline)]
pub use tollgate_shared_store::{
    ConnectError, PasswordError, PasswordSource, PasswordSources, SharedStoreSettings, SharedStoreState,
    StoreMode, StoreTlsFiles,
};

/// A limiter with the counters in Redis or Valkey. Processes with the same prefix of keys share their counters, and
/// exactly the limit passes, however many of them race. Needs a runtime of tokio.
///
/// While the store cannot be reached, the rule's `on_owner_unavailable` decides, and [`Checked::degraded`] says so.
#[derive(Debug)]
pub struct SharedLimiter {
    limiter: Limiter,
    store: SharedStore,
    // Ends with the limiter.
    _background: JoinSet<()>,
}

impl SharedLimiter {
    /// Connects to a store: the rules of `limiter` apply to counters there. Waits until the store has answered once,
    /// and logs through `tracing` why it has not; drop the future to give up.
    ///
    /// ```no_run
    /// use tollgate_limiter::{Limiter, shared_limiter::{SharedLimiter, SharedStoreSettings}};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::from_yaml(
    ///     "
    /// domain: shop
    /// descriptors:
    ///   - key: user
    ///     rate_limit: {unit: minute, requests_per_unit: 100, algorithm: sliding_log}
    /// ",
    /// )?;
    /// let settings = SharedStoreSettings::new(["redis://127.0.0.1:6379"]);
    /// let limiter = SharedLimiter::connect(limiter, settings).await?;
    /// let checked = limiter.check("shop", &[("user", "ada")], 1).await?;
    /// if !checked.passes {
    ///     println!("wait for {:?}", checked.retry_after);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The settings are invalid, or a password cannot be read.
    pub async fn connect(limiter: Limiter, settings: SharedStoreSettings) -> Result<Self, ConnectError> {
        settings.validate()?;
        // Connections with TLS would panic if the program has several libraries for cryptography and has chosen none. It
        // may have chosen one: then this changes nothing.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut background = JoinSet::new();
        let Limiter { clock, active_rules, .. } = &limiter;
        let store = SharedStore::start(settings, clock.clone(), active_rules.clone(), &mut background)?;
        store.until_known().await;
        let limiter = limiter.with_remote(Some(Remote::new(Arc::new(store.clone()))));
        Ok(Self { limiter, store, _background: background })
    }

    /// Whether the store decides.
    pub fn state(&self) -> SharedStoreState {
        self.store.state()
    }

    /// Replaces the rules of this process by those in `yaml`. Counters stay, and new limits apply to them at once.
    ///
    /// # Errors
    ///
    /// All problems of the rules. The old rules stay active.
    pub fn replace_rules(&self, yaml: &str) -> Result<(), Problems> {
        self.limiter.replace_rules(yaml)
    }

    /// Charges `hits` to the limit of a descriptor if they pass. A descriptor without a rule passes.
    ///
    /// # Errors
    ///
    /// The domain is empty, there are no rules, or too many checks wait for the store.
    pub async fn check(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        hits: u64,
    ) -> Result<Checked, CheckError> {
        self.ask(domain, entries, Operation::Charge(hits)).await
    }

    /// The answer that a charge of one hit would get, which is not charged.
    ///
    /// # Errors
    ///
    /// The domain is empty, there are no rules, or too many checks wait for the store.
    pub async fn peek(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Checked, CheckError> {
        self.ask(domain, entries, Operation::Peek).await
    }

    /// Gives `hits` back that were charged earlier, at most those that the counter still holds.
    ///
    /// # Errors
    ///
    /// The domain is empty, there are no rules, or too many checks wait for the store.
    pub async fn refund(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        hits: u64,
    ) -> Result<Checked, CheckError> {
        self.ask(domain, entries, Operation::Refund(hits)).await
    }

    /// Reserves `amount` hits until [`SharedLimiter::settle`], in any process, says how many were used. They count at
    /// once, and are given back after `ttl` (from 1 ms to 24 h) if that is never said.
    ///
    /// # Errors
    ///
    /// `ttl` is out of bounds, the domain is empty, there are no rules, there are too many reservations, too many
    /// checks wait for the store, or it cannot be reached.
    pub async fn reserve(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        amount: u64,
        ttl: Duration,
    ) -> Result<Reservation, HoldError> {
        let hold = HoldRequest::Reserve(HoldTerms::new(HoldId::random(), ttl, OnExpiry::Release)?);
        self.hold(domain, entries, amount, hold.clone(), |held| Reservation::new(held, &hold, amount)).await
    }

    /// Settles a reservation of any process at the hits that were used: the others are given back, missing ones are
    /// charged as far as the limit goes. 0 cancels it. If its time has passed, or the id is unknown, all of them are
    /// charged. A repeated call answers as the first and changes nothing. `None` if the descriptor has no limit.
    ///
    /// # Errors
    ///
    /// The domain is empty, there are no rules, too many checks wait for the store, or it cannot be reached.
    pub async fn settle(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        id: &HoldId,
        actual: u64,
    ) -> Result<Option<Settled>, HoldError> {
        self.hold(domain, entries, actual, HoldRequest::Settle(id.clone()), |held| held.settled[0]).await
    }

    async fn ask(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        operation: Operation,
    ) -> Result<Checked, CheckError> {
        let mut buffer = SmallVec::new();
        let request = request(domain, each_entry(entries, &mut buffer), operation)?;
        let mut plan = match self.limiter.view().decide(&request)? {
            AnswerOrPlan::Answer(answer) => return Ok(Checked::from_answer(&answer, operation)),
            AnswerOrPlan::Plan(plan) => plan,
        };
        let outcomes =
            plan.outcomes(&self.limiter, &Caller::default()).await.map_err(|error| match error {
                HoldError::Limiter(error) => error,
                _of_reservations => LimiterError::Remote,
            })?;
        Ok(plan.answer(&self.limiter, &outcomes, |_, _, held| Checked::from_answer(&held.answer, operation)))
    }

    async fn hold<R>(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        hits: u64,
        hold: HoldRequest,
        take: impl FnOnce(&HeldAnswer<'_>) -> R,
    ) -> Result<R, HoldError> {
        let mut buffer = SmallVec::new();
        let request = request(domain, each_entry(entries, &mut buffer), Operation::Charge(hits))?;
        // Each call is a caller of its own: none is greedy, because all are of one program.
        let caller = Caller::default();
        let mut plan = match self.limiter.view().hold(&request, hold, &caller)? {
            AnswerOrPlan::Answer(held) => return Ok(take(&held)),
            AnswerOrPlan::Plan(plan) => plan,
        };
        let outcomes = plan.outcomes(&self.limiter, &caller).await?;
        Ok(plan.answer(&self.limiter, &outcomes, |_, _, held| take(held)))
    }
}
