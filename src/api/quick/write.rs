//! Writes an answer as it leaves: a gRPC frame around a message, of which every length is known beforehand.

use prost::{
    Message,
    encoding::{encode_varint, encoded_len_varint},
};

use crate::{
    api::{
        envoy::{self, Resets},
        frame,
        proto::envoy::config::core::v3::HeaderValue,
    },
    limiter::{Answer, CurrentLimit, Status},
};

// What precedes a field: its number and, below that, three bits that say how it is written.
const NUMBER: u8 = 0;
const BYTES: u8 = 2;

/// An answer with these headers, framed.
pub(super) fn framed(answer: &Answer<'_>, headers: &[HeaderValue], resets: Resets) -> Vec<u8> {
    let statuses = || answer.statuses.iter().map(|status| Told::of(status, resets));
    let length = number_len(envoy::code(answer.passes) as u64)
        + statuses().map(|status| bytes_len(status.len())).sum::<usize>()
        + headers.iter().map(|header| bytes_len(header.encoded_len())).sum::<usize>();
    let mut frame = frame::begin(length);
    number(&mut frame, 1, envoy::code(answer.passes) as u64);
    for status in statuses() {
        begin(&mut frame, 2, status.len());
        status.write(&mut frame);
    }
    for header in headers {
        begin(&mut frame, 3, header.encoded_len());
        // A vector grows as needed.
        header.encode_raw(&mut frame);
    }
    frame
}

/// What is told of a descriptor.
struct Told<'s> {
    code: u64,
    limit: Option<Limit<'s>>,
    remaining: u64,
    reset: Option<prost_types::Duration>,
}

/// What is told of the limit in force.
struct Limit<'s> {
    requests_per_unit: u64,
    unit: u64,
    name: &'s str,
}

impl<'s> Told<'s> {
    fn of(status: &Status<'s>, resets: Resets) -> Self {
        Self {
            code: envoy::code(status.passes) as u64,
            limit: status.limit.as_ref().map(Limit::of),
            remaining: envoy::clamped(status.remaining).into(),
            reset: status.reset_after.map(|after| envoy::duration_of(after, resets)),
        }
    }

    fn len(&self) -> usize {
        number_len(self.code)
            + self.limit.as_ref().map_or(0, |limit| bytes_len(limit.len()))
            + number_len(self.remaining)
            + self.reset.as_ref().map_or(0, |reset| bytes_len(reset_len(reset)))
    }

    fn write(&self, frame: &mut Vec<u8>) {
        number(frame, 1, self.code);
        if let Some(limit) = &self.limit {
            begin(frame, 2, limit.len());
            limit.write(frame);
        }
        number(frame, 3, self.remaining);
        if let Some(reset) = &self.reset {
            begin(frame, 4, reset_len(reset));
            number(frame, 1, reset.seconds as u64);
            number(frame, 2, reset.nanos as u64);
        }
    }
}

impl<'s> Limit<'s> {
    fn of(limit: &CurrentLimit<'s>) -> Self {
        Self {
            requests_per_unit: envoy::clamped(limit.requests_per_unit).into(),
            unit: envoy::unit_of(limit) as u64,
            name: limit.name.unwrap_or_default(),
        }
    }

    fn len(&self) -> usize {
        let name = if self.name.is_empty() { 0 } else { bytes_len(self.name.len()) };
        number_len(self.requests_per_unit) + number_len(self.unit) + name
    }

    fn write(&self, frame: &mut Vec<u8>) {
        number(frame, 1, self.requests_per_unit);
        number(frame, 2, self.unit);
        if !self.name.is_empty() {
            begin(frame, 3, self.name.len());
            frame.extend_from_slice(self.name.as_bytes());
        }
    }
}

fn reset_len(reset: &prost_types::Duration) -> usize {
    number_len(reset.seconds as u64) + number_len(reset.nanos as u64)
}

/// Writes a number; 0 is what is not there.
fn number(frame: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        frame.push(field << 3 | NUMBER);
        encode_varint(value, frame);
    }
}

fn number_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value) }
}

/// Writes what precedes so many bytes.
fn begin(frame: &mut Vec<u8>, field: u8, length: usize) {
    frame.push(field << 3 | BYTES);
    encode_varint(length as u64, frame);
}

fn bytes_len(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}
