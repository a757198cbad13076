//! Hits that are held until it is known how many are used.

use std::time::Duration;

use prost_types::Duration as WireDuration;
use tokio::time::{Instant, sleep};
use tonic::{Request as Call, Status};

use crate::{
    Client, Decision, Error, InvalidRequest, Request, Source,
    client::Inner,
    connections::Server,
    decision::duration,
    request::{Descriptor, check_size},
    v1,
};

/// Pauses before a settlement or a cancellation without an answer is repeated.
const REPEAT_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

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
    /// None if the server has decided that nothing is held.
    id: Option<String>,
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
    ///
    /// If its future is dropped before it is ready, as servers do with the handler of a caller that goes away, the hits
    /// are given back when the call has ended.
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
        let ended = Status::unavailable("the runtime of the client has ended");
        let decision = self.0.or_default(Err(ended.into()))?;
        let (client, request) = (self.clone(), request.clone());
        let unanswered = Reservation { decision, begin, client, request, id: Some(id) };
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
                let _ = repeated(|| reservation.cancel()).await;
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
            Ok((Decision::of_answer(response.answer.unwrap_or_default())?, response.reservation_id))
        });
        match answer {
            Ok((decision, id)) => {
                self.decision = decision;
                self.id = Some(id).filter(|id| !id.is_empty());
            }
            Err(status) => self.decision = inner.or_default(Err(status.into()))?,
        }
        Ok(Unclaimed(Some(self)))
    }

    /// Ends the reservation at the hits that were used. They apply to each descriptor without hits of its own; the
    /// others keep theirs. A reservation that is not known any more, or never was, is charged now.
    ///
    /// After [`Error::NoAnswer`] the same call may be repeated: the hits count once. If the server has decided that
    /// nothing is held, nothing is sent and the settlement has no limits: the reservation is refused, or allowed only
    /// by the shadow mode of all rules.
    pub async fn settle(&self, actual: u64) -> Result<Settlement, Error> {
        let Some(id) = &self.id else { return Ok(Settlement::default()) };
        let message = v1::SettleRequest {
            domain: self.request.domain.clone(),
            descriptors: self.descriptors(|each| each.hits),
            reservation_id: id.clone(),
            actual,
        };
        check_size(&message)?;
        let method = |mut server: Server, call: Call<_>| async move { server.settle(call).await };
        let response = self.inner().connections.call(message, self.inner().deadline(), method).await;
        self.ended();
        let response = response?;
        Ok(Settlement::of_message(response.limits, response.unknown))
    }

    /// Ends the reservation and gives all hits back. After [`Error::NoAnswer`] the same call may be repeated.
    pub async fn cancel(&self) -> Result<Settlement, Error> {
        let Some(id) = &self.id else { return Ok(Settlement::default()) };
        let message = v1::CancelRequest {
            domain: self.request.domain.clone(),
            descriptors: self.descriptors(|_| None),
            reservation_id: id.clone(),
        };
        check_size(&message)?;
        let method = |mut server: Server, call: Call<_>| async move { server.cancel(call).await };
        let response = self.inner().connections.call(message, self.inner().deadline(), method).await;
        self.ended();
        let response = response?;
        Ok(Settlement::of_message(response.limits, response.unknown))
    }

    /// Whether the server has decided that the hits are held.
    pub(crate) fn is_held(&self) -> bool {
        self.id.is_some() && self.decision.source == Source::Server
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
    fn of_message(limits: Vec<v1::SettledLimit>, unknown: bool) -> Self {
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

/// Ends a reservation, and repeats it twice if there is no answer.
pub(crate) async fn repeated<F>(end: impl Fn() -> F) -> Result<Settlement, Error>
where
    F: Future<Output = Result<Settlement, Error>>,
{
    let mut result = end().await;
    for pause in REPEAT_PAUSES {
        match result {
            Err(Error::NoAnswer(_)) => {
                sleep(pause).await;
                result = end().await;
            }
            Ok(_) | Err(Error::InvalidRequest(_)) => break,
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::NoAnswer;

    #[tokio::test]
    async fn settlement_without_answer_is_repeated_twice() {
        for (result, attempts) in [
            (Ok(Settlement::default()), 1),
            (Err(Error::NoAnswer(NoAnswer::QueueFull)), 3),
            (Err(Error::InvalidRequest(InvalidRequest(String::new()))), 1),
        ] {
            let calls = Cell::new(0);
            let end = || async {
                calls.set(calls.get() + 1);
                result.clone()
            };
            assert_eq!(repeated(end).await, result);
            assert_eq!(calls.get(), attempts, "{result:?}");
        }
    }
}
