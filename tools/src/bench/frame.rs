//! What requests contain: decisions from a template, or the calls of a file; and the decoding of answers.

use std::{fs, path::Path};

use axum::http::uri::PathAndQuery;
use prost::{
    Message,
    bytes::{BufMut, Bytes, BytesMut},
};
use serde::Deserialize;
use tollgate_wire::{
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response},
    protobuf::{FRAME_PREFIX_BYTES, frame_prefix},
};
use tonic::Code;

/// The placeholder for the number of the key.
pub(super) const PLACEHOLDER: &str = "{}";

/// The protobuf key of `hits_addend`, field 3. Fields may come in any order, so it can be appended.
const HITS_KEY: u8 = 3 << 3;

/// What one request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BenchCall {
    /// The path of a call that a file lists; `None` for a request for a decision.
    pub path: Option<PathAndQuery>,
    /// The message behind its frame header. A listed call is a `POST` as of gRPC, or a `GET` if it has no body.
    pub body: Bytes,
}

/// A call as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedCall {
    path: String,
    /// Hexadecimal digits.
    #[serde(default)]
    body: String,
}

impl BenchCall {
    /// The calls of a file, at least one.
    pub(super) fn read(file: &Path) -> Result<Vec<Self>, String> {
        let text = fs::read(file).map_err(|error| error.to_string())?;
        let listed: Vec<ListedCall> = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if listed.is_empty() {
            return Err("no calls".to_owned());
        }
        listed.into_iter().map(Self::new).collect()
    }

    fn new(listed: ListedCall) -> Result<Self, String> {
        let ListedCall { path, body } = listed;
        let wrong = |what: &str| format!("not {what}: {path:?}");
        let uri: PathAndQuery = path.parse().map_err(|_| wrong("a path"))?;
        let body = bytes_of(&body).ok_or_else(|| wrong("a path with a body in hexadecimal digits"))?;
        Ok(Self { path: Some(uri), body: body.into() })
    }
}

/// The bytes that hexadecimal digits stand for.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<_>>>()?;
    let (pairs, rest) = digits.as_chunks();
    // Two digits fit into a byte.
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| (high << 4 | low) as u8).collect())
}

/// An encoded request with placeholders for the number of a key.
#[derive(Clone, Debug)]
pub(super) struct FrameTemplate {
    // The encoded request without hits, after its frame header.
    bytes: Vec<u8>,
    // The offset of each number. Invariant: `digits` bytes of `bytes` follow each offset.
    places: Vec<usize>,
    digits: usize,
}

impl FrameTemplate {
    /// A template in which each placeholder is a number below `keys`. All numbers have the same number of digits.
    pub(super) fn new(request: &RateLimitRequest, keys: u64) -> Self {
        let digits = (keys.max(1) - 1).to_string().len();
        let filled = |digit: &str| {
            let mut request = request.clone();
            let entries = request.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries);
            for entry in entries {
                entry.value = numbered(&entry.value, digit.repeat(digits).as_bytes());
            }
            let mut bytes = vec![0; FRAME_PREFIX_BYTES];
            bytes.extend(request.encode_to_vec());
            bytes
        };
        // Both have equal length, so they differ exactly in the digits.
        let bytes = filled("0");
        let others = filled("1");
        let differing: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != others[*at]).collect();
        let places = differing.chunks(digits).map(|target| target[0]).collect();
        Self { bytes, places, digits }
    }

    /// The request for `key`, which is less than the number of keys, with `hits`, at least 1.
    pub(super) fn fill(&self, key: u64, hits: u32) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.bytes.len() + 6);
        bytes.put_slice(&self.bytes);
        for target in &self.places {
            let mut rest = key;
            for digit in bytes[*target..target + self.digits].iter_mut().rev() {
                // Less than ten, so the cast is lossless.
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        if hits > 1 {
            bytes.put_u8(HITS_KEY);
            prost::encode_length_delimiter(hits as usize, &mut bytes).expect("a growing buffer has room");
        }
        let prefix = frame_prefix(bytes.len() - FRAME_PREFIX_BYTES);
        bytes[..FRAME_PREFIX_BYTES].copy_from_slice(&prefix);
        bytes.freeze()
    }
}

/// Where the first placeholder of a value begins.
pub(super) fn place_in(value: &[u8]) -> Option<usize> {
    value.windows(PLACEHOLDER.len()).position(|window| window == PLACEHOLDER.as_bytes())
}

/// The value with `number` in place of each placeholder.
fn numbered(mut value: &[u8], number: &[u8]) -> Vec<u8> {
    let mut filled = Vec::new();
    while let Some(place) = place_in(value) {
        filled.extend([&value[..place], number].concat());
        value = &value[place + PLACEHOLDER.len()..];
    }
    filled.extend(value);
    filled
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    Ok,
    OverLimit,
    /// An error; never `Code::Ok`.
    Failed(Code),
}

/// The only field of an answer that is decoded.
#[derive(Clone, PartialEq, Message)]
struct AnswerCode {
    #[prost(enumeration = "rate_limit_response::Code", tag = "1")]
    overall_code: i32,
}

/// Decodes the body of an answer: a frame header and one uncompressed message.
pub(super) fn outcome(body: &[u8]) -> AnswerKind {
    let answer = match body.split_first_chunk::<FRAME_PREFIX_BYTES>() {
        Some((prefix, message)) if *prefix == frame_prefix(message.len()) => AnswerCode::decode(message).ok(),
        Some(_) | None => None,
    };
    match answer.map(|answer| answer.overall_code()) {
        Some(rate_limit_response::Code::Ok) => AnswerKind::Ok,
        Some(rate_limit_response::Code::OverLimit) => AnswerKind::OverLimit,
        // Neither is a decision.
        Some(rate_limit_response::Code::Unknown) | None => AnswerKind::Failed(Code::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tollgate_wire::proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitResponse,
    };

    fn request(values: &[&str]) -> RateLimitRequest {
        let entry = |value: &&str| Entry { key: "user".into(), value: (*value).into() };
        let descriptor = |value| RateLimitDescriptor { entries: vec![entry(value)], ..Default::default() };
        RateLimitRequest {
            domain: "shop".into(),
            descriptors: values.iter().map(descriptor).collect(),
            hits_addend: 0,
        }
    }

    fn framed(message: &impl Message) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
        bytes.extend(message.encode_to_vec());
        bytes
    }

    #[test]
    fn calls_are_read_from_json() {
        let call =
            |path: &str, body: &str| BenchCall::new(ListedCall { path: path.into(), body: body.into() });
        let read = call("/a.B/C", "00ffA0").unwrap();
        assert_eq!(read.path.unwrap().as_str(), "/a.B/C");
        assert_eq!(&*read.body, [0, 0xff, 0xa0]);
        for (path, body) in [("no path", ""), ("/a", "0"), ("/a", "0g"), ("/a", "\u{e9}")] {
            assert!(call(path, body).unwrap_err().starts_with("not a path"), "{path} {body}");
        }
    }

    proptest! {
        #[test]
        fn filled_template_is_the_request_for_its_key(
            keys in 1_u64..3_000_000,
            pick: prop::sample::Index,
            hits in 1_u32..,
        ) {
            let key = pick.index(usize::try_from(keys).unwrap()) as u64;
            let values = ["user-{}", "{}{}", "same", "{}-{}-end"];
            let sent = FrameTemplate::new(&request(&values), keys).fill(key, hits);
            let width = (keys - 1).to_string().len();
            let number = format!("{key:0width$}");
            let written = values.map(|value| value.replace("{}", &number));
            let mut wanted = request(&written.each_ref().map(String::as_str));
            prop_assert_eq!(sent[0], 0, "not compressed");
            prop_assert_eq!(&sent[..5], &frame_prefix(sent.len() - 5));
            wanted.hits_addend = if hits == 1 { 0 } else { hits };
            prop_assert_eq!(RateLimitRequest::decode(&sent[5..]).unwrap(), wanted);
        }

        #[test]
        fn decoding_does_not_panic_on_any_body(body: Vec<u8>) {
            outcome(&body);
        }
    }

    #[test]
    fn outcome_is_the_overall_code_of_the_answer() {
        use rate_limit_response::{Code::Ok, Code::OverLimit, Code::Unknown, DescriptorStatus};
        for (code, wanted) in [
            (Ok, AnswerKind::Ok),
            (OverLimit, AnswerKind::OverLimit),
            (Unknown, AnswerKind::Failed(Code::Unknown)),
        ] {
            let statuses = vec![DescriptorStatus { limit_remaining: 7, ..Default::default() }];
            let answer = RateLimitResponse {
                overall_code: code.into(),
                statuses,
                raw_body: b"x".to_vec(),
                ..Default::default()
            };
            assert_eq!(outcome(&framed(&answer)), wanted);
            assert_eq!(outcome(&framed(&answer)[..9]), AnswerKind::Failed(Code::Unknown), "cut short");
        }
    }
}
