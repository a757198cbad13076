//! The notation of `clients/vectors`, which `clients/behaviour.md` describes. A field that it does not have is an error.

use std::{fs, path::PathBuf, time::Duration};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    Decision, Descriptor, OnExpiry, OnNoAnswer, Options, Request, SliceOptions, Source, Terms, Unit, v1,
};

pub(super) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../vectors")
}

/// The vectors of a file.
pub(super) fn vectors<T: DeserializeOwned>(file: &str) -> Vec<T> {
    let text = fs::read(folder().join(file).with_extension("json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A request, and the name of its call.
#[derive(Clone, Deserialize)]
#[serde(from = "RequestForm")]
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) request: Request,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RequestForm {
    User(String),
    Fields(RequestFields),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RequestFields {
    user: Option<String>,
    pad: usize,
    descriptors: Vec<DescriptorFields>,
    domain: Option<String>,
    hits: Option<u64>,
    request_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorFields {
    entries: Vec<(String, String)>,
    hits: Option<u64>,
    limit: Option<(u32, String)>,
}

impl From<RequestForm> for Asked {
    fn from(form: RequestForm) -> Self {
        let fields = match form {
            RequestForm::User(user) => RequestFields { user: Some(user), ..RequestFields::default() },
            RequestForm::Fields(fields) => fields,
        };
        let padded = |user: &String| Descriptor::new([("user", user.clone() + &"x".repeat(fields.pad))]);
        let first = fields.user.iter().map(padded);
        let further = fields.descriptors.into_iter().map(|DescriptorFields { entries, hits, limit }| {
            let descriptor = Descriptor { hits, ..Descriptor::new(entries) };
            match limit {
                Some((requests, unit)) => descriptor.limit(requests, unit_of(&unit)),
                None => descriptor,
            }
        });
        let descriptors: Vec<_> = first.chain(further).collect();
        let domain = fields.domain.unwrap_or_else(|| "edge".to_owned());
        let request = Request { hits: fields.hits.unwrap_or(1), ..Request::new(domain, descriptors) };
        Self { name: fields.user.unwrap_or_default(), request: request.request_id(fields.request_id) }
    }
}

fn unit_of(name: &str) -> Unit {
    Unit::from_str_name(&name.to_uppercase()).unwrap()
}

/// A code of gRPC and a message.
#[derive(Clone, Deserialize)]
pub(super) struct ErrorForm(String, String);

impl ErrorForm {
    pub(super) fn status(&self) -> Status {
        let code = (0..=16).map(Code::from_i32).find(|code| code_name(*code) == self.0);
        Status::new(code.unwrap(), self.1.clone())
    }
}

/// The name of a code, as gRPC writes it.
pub(super) fn code_name(code: Code) -> String {
    let mut name = String::new();
    for (index, letter) in format!("{code:?}").char_indices() {
        if index > 0 && letter.is_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// An answer as the server sends it.
#[derive(Clone, Deserialize)]
#[serde(from = "AnswerForm")]
pub(super) struct Answer(pub(super) v1::Answer);

#[derive(Deserialize)]
#[serde(untagged)]
enum AnswerForm {
    Verdict(String),
    Limit(u64, u64),
    Fields(AnswerFields),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AnswerFields {
    verdict: Option<String>,
    delay_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    limits: Vec<LimitFields>,
    error: Option<ErrorForm>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitFields {
    requests_per_unit: u64,
    remaining: u64,
    reset_after_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    refused: bool,
}

impl From<AnswerForm> for Answer {
    fn from(form: AnswerForm) -> Self {
        let fields = match form {
            AnswerForm::Verdict(verdict) => AnswerFields { verdict: Some(verdict), ..Default::default() },
            AnswerForm::Limit(remaining, reset) => {
                let limit = LimitFields { remaining, reset_after_ms: Some(reset), ..Default::default() };
                let verdict = Some("allowed".to_owned());
                AnswerFields { verdict, limits: vec![limit], ..Default::default() }
            }
            AnswerForm::Fields(fields) => fields,
        };
        let verdict = fields.verdict.unwrap_or_else(|| "undecided".to_owned()).to_uppercase();
        let limit = |limit: LimitFields| v1::LimitStatus {
            requests_per_unit: limit.requests_per_unit,
            unit: Unit::Minute.into(),
            remaining: limit.remaining,
            reset_after: wire_duration(limit.reset_after_ms),
            retry_after: wire_duration(limit.retry_after_ms),
            refused: limit.refused,
            ..v1::LimitStatus::default()
        };
        let error = fields.error.map(|error| {
            let status = error.status();
            let (code, message) = (status.code().into(), status.message().to_owned());
            tonic_types::Status { code, message, details: Vec::new() }
        });
        Self(v1::Answer {
            verdict: v1::answer::Verdict::from_str_name(&verdict).unwrap().into(),
            delay: wire_duration(fields.delay_ms),
            retry_after: wire_duration(fields.retry_after_ms),
            limits: fields.limits.into_iter().map(limit).collect(),
            error,
            ..v1::Answer::default()
        })
    }
}

pub(super) fn wire_duration(time: Option<u64>) -> Option<prost_types::Duration> {
    Some(millis(time?).try_into().unwrap())
}

/// The options of a client.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClientFields {
    pub(super) timeout_ms: Option<u64>,
    on_no_answer: Option<String>,
    calls_max: Option<usize>,
    batch_max: Option<usize>,
    queue_max: Option<usize>,
    deny_cache_keys: Option<usize>,
    deny_cache_max_ms: Option<u64>,
}

impl ClientFields {
    pub(super) fn options(&self) -> Options {
        let usual = Options::default();
        Options {
            timeout: self.timeout_ms.map_or(usual.timeout, millis),
            on_no_answer: match self.on_no_answer.as_deref() {
                None => usual.on_no_answer,
                Some("allow") => OnNoAnswer::Allow,
                Some("deny") => OnNoAnswer::Deny,
                Some(other) => panic!("unknown default: {other}"),
            },
            calls_max: self.calls_max.unwrap_or(usual.calls_max),
            batch_max: self.batch_max.unwrap_or(usual.batch_max),
            queue_max: self.queue_max.unwrap_or(usual.queue_max),
            deny_cache_keys: self.deny_cache_keys.unwrap_or(usual.deny_cache_keys),
            deny_cache_max: self.deny_cache_max_ms.map_or(usual.deny_cache_max, millis),
            ..usual
        }
    }
}

/// The options of slices.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SliceFields {
    hits: Option<u64>,
    ttl_ms: Option<u64>,
    keys_max: Option<usize>,
}

impl SliceFields {
    pub(super) fn options(&self) -> SliceOptions {
        let usual = SliceOptions::default();
        SliceOptions {
            hits: self.hits.unwrap_or(usual.hits),
            ttl: self.ttl_ms.map_or(usual.ttl, millis),
            keys_max: self.keys_max.unwrap_or(usual.keys_max),
        }
    }
}

/// The terms of a reservation.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TermsFields {
    ttl_ms: Option<u64>,
    on_expiry: Option<String>,
}

impl TermsFields {
    pub(super) fn terms(&self) -> Terms {
        let usual = Terms::default();
        let expiry = |name: &String| OnExpiry::from_str_name(&name.to_uppercase()).unwrap();
        Terms {
            ttl: self.ttl_ms.map_or(usual.ttl, millis),
            on_expiry: self.on_expiry.as_ref().map_or(usual.on_expiry, expiry),
        }
    }
}

/// A decision in the notation.
pub(super) fn describe(decision: &Decision) -> Value {
    let source = match decision.source {
        Source::Server => "server",
        Source::DenyCache => "deny_cache",
        Source::Prepaid => "prepaid",
        Source::Default => "default",
    };
    let no_answer = decision.no_answer.as_ref();
    let limit = decision.limits.first();
    json!({
        "allowed": decision.allowed,
        "source": source,
        "retry_after_ms": decision.retry_after.map(|wait| wait.as_millis()),
        "remaining": limit.map(|limit| limit.remaining),
        "reset_after_ms": limit.map(|limit| limit.reset_after.as_millis()),
        "no_answer": no_answer.map(|reason| json!([code_name(reason.code), reason.message])),
    })
}

/// Compares the fields that are expected, and as many elements of a list.
pub(super) fn assert_covers(value: &Value, expected: &Value) {
    match expected {
        Value::Object(fields) => fields.iter().for_each(|(name, each)| assert_covers(&value[name], each)),
        Value::Array(each) => each.iter().enumerate().for_each(|(i, each)| assert_covers(&value[i], each)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => assert_eq!(value, expected),
    }
}
