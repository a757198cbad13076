//! Hits that are held until it is known how many are used.

use std::time::Duration;

use prost_types::Duration as WireDuration;
use tokio::time::Instant;
use tonic::Request as Call;

use crate::{
    Client, Decision, Error, InvalidRequest, Request,
    client::Inner,
    connections::{Server, runtime_ended},
    decision::duration,
    options::{DAY, MILLISECOND, in_range},
    request::check_size,
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
    /// What happens at the expiry to the hits of each descriptor without an `on_expiry` of its own. Default: release.
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
    /// The decision on the request. If the default has decided, the hits may be held or not: settle or cancel the
    /// reservation nevertheless.
    pub decision: Decision,
    /// Whether a reservation of this id was made before and is not open any more. Then nothing is held.
    pub ended: bool,
    pub(crate) client: Client,
    pub(crate) request: Request,
    /// The id of the reservation; empty if the server has decided that nothing is held.
    pub(crate) id: String,
}

/// How a reservation has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// The limits that apply, in the order of the descriptors.
    pub limits: Vec<SettledLimit>,
    /// Whether the outcome of a limit is [`SettledOutcome::Unknown`].
    pub unknown: bool,
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
    /// Hits that were used and not charged, because the limit does not go as far.
    pub not_charged: u64,
    /// Hits that are left.
    pub remaining: u64,
    /// The time until the limit is unused.
    pub reset_after: Duration,
}

impl Client {
    /// Holds the hits of a request, all of them or none. [`Options::on_no_answer`](crate::Options::on_no_answer)
    /// decides if the server gives no answer.
    ///
    /// If its future is dropped before it is ready, as servers do with the handler of a caller that goes away, the hits
    /// are given back when the call has ended.
    pub async fn reserve(&self, request: &Request, terms: Terms) -> Result<Reservation, InvalidRequest> {
        in_range("ttl", terms.ttl, MILLISECOND..=DAY).map_err(|error| InvalidRequest(error.to_string()))?;
        // Chosen here, so that hits can be settled that were held without an answer.
        let id = self.0.hasher.unique_id();
        let message = v1::ReserveRequest {
            domain: request.domain.clone(),
            descriptors: request.descriptors.iter().map(|each| each.message(each.hits)).collect(),
            amount: request.hits,
            ttl: WireDuration::try_from(terms.ttl).ok(),
            reservation_id: id.clone(),
            on_expiry: terms.on_expiry.into(),
        };
        check_size(&message)?;
        let decision = self.0.or_default(Err(runtime_ended().into()))?;
        let (client, request) = (self.clone(), request.clone());
        let unanswered = Reservation { decision, ended: false, client, request, id };
        // Its own task, because a cancellation must not reach the server before the call that it ends.
        let call = self.0.runtime.spawn(unanswered.clone().call(message, self.0.deadline()));
        let answered = match call.await {
            Ok(unclaimed) => unclaimed?.0.take(),
            Err(_) => None,
        };
        Ok(answered.unwrap_or(unanswered))
    }
}

/// The result of a call, which is canceled unless its caller takes it.
struct Unclaimed(Option<Reservation>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(reservation) = self.0.take() {
            let runtime = reservation.inner().runtime.clone();
            runtime.spawn(async move {
                // Without an answer, its expiry decides.
                let _ = reservation.cancel().await;
            });
        }
    }
}

impl Reservation {
    async fn call(
        mut self,
        message: v1::ReserveRequest,
        deadline: Instant,
    ) -> Result<Unclaimed, InvalidRequest> {
        let inner = self.inner();
        let method = |mut server: Server, call: Call<_>| async move { server.reserve(call).await };
        let response = inner.connections.call(message, deadline, method).await;
        let answer = response.and_then(|response| {
            let decision = Decision::from_answer(response.answer.unwrap_or_default())?;
            Ok((decision, response.reservation_id, response.ended))
        });
        match answer {
            Ok((decision, id, ended)) => {
                self.decision = decision;
                self.id = id;
                self.ended = ended;
            }
            Err(status) => self.decision = inner.or_default(Err(status.into()))?,
        }
        Ok(Unclaimed(Some(self)))
    }

    /// Ends the reservation at the hits that were used. They apply to each descriptor without hits of its own; the
    /// others keep theirs. A reservation that is not known any more, or never was, is charged now.
    ///
    /// The call goes on if its future is dropped. After [`Error::NoAnswer`] it may be repeated: the hits count once. If
    /// the server has decided that nothing is held, nothing is sent and the settlement has no limits: the reservation
    /// is refused, or allowed only by the shadow mode of all rules.
    pub async fn settle(&self, actual: u64) -> Result<Settlement, Error> {
        self.settle_each(actual, []).await
    }

    /// Ends the reservation at the hits that were used. A descriptor has its number in `hits`, by its index, otherwise
    /// hits of its own, otherwise `actual`. A reservation that is not known any more, or never was, is charged now. An
    /// index without a descriptor is an [`Error::InvalidRequest`].
    ///
    /// The call goes on if its future is dropped. After [`Error::NoAnswer`] it may be repeated: the hits count once. If
    /// the server has decided that nothing is held, nothing is sent and the settlement has no limits.
    pub async fn settle_each(
        &self,
        actual: u64,
        hits: impl IntoIterator<Item = (usize, u64)>,
    ) -> Result<Settlement, Error> {
        let mut used = self.clone();
        let descriptors = used.request.descriptors.len();
        for (index, hits) in hits {
            let Some(descriptor) = used.request.descriptors.get_mut(index) else {
                let problem = format!("hits of descriptor {index}, of {descriptors} descriptors");
                return Err(InvalidRequest(problem).into());
            };
            descriptor.hits = Some(hits);
        }
        used.end(Some(actual)).await
    }

    /// Ends the reservation and gives all hits back. The call goes on if its future is dropped. After
    /// [`Error::NoAnswer`] it may be repeated. If the server has decided that nothing is held, nothing is sent and the
    /// settlement has no limits.
    pub async fn cancel(&self) -> Result<Settlement, Error> {
        self.clone().end(None).await
    }

    /// Settles at these hits, or cancels.
    async fn end(self, actual: Option<u64>) -> Result<Settlement, Error> {
        if self.id.is_empty() {
            return Ok(Settlement::default());
        }
        let runtime = self.inner().runtime.clone();
        let call = runtime.spawn(async move { self.send_end(actual).await });
        call.await.unwrap_or_else(|_| Err(runtime_ended().into()))
    }

    async fn send_end(&self, actual: Option<u64>) -> Result<Settlement, Error> {
        let inner = self.inner();
        let (domain, reservation_id) = (self.request.domain.clone(), self.id.clone());
        let descriptors = self.request.descriptors.iter().map(|each| each.message(each.hits)).collect();
        let (calls, deadline) = (&inner.connections, inner.deadline());
        let _refunding = inner.denials.refunding(inner.hasher.key_of(&self.request));
        if let Some(actual) = actual {
            let message = v1::SettleRequest { domain, descriptors, reservation_id, actual };
            check_size(&message)?;
            let method = |mut server: Server, call: Call<_>| async move { server.settle(call).await };
            let response = calls.call(message, deadline, method).await?;
            Ok(Settlement::from_message(response.limits, response.unknown))
        } else {
            let message = v1::CancelRequest { domain, descriptors, reservation_id };
            check_size(&message)?;
            let method = |mut server: Server, call: Call<_>| async move { server.cancel(call).await };
            let response = calls.call(message, deadline, method).await?;
            Ok(Settlement::from_message(response.limits, response.unknown))
        }
    }

    fn inner(&self) -> &Inner {
        &self.client.0
    }
}

impl Settlement {
    fn from_message(limits: Vec<v1::SettledLimit>, unknown: bool) -> Self {
        let limits = limits.into_iter().map(|limit| SettledLimit {
            descriptor: limit.descriptor_index as usize,
            outcome: limit.outcome(),
            reserved: limit.reserved,
            not_charged: limit.not_charged,
            remaining: limit.remaining,
            reset_after: duration(limit.reset_after),
            rule: limit.rule,
        });
        Self { limits: limits.collect(), unknown }
    }
}
