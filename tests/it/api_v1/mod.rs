//! Our own API over real sockets.

mod answers;
mod cluster;
mod http;
mod once;
mod openapi;
mod own_limits;
mod reservations;
mod reset;
pub mod stream;
mod together;

use std::time::Duration;

use prost::Message;
use tollgate_wire::proto::{
    google::rpc::{ErrorInfo, Status},
    tollgate::v1::{
        Answer, CheckRequest, Descriptor, Entry, Request, answer::Verdict, check_request::Mode,
        rate_limiter_client::RateLimiterClient,
    },
};
use tonic::transport::Channel;

use crate::harness::Service;

/// A client with its own connection.
pub async fn client(service: &Service) -> RateLimiterClient<Channel> {
    RateLimiterClient::new(service.channel().await)
}

/// A descriptor with one entry.
pub fn descriptor(key: &str, value: &str) -> Descriptor {
    let entry = Entry { key: key.into(), value: value.into() };
    Descriptor { entries: vec![entry], ..Descriptor::default() }
}

/// A request of the domain `shop` with one descriptor of one entry.
pub fn request(key: &str, value: &str) -> Request {
    Request { domain: "shop".into(), descriptors: vec![descriptor(key, value)], ..Request::default() }
}

/// The same request with hits.
pub fn with_hits(request: Request, hits: u64) -> Request {
    Request { hits, ..request }
}

/// A call whose requests are decided each by itself.
pub fn each(requests: Vec<Request>) -> CheckRequest {
    CheckRequest { requests, mode: Mode::Each.into() }
}

/// A call whose requests are decided together.
pub fn together(requests: Vec<Request>) -> CheckRequest {
    CheckRequest { requests, mode: Mode::Together.into() }
}

/// The answers to a check, which must be answered.
pub async fn check(service: &Service, call: CheckRequest) -> Vec<Answer> {
    client(service).await.check(call).await.unwrap().into_inner().answers
}

/// The verdict of each answer.
pub fn verdicts(answers: &[Answer]) -> Vec<Verdict> {
    answers.iter().map(Answer::verdict).collect()
}

/// The hits that are left of each limit of each answer.
pub fn remaining(answers: &[Answer]) -> Vec<Vec<u64>> {
    answers.iter().map(|answer| answer.limits.iter().map(|limit| limit.remaining).collect()).collect()
}

/// A duration of an answer.
pub fn duration(given: Option<prost_types::Duration>) -> Option<Duration> {
    given.map(|given| given.try_into().unwrap())
}

/// The reason in the details of an error.
pub fn reason(error: &Status) -> String {
    let [info] = &*error.details else { panic!("{error:?}") };
    assert_eq!(info.type_url, "type.googleapis.com/google.rpc.ErrorInfo");
    let info = ErrorInfo::decode(&*info.value).unwrap();
    assert_eq!(info.domain, "tollgate");
    info.reason
}

/// The reason in the details of a call that failed.
pub fn reason_of(error: &tonic::Status) -> String {
    let status = Status::decode(error.details()).unwrap();
    assert_eq!((status.code, &*status.message), (i32::from(error.code()), error.message()));
    reason(&status)
}
