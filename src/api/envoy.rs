//! Envoy's rate limit service over gRPC.

use std::time::Duration;

use smallvec::SmallVec;
use tonic::{Request, Response};

use crate::{
    algorithm::Ask,
    api::{
        Api, Error, metadata, patience,
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
        span,
    },
    descriptor::Entry,
    limiter::{self, Answer, CurrentLimit, Override, Status},
    rules::Unit,
    time::Stopwatch,
};

/// How times until reset are told. Rounded ones are rounded up: whoever waits that long has waited long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resets {
    /// At least one second: Envoy prints whole seconds by cutting.
    WholeSeconds,
    /// Whole milliseconds.
    Millis,
    /// To the nanosecond.
    Exact,
}

#[tonic::async_trait]
impl RateLimitService for Api {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, tonic::Status> {
        match &self.traces {
            None => self.called(&request).await,
            Some(traces) => {
                let span = span::of(traces, &request);
                let answered = self.called(&request).await;
                span::end(span, answered.as_ref().map(Response::get_ref));
                answered
            }
        }
    }
}

impl Api {
    async fn called(
        &self,
        request: &Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, tonic::Status> {
        let patience = patience::of(request.metadata());
        let resets = if self.settings.exact_reset { Resets::Exact } else { Resets::WholeSeconds };
        Ok(Response::new(self.answer(request.get_ref(), patience, resets).await?))
    }

    /// Answers one request, at its turn where it has to wait. A turn after the caller's patience is refused at
    /// once.
    pub async fn answer(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
        resets: Resets,
    ) -> Result<RateLimitResponse, Error> {
        let stopwatch = Stopwatch::start();
        let decided =
            self.decide(request, patience, resets).inspect_err(|error| self.metrics.unanswered(*error));
        self.metrics.duration.record(stopwatch.elapsed());
        let (response, delay) = decided?;
        if !delay.is_zero() {
            let _waiting = self.metrics.wait(delay);
            tokio::time::sleep(delay).await;
        }
        Ok(response)
    }

    fn decide(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
        resets: Resets,
    ) -> Result<(RateLimitResponse, Duration), Error> {
        let snapshot = self.limiter.snapshot();
        asked(request, patience, |asked| {
            let answer = snapshot.decide(asked)?;
            if let Some(denials) = &self.denials {
                denials.log(request, &answer, snapshot.now());
            }
            Ok((self.response_of(request, &answer, resets), answer.delay))
        })
    }

    fn response_of(
        &self,
        request: &RateLimitRequest,
        answer: &Answer<'_>,
        resets: Resets,
    ) -> RateLimitResponse {
        RateLimitResponse {
            overall_code: code(answer.passes).into(),
            statuses: answer.statuses.iter().map(|status| status_of(status, resets)).collect(),
            response_headers_to_add: self.headers.of(answer, self.limiter.modes()),
            dynamic_metadata: self.settings.dynamic_metadata.then(|| metadata::of(request, answer)),
            ..RateLimitResponse::default()
        }
    }
}

/// Hands the request to `answer` in the limiter's words.
pub(super) fn asked<T>(
    request: &RateLimitRequest,
    patience: Option<Duration>,
    answer: impl FnOnce(&limiter::Request<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
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
    answer(&limiter::Request { domain: &request.domain, descriptors: &descriptors, patience })
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

fn status_of(status: &Status<'_>, resets: Resets) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.passes).into(),
        current_limit: status.limit.as_ref().map(limit_of),
        limit_remaining: clamped(status.remaining),
        duration_until_reset: status.reset_after.map(|after| duration_of(after, resets)),
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

fn duration_of(after: Duration, resets: Resets) -> prost_types::Duration {
    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    let told = match resets {
        Resets::WholeSeconds => rounded_up(after, SECOND).max(SECOND),
        Resets::Millis => rounded_up(after, MILLI),
        Resets::Exact => after,
    };
    // There are less than a billion nanoseconds beside the seconds, so they fit.
    let nanos = told.subsec_nanos() as i32;
    prost_types::Duration { seconds: i64::try_from(told.as_secs()).unwrap_or(i64::MAX), nanos }
}

/// `time`, or the next multiple of `step`, which divides a second.
fn rounded_up(time: Duration, step: Duration) -> Duration {
    let rest = time.subsec_nanos() % u32::try_from(step.as_nanos()).unwrap_or(u32::MAX);
    if rest == 0 { time } else { time.saturating_add(step - Duration::from_nanos(rest.into())) }
}

fn code(passes: bool) -> Code {
    if passes { Code::Ok } else { Code::OverLimit }
}

fn clamped(hits: u64) -> u32 {
    u32::try_from(hits).unwrap_or(u32::MAX)
}
