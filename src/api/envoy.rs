//! Envoy's rate limit service over gRPC.

use std::time::Duration;

use smallvec::SmallVec;
use tonic::{Request, Response};

use crate::{
    algorithm::Ask,
    api::{
        Api, Error, Settings, metadata, patience,
        proto::envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
            },
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse,
                rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit},
                rate_limit_service_server::RateLimitService,
            },
        },
    },
    descriptor::Entry,
    limiter::{self, Answer, CurrentLimit, Override, Status},
    rules::Unit,
};

#[tonic::async_trait]
impl RateLimitService for Api {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, tonic::Status> {
        let patience = patience::of(request.metadata());
        Ok(Response::new(self.answer(request.get_ref(), patience).await?))
    }
}

impl Api {
    /// Answers one request, at its turn where it has to wait. A turn after the caller's patience is refused at
    /// once.
    pub async fn answer(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
    ) -> Result<RateLimitResponse, Error> {
        let (response, delay) = self.decide(request, patience)?;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(response)
    }

    fn decide(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
    ) -> Result<(RateLimitResponse, Duration), Error> {
        let entries: SmallVec<[SmallVec<[Entry<'_>; 4]>; 2]> =
            request.descriptors.iter().map(entries_of).collect();
        let descriptors = request
            .descriptors
            .iter()
            .zip(&entries)
            .enumerate()
            .map(|(index, (descriptor, entries))| {
                let limit = descriptor.limit.as_ref().map(|limit| override_of(index, limit)).transpose()?;
                Ok(limiter::Descriptor { entries, ask: ask_of(request, descriptor), limit })
            })
            .collect::<Result<SmallVec<[_; 2]>, Error>>()?;
        let snapshot = self.limiter.snapshot();
        let answer = snapshot.decide(&limiter::Request {
            domain: &request.domain,
            descriptors: &descriptors,
            patience,
        })?;
        Ok((response_of(request, &answer, self.settings), answer.delay))
    }
}

fn entries_of(descriptor: &RateLimitDescriptor) -> SmallVec<[Entry<'_>; 4]> {
    descriptor.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect()
}

/// A descriptor's own hits win over the request's, and 0 of them is a look; the request's 0 means 1.
fn ask_of(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Ask {
    match descriptor.hits_addend.unwrap_or_else(|| request.hits_addend.max(1).into()) {
        0 => Ask::Look,
        hits if descriptor.is_negative_hits => Ask::Refund(hits),
        hits => Ask::Charge(hits),
    }
}

fn override_of(descriptor: usize, limit: &RateLimitOverride) -> Result<Override, Error> {
    let unit = match limit.unit {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        // The unit's own enumeration ends with the year, but that of answers goes on, and callers use it.
        7 => Unit::Week,
        number => return Err(Error::Unit { descriptor, number }),
    };
    Ok(Override { requests_per_unit: limit.requests_per_unit, unit })
}

fn response_of(request: &RateLimitRequest, answer: &Answer<'_>, settings: Settings) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(answer.passes).into(),
        statuses: answer.statuses.iter().map(|status| status_of(status, settings)).collect(),
        dynamic_metadata: settings.dynamic_metadata.then(|| metadata::of(request, answer)),
        ..RateLimitResponse::default()
    }
}

fn status_of(status: &Status<'_>, settings: Settings) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.passes).into(),
        current_limit: status.limit.as_ref().map(limit_of),
        limit_remaining: clamped(status.remaining),
        duration_until_reset: status.reset_after.map(|after| duration_of(after, settings)),
        quota: None,
    }
}

fn limit_of(limit: &CurrentLimit<'_>) -> RateLimit {
    let unit = match limit.unit {
        None => rate_limit::Unit::Unknown,
        Some(Unit::Second) => rate_limit::Unit::Second,
        Some(Unit::Minute) => rate_limit::Unit::Minute,
        Some(Unit::Hour) => rate_limit::Unit::Hour,
        Some(Unit::Day) => rate_limit::Unit::Day,
        Some(Unit::Week) => rate_limit::Unit::Week,
        Some(Unit::Month) => rate_limit::Unit::Month,
        Some(Unit::Year) => rate_limit::Unit::Year,
    };
    RateLimit {
        requests_per_unit: clamped(limit.requests_per_unit),
        unit: unit.into(),
        name: limit.name.unwrap_or_default().to_owned(),
    }
}

/// Envoy prints whole seconds by cutting, so unless exact times are wanted they are rounded up, to at least one.
fn duration_of(after: Duration, settings: Settings) -> prost_types::Duration {
    let whole = i64::try_from(after.as_secs()).unwrap_or(i64::MAX);
    if settings.exact_reset {
        // Less than a billion, so it fits.
        return prost_types::Duration { seconds: whole, nanos: after.subsec_nanos() as i32 };
    }
    let seconds = whole.saturating_add(i64::from(0 < after.subsec_nanos())).max(1);
    prost_types::Duration { seconds, nanos: 0 }
}

fn code(passes: bool) -> Code {
    if passes { Code::Ok } else { Code::OverLimit }
}

fn clamped(hits: u64) -> u32 {
    u32::try_from(hits).unwrap_or(u32::MAX)
}
