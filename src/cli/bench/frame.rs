//! Requests as bytes, made once and filled in for each; and what matters of an answer.

use prost::{
    Message,
    bytes::{BufMut, Bytes, BytesMut},
};
use tonic::Code;

use crate::api::proto::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response};

/// Stands in values for the number of the key.
pub(super) const PLACEHOLDER: &str = "{}";

/// Flag and length before each message.
const HEAD_BYTES: usize = 5;
/// The key of `hits_addend` in a request, field 3: fields may come in any order, so it can be added at the end.
const HITS_KEY: u8 = 3 << 3;

/// A request with places for the number of a key.
#[derive(Clone, Debug)]
pub(super) struct Template {
    // The encoded request without hits, with a head before it.
    bytes: Vec<u8>,
    // Invariant: where each number begins; from there on `digits` bytes are in `bytes`.
    places: Vec<usize>,
    digits: usize,
}

impl Template {
    /// The request with each placeholder in its values replaced by a number below `keys`. All numbers are
    /// written with as many digits.
    pub(super) fn new(request: &RateLimitRequest, keys: u64) -> Self {
        let digits = (keys.max(1) - 1).to_string().len();
        let filled = |digit: &str| {
            let mut request = request.clone();
            let entries = request.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries);
            for entry in entries {
                entry.value = entry.value.replace(PLACEHOLDER, &digit.repeat(digits));
            }
            let mut bytes = vec![0; HEAD_BYTES];
            bytes.extend(request.encode_to_vec());
            bytes
        };
        // Of equal length, so where they differ is a digit.
        let (bytes, others) = (filled("0"), filled("1"));
        let differing: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != others[*at]).collect();
        let places = differing.chunks(digits).map(|target| target[0]).collect();
        Self { bytes, places, digits }
    }

    /// The request about `key`, which is below the number of keys, for `hits`, at least 1.
    pub(super) fn fill(&self, key: u64, hits: u32) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.bytes.len() + 6);
        bytes.put_slice(&self.bytes);
        for target in &self.places {
            let mut rest = key;
            for digit in bytes[*target..target + self.digits].iter_mut().rev() {
                // Below ten, so no digit is lost.
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        if 1 < hits {
            bytes.put_u8(HITS_KEY);
            prost::encode_length_delimiter(hits as usize, &mut bytes).expect("a growing buffer has room");
        }
        let length = u32::try_from(bytes.len() - HEAD_BYTES).expect("arguments are shorter than 4 GiB");
        bytes[1..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
        bytes.freeze()
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    OverLimit,
    /// No answer; never `Code::Ok`.
    Failed(Code),
}

/// The field of an answer that decides; the others are skipped.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(enumeration = "rate_limit_response::Code", tag = "1")]
    overall_code: i32,
}

/// What the body of an answer says: a head and one message that is not compressed.
pub(super) fn outcome(body: &[u8]) -> Outcome {
    let answer = match body.split_at_checked(HEAD_BYTES) {
        Some(([0, length @ ..], message)) if be_u32(length) == message.len() => Answer::decode(message).ok(),
        Some(_) | None => None,
    };
    match answer.map(|answer| answer.overall_code()) {
        Some(rate_limit_response::Code::Ok) => Outcome::Ok,
        Some(rate_limit_response::Code::OverLimit) => Outcome::OverLimit,
        // Neither is an answer to the question.
        Some(rate_limit_response::Code::Unknown) | None => Outcome::Failed(Code::Unknown),
    }
}

fn be_u32(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::proto::envoy::{
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

    proptest! {
        #[test]
        fn a_filled_request_is_the_request_with_the_number_of_its_key(
            keys in 1_u64..3_000_000,
            pick: prop::sample::Index,
            hits in 1_u32..,
        ) {
            let key = pick.index(usize::try_from(keys).unwrap()) as u64;
            let values = ["user-{}", "{}{}", "same", "{}-{}-end"];
            let sent = Template::new(&request(&values), keys).fill(key, hits);
            let width = (keys - 1).to_string().len();
            let number = format!("{key:0width$}");
            let written = values.map(|value| value.replace("{}", &number));
            let mut wanted = request(&written.each_ref().map(String::as_str));
            prop_assert_eq!(sent[0], 0, "not compressed");
            prop_assert_eq!(be_u32(&sent[1..5]), sent.len() - 5);
            wanted.hits_addend = if hits == 1 { 0 } else { hits };
            prop_assert_eq!(RateLimitRequest::decode(&sent[5..]).unwrap(), wanted);
        }

        #[test]
        fn no_body_makes_the_reader_panic(body: Vec<u8>) {
            outcome(&body);
        }
    }

    #[test]
    fn the_overall_code_of_an_answer_is_its_outcome() {
        use rate_limit_response::{Code::Ok, Code::OverLimit, Code::Unknown, DescriptorStatus};
        for (code, wanted) in
            [(Ok, Outcome::Ok), (OverLimit, Outcome::OverLimit), (Unknown, Outcome::Failed(Code::Unknown))]
        {
            let statuses = vec![DescriptorStatus { limit_remaining: 7, ..Default::default() }];
            let answer = RateLimitResponse {
                overall_code: code.into(),
                statuses,
                raw_body: b"x".to_vec(),
                ..Default::default()
            };
            assert_eq!(outcome(&framed(&answer)), wanted);
            assert_eq!(outcome(&framed(&answer)[..9]), Outcome::Failed(Code::Unknown), "cut short");
        }
    }
}
