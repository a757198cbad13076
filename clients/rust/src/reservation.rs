//! Hits that are held until it is known how many are used.

use std::time::Duration;

use prost_types::Duration as WireDuration;
use tokio::time::Instant;
use tonic::Request as Call;

use crate::{
    Client, Decision, Error, InvalidRequest, NoAnswer, Request, Source,
    client::Inner,
    connections::Server,
    decision::duration,
    request::{Descriptor, check_size},
    v1,
};

/// What happens to a reservation that is neither settled nor canceled before it expires.
pub use v1::reserve_request::OnExpiry;
/// What was known of a reservation at its settlement.
pub use v1::settled_limit::Outcome as SettledOutcome;

/// How hits are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The time until the reservation expires: 1 ms to 24 h. Default: 60 s.
    pub ttl: Duration,
    /// Default: release.
    pub on_expiry: OnExpiry,
}

impl Default for Terms {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(60), on_expiry: OnExpiry::Release }
    }
}

/// A reservation, if its decision allows the request. To drop it neither settles nor cancels it.
#[derive(Clone)]
pub struct Reservation {
    /// If the default has decided, the hits may be held or not: settle or cancel them nevertheless.
    pub decision: Decision,
    /// When the call began.
    pub(crate) begin: Instant,
    client: Client,
    request: Request,
    id: String,
}

/// How a reservation has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The limits that apply, in the order of the descriptors.
    pub limits: Vec<SettledLimit>,
}

/// One limit of a reservation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledLimit {
    /// The index of the descriptor in the request.
    pub descriptor: usize,
    /// The name of the rule, or its path. Empty for a limit that the caller sent.
    pub rule: String,
    /// What was known of the reservation.
    pub outcome: SettledOutcome,
    /// Hits that were held.
    pub reserved: u64,
    /// Of the hits that were used, those that were not charged because the limit does not go as far.
    pub not_charged: u64,
    /// Hits that are left.
    pub remaining: u64,
    /// The time until the limit is unused.
    pub reset_after: Duration,
}

impl Client {
    /// Holds the hits of a request, all of them or none. [`Options::on_no_answer`](crate::Options::on_no_answer)
    /// decides if the server gives no answer.
    pub async fn reserve(&self, request: &Request, terms: Terms) -> Result<Reservation, InvalidRequest> {
        // Chosen here, so that hits can be settled that were held without an answer.
        let id = self.0.hasher.unique_id();
        let message = v1::ReserveRequest {
            domain: request.domain.clone(),
            descriptors: request.descriptors.iter().map(|each| each.message(each.hits)).collect(),
            amount: request.hits,
            // The server refuses a time that is too long.
            ttl: Some(
                WireDuration::try_from(terms.ttl).unwrap_or(WireDuration { seconds: i64::MAX, nanos: 0 }),
            ),
            reservation_id: id.clone(),
            on_expiry: terms.on_expiry.into(),
        };
        check_size(&message)?;
        let begin = Instant::now();
        let method = |mut server: Server, call: Call<_>| async move { server.reserve(call).await };
        let response = self.0.connections.call(message, self.0.deadline(), method).await;
        let answer = response.and_then(|response| Decision::of_answer(response.answer.unwrap_or_default()));
        let decision = self.0.or_default(answer.map_err(Error::from))?;
        Ok(Reservation { decision, begin, client: self.clone(), request: request.clone(), id })
    }
}

impl Reservation {
    /// Ends the reservation at the hits that were used. They apply to each descriptor without hits of its own; the
    /// others keep theirs. A reservation that is not known any more, or never was, is charged now.
    ///
    /// After [`Error::NoAnswer`] the same call may be repeated: the hits count once. If the server has refused the
    /// reservation, nothing is sent and the settlement has no limits.
    pub async fn settle(&self, actual: u64) -> Result<Settlement, Error> {
        if self.is_refused() {
            return Ok(Settlement::of_limits(Vec::new()));
        }
        let message = v1::SettleRequest {
            domain: self.request.domain.clone(),
            descriptors: self.descriptors(|each| each.hits),
            reservation_id: self.id.clone(),
            actual,
        };
        check_size(&message)?;
        let method = |mut server: Server, call: Call<_>| async move { server.settle(call).await };
        let response = self.inner().connections.call(message, self.inner().deadline(), method).await;
        self.ended();
        Ok(Settlement::of_limits(response?.limits))
    }

    /// Ends the reservation and gives all hits back. After [`Error::NoAnswer`] the same call may be repeated.
    pub async fn cancel(&self) -> Result<Settlement, Error> {
        if self.is_refused() {
            return Ok(Settlement::of_limits(Vec::new()));
        }
        let message = v1::CancelRequest {
            domain: self.request.domain.clone(),
            descriptors: self.descriptors(|_| None),
            reservation_id: self.id.clone(),
        };
        check_size(&message)?;
        let method = |mut server: Server, call: Call<_>| async move { server.cancel(call).await };
        let response = self.inner().connections.call(message, self.inner().deadline(), method).await;
        self.ended();
        Ok(Settlement::of_limits(response?.limits))
    }

    /// Whether the server has decided that the hits are held.
    pub(crate) fn is_held(&self) -> bool {
        self.decision.allowed && self.decision.source == Source::Server
    }

    /// Whether the server has decided that nothing is held.
    fn is_refused(&self) -> bool {
        !self.decision.allowed && self.decision.source == Source::Server
    }

    fn inner(&self) -> &Inner {
        &self.client.0
    }

    fn descriptors(&self, hits: impl Fn(&Descriptor) -> Option<u64>) -> Vec<v1::Descriptor> {
        self.request.descriptors.iter().map(|each| each.message(hits(each))).collect()
    }

    /// Hits may have been given back.
    fn ended(&self) {
        let inner = self.inner();
        inner.denials.refund(inner.hasher.key_of(&self.request), std::time::Instant::now());
    }
}

impl Settlement {
    fn of_limits(limits: Vec<v1::SettledLimit>) -> Self {
        let limits = limits.into_iter().map(|limit| SettledLimit {
            descriptor: limit.descriptor_index as usize,
            outcome: limit.outcome(),
            reserved: limit.reserved,
            not_charged: limit.not_charged,
            remaining: limit.remaining,
            reset_after: duration(limit.reset_after),
            rule: limit.rule,
        });
        Self { limits: limits.collect() }
    }
}

/// Settles, and repeats it a few times if there is no answer.
pub(crate) async fn settle_surely(reservation: &Reservation, actual: u64) -> Result<Settlement, Error> {
    let mut result = reservation.settle(actual).await;
    for pause_ms in [100, 200, 400, 800] {
        match &result {
            Err(Error::NoAnswer(NoAnswer::Failed { .. } | NoAnswer::QueueFull)) => {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                result = reservation.settle(actual).await;
            }
            Ok(_) | Err(Error::InvalidRequest(_)) => break,
        }
    }
    result
}
