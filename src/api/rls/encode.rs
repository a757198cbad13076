//! Encodes a reply into one buffer: a gRPC frame with a `RateLimitResponse`. All lengths are computed before.

use std::time::Duration;

use prost::Message;
use tollgate_limiter::limiter::{Answer, Status};
use tollgate_rules::DisplayedLimit;
use tollgate_wire::{
    proto::envoy::{config::core::v3::HeaderValue, service::ratelimit::v3::rate_limit_response::Code},
    protobuf::{FRAME_PREFIX_BYTES, begin, bytes_len, frame_prefix, number, number_len, text_field},
};

use crate::api::{call::ResetPrecision, descriptors::unit_number};

/// Encodes a reply with headers, a body unless it is empty, and dynamic metadata.
#[inline]
pub(super) fn encode(
    answer: &Answer<'_>,
    headers: &[HeaderValue],
    body: &[u8],
    metadata: Option<&prost_types::Struct>,
    precision: ResetPrecision,
) -> Vec<u8> {
    let statuses = || answer.statuses.iter().map(|status| DescriptorStatus::new(status, precision));
    let code = code(answer.passes) as u64;
    let length = number_len(code)
        + statuses().map(|status| bytes_len(status.len())).sum::<usize>()
        + headers.iter().map(|header| bytes_len(header.encoded_len())).sum::<usize>()
        + if body.is_empty() { 0 } else { bytes_len(body.len()) }
        + metadata.map_or(0, |metadata| bytes_len(metadata.encoded_len()));
    let mut frame = Vec::with_capacity(FRAME_PREFIX_BYTES + length);
    frame.extend_from_slice(&frame_prefix(length));
    number(&mut frame, 1, code);
    for status in statuses() {
        begin(&mut frame, 2, status.len());
        status.write(&mut frame);
    }
    for header in headers {
        begin(&mut frame, 3, header.encoded_len());
        // Infallible: a vector grows as needed.
        header.encode_raw(&mut frame);
    }
    if !body.is_empty() {
        begin(&mut frame, 5, body.len());
        frame.extend_from_slice(body);
    }
    if let Some(metadata) = metadata {
        begin(&mut frame, 6, metadata.encoded_len());
        metadata.encode_raw(&mut frame);
    }
    frame
}

fn code(passes: bool) -> Code {
    if passes { Code::Ok } else { Code::OverLimit }
}

fn clamped(hits: u64) -> u64 {
    hits.min(u32::MAX.into())
}

fn rounded(after: Duration, precision: ResetPrecision) -> Duration {
    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    match precision {
        ResetPrecision::Seconds => rounded_up(after, SECOND).max(SECOND),
        ResetPrecision::Millis => rounded_up(after, MILLI),
        ResetPrecision::Nanos => after,
    }
}

/// Rounds up to a multiple of `step`, which divides a second.
fn rounded_up(time: Duration, step: Duration) -> Duration {
    let rest = time.subsec_nanos() % u32::try_from(step.as_nanos()).unwrap_or(u32::MAX);
    if rest == 0 { time } else { time.saturating_add(step - Duration::from_nanos(rest.into())) }
}

/// The status of one descriptor.
struct DescriptorStatus<'s> {
    code: u64,
    limit: Option<ReplyLimit<'s>>,
    remaining: u64,
    reset: Option<Duration>,
}

/// The limit that was applied.
struct ReplyLimit<'s> {
    requests_per_unit: u64,
    unit: u64,
    name: &'s str,
}

impl<'s> DescriptorStatus<'s> {
    fn new(status: &Status<'s>, precision: ResetPrecision) -> Self {
        Self {
            code: code(status.passes) as u64,
            limit: status.limit.map(|limit| ReplyLimit::new(limit, status)),
            remaining: clamped(status.remaining),
            reset: status.reset_after.map(|after| rounded(after, precision)),
        }
    }

    fn len(&self) -> usize {
        number_len(self.code)
            + self.limit.as_ref().map_or(0, |limit| bytes_len(limit.len()))
            + number_len(self.remaining)
            + self.reset.map_or(0, |reset| bytes_len(reset_len(reset)))
    }

    fn write(&self, frame: &mut Vec<u8>) {
        number(frame, 1, self.code);
        if let Some(limit) = &self.limit {
            begin(frame, 2, limit.len());
            limit.write(frame);
        }
        number(frame, 3, self.remaining);
        if let Some(reset) = self.reset {
            begin(frame, 4, reset_len(reset));
            number(frame, 1, seconds(reset));
            number(frame, 2, reset.subsec_nanos().into());
        }
    }
}

impl<'s> ReplyLimit<'s> {
    fn new(limit: DisplayedLimit, status: &Status<'s>) -> Self {
        Self {
            requests_per_unit: clamped(limit.requests_per_unit),
            unit: unit_number(limit.unit) as u64,
            name: status.rule.and_then(|rule| rule.options().name.as_deref()).unwrap_or_default(),
        }
    }

    fn len(&self) -> usize {
        let name = if self.name.is_empty() { 0 } else { bytes_len(self.name.len()) };
        number_len(self.requests_per_unit) + number_len(self.unit) + name
    }

    fn write(&self, frame: &mut Vec<u8>) {
        number(frame, 1, self.requests_per_unit);
        number(frame, 2, self.unit);
        text_field(frame, 3, self.name);
    }
}

fn reset_len(reset: Duration) -> usize {
    number_len(seconds(reset)) + number_len(reset.subsec_nanos().into())
}

/// The field of `Duration` is signed.
fn seconds(reset: Duration) -> u64 {
    reset.as_secs().min(i64::MAX as u64)
}
