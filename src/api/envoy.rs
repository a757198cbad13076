//! Envoy's rate limit service over gRPC.

use std::{borrow::Borrow, time::Duration};

use smallvec::SmallVec;
use tonic::{Request, Response};

use crate::{
    algorithm::Operation,
    api::{
        Api, Error, metadata, patience,
        proto::envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
            },
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse,
                rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit},
            },
        },
        span,
    },
    cluster::OpenForwards,
    descriptor::Entry,
    limiter::{self, Answer, CurrentLimit, LimiterError, Override, Status},
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

impl Api {
    /// Answers a call.
    pub(super) async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, tonic::Status> {
        match &self.traces {
            None => self.called(request).await,
            Some(traces) => {
                let span = span::of(traces, &request);
                let answered = self.called(request).await;
                span::end(span, answered.as_ref().map(Response::get_ref));
                answered
            }
        }
    }

    async fn called(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, tonic::Status> {
        let patience = patience::of(request.metadata().as_ref());
        let connection = request.extensions().get().cloned().unwrap_or_default();
        Ok(Response::new(self.answer(request.into_inner(), patience, self.resets(), &connection).await?))
    }

    /// Counts a request that is refused with `error`.
    pub(super) fn refused(&self, error: Error) -> Error {
        self.metrics.unanswered(error);
        error
    }

    /// How times until reset are told over gRPC.
    pub(super) fn resets(&self) -> Resets {
        if self.settings.exact_reset { Resets::Exact } else { Resets::WholeSeconds }
    }

    /// Answers one request that came over `connection`, at its turn where it has to wait. A turn after the caller's
    /// patience is refused at once. A request that is handed over is freed before it waits.
    pub async fn answer(
        &self,
        request: impl Borrow<RateLimitRequest>,
        patience: Option<Duration>,
        resets: Resets,
        connection: &OpenForwards,
    ) -> Result<RateLimitResponse, Error> {
        let (response, delay) = self.decided(request.borrow(), patience, resets, connection).await?;
        drop(request);
        if !delay.is_zero() {
            self.wait(delay).await;
        }
        Ok(response)
    }

    /// Decides one request, wherever its counters are. The answer leaves after the delay.
    async fn decided(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
        resets: Resets,
        connection: &OpenForwards,
    ) -> Result<(RateLimitResponse, Duration), Error> {
        let stopwatch = Stopwatch::start();
        let mut decided = self.decide(request, patience, resets);
        if let Err(Error::Unanswered(LimiterError::Remote)) = decided {
            decided = self.decide_afar(request, patience, resets, connection).await;
        }
        self.metrics.duration.record(stopwatch.elapsed());
        decided.map_err(|error| self.refused(error))
    }

    /// Waits until the turn of a request that was given this delay.
    pub async fn wait(&self, delay: Duration) {
        let _waiting = self.metrics.wait(delay);
        tokio::time::sleep(delay).await;
    }

    fn decide(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
        resets: Resets,
    ) -> Result<(RateLimitResponse, Duration), Error> {
        let snapshot = self.limiter.view();
        asked(request, patience, |asked| {
            let answer = snapshot.decide(asked)?;
            if let Some(denials) = &self.denials {
                denials.log(asked, &answer, snapshot.now());
            }
            Ok((self.response_of(request, &answer, resets), answer.delay))
        })
    }

    /// The same where other replicas hold the counters.
    async fn decide_afar(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
        resets: Resets,
        connection: &OpenForwards,
    ) -> Result<(RateLimitResponse, Duration), Error> {
        let snapshot = self.limiter.view();
        let entries = entries_of(request);
        let descriptors = descriptors_of(request, &entries)?;
        let asked =
            limiter::Request { domain: &request.domain, descriptors: &descriptors, timeout: patience };
        let answer = snapshot.decide_remote(&asked, connection).await?;
        if let Some(denials) = &self.denials {
            denials.log(&asked, &answer, snapshot.now());
        }
        Ok((self.response_of(request, &answer, resets), answer.delay))
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
    let entries = entries_of(request);
    let descriptors = descriptors_of(request, &entries)?;
    answer(&limiter::Request { domain: &request.domain, descriptors: &descriptors, timeout: patience })
}

/// The entries of each descriptor.
pub(super) type Entries<'r> = SmallVec<[SmallVec<[Entry<'r>; 4]>; 2]>;

pub(super) fn entries_of(request: &RateLimitRequest) -> Entries<'_> {
    request.descriptors.iter().map(entries_of_one).collect()
}

fn entries_of_one(descriptor: &RateLimitDescriptor) -> SmallVec<[Entry<'_>; 4]> {
    descriptor.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect()
}

pub(super) fn descriptors_of<'r>(
    request: &RateLimitRequest,
    entries: &'r Entries<'_>,
) -> Result<SmallVec<[limiter::Descriptor<'r>; 2]>, Error> {
    let each = |(index, (descriptor, entries)): (usize, (&RateLimitDescriptor, &'r SmallVec<_>))| {
        let limit = descriptor.limit.as_ref().map(|limit| override_of(index, limit)).transpose()?;
        let hits = HitsAsked { own: descriptor.hits_addend, are_given_back: descriptor.is_negative_hits };
        Ok(limiter::Descriptor { entries, operation: hits.ask(request.hits_addend), limit })
    };
    request.descriptors.iter().zip(entries).enumerate().map(each).collect()
}

/// The hits that a descriptor brings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HitsAsked {
    /// In place of the request's.
    pub(super) own: Option<u64>,
    pub(super) are_given_back: bool,
}

impl HitsAsked {
    /// A descriptor's own hits win over the request's, and 0 of them is a look; the request's 0 means 1.
    pub(super) fn ask(self, of_request: u32) -> Operation {
        match self.own.unwrap_or_else(|| of_request.max(1).into()) {
            0 => Operation::Peek,
            hits if self.are_given_back => Operation::Refund(hits),
            hits => Operation::Charge(hits),
        }
    }
}

fn override_of(descriptor: usize, limit: &RateLimitOverride) -> Result<Override, Error> {
    let unit = unit(limit.unit).ok_or(Error::Unit { descriptor, number: limit.unit })?;
    Ok(Override { requests_per_unit: limit.requests_per_unit, unit })
}

/// The unit of a caller's limit; `None` where that is none.
pub(super) fn unit(number: i32) -> Option<Unit> {
    match number {
        1 => Some(Unit::Second),
        2 => Some(Unit::Minute),
        3 => Some(Unit::Hour),
        4 => Some(Unit::Day),
        5 => Some(Unit::Month),
        6 => Some(Unit::Year),
        // The unit's own enumeration ends with the year, but that of answers goes on, and callers use it.
        7 => Some(Unit::Week),
        _no_unit => None,
    }
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
    RateLimit {
        requests_per_unit: clamped(limit.requests_per_unit),
        unit: unit_of(limit).into(),
        name: limit.name.unwrap_or_default().to_owned(),
    }
}

pub(super) fn unit_of(limit: &CurrentLimit<'_>) -> rate_limit::Unit {
    match limit.unit {
        None => rate_limit::Unit::Unknown,
        Some(Unit::Second) => rate_limit::Unit::Second,
        Some(Unit::Minute) => rate_limit::Unit::Minute,
        Some(Unit::Hour) => rate_limit::Unit::Hour,
        Some(Unit::Day) => rate_limit::Unit::Day,
        Some(Unit::Week) => rate_limit::Unit::Week,
        Some(Unit::Month) => rate_limit::Unit::Month,
        Some(Unit::Year) => rate_limit::Unit::Year,
    }
}

pub(super) fn duration_of(after: Duration, resets: Resets) -> prost_types::Duration {
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

pub(super) fn code(passes: bool) -> Code {
    if passes { Code::Ok } else { Code::OverLimit }
}

pub(super) fn clamped(hits: u64) -> u32 {
    u32::try_from(hits).unwrap_or(u32::MAX)
}
