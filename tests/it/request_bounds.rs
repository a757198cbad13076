//! Each setting that bounds requests acts alike over every door: gRPC, streams, JSON, headers and the admin listener.

use std::{collections::BTreeSet, fs, time::Duration};

use axum::body::{Body, to_bytes};
use hyper::{Request as HttpRequest, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tollgate::{
    api::{
        Method,
        call::{HoldVerb, OperatorVerb, Verb},
        json::request_text,
    },
    settings::CATALOG,
};
use tollgate_wire::proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    tollgate::v1::{
        CheckResponse, OwnLimit, PeekRequest, Request, SetLimit, SetLimitsRequest, SettleRequest,
        question_answer::Result as Answered,
    },
};

use crate::{
    api_v1::{self, each, stream::Stream, together},
    frames::partial_message,
    harness::{Service, TIMEOUT, descriptor, request, send},
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000, algorithm: fixed_window}}
";

const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// Header lines with the admin token, which some calls need.
const HEADERS: &str = "host: localhost\r\nauthorization: Bearer secret\r\n";

/// The number of parts of a call: requests, descriptors of each, and entries of each.
type Parts = [usize; 3];

/// How a call is asked.
#[derive(Clone, Copy, Debug)]
enum Door {
    Grpc(Method),
    Together,
    Question,
    Json(Method),
    Explain,
}

impl Door {
    fn all() -> impl Iterator<Item = Self> {
        // A list has no descriptors.
        let lists = |method| matches!(method, Method::Operator(OperatorVerb::ListLimits));
        let methods = move || Method::ALL.iter().copied().filter(move |method| !lists(*method));
        methods().map(Self::Grpc).chain(methods().map(Self::Json)).chain([
            Self::Together,
            Self::Question,
            Self::Explain,
        ])
    }

    /// Whether its calls have several requests.
    fn has_requests(self) -> bool {
        match self {
            Self::Grpc(method) | Self::Json(method) => matches!(method, Method::Decide(_)),
            Self::Together | Self::Question => true,
            Self::Explain => false,
        }
    }

    /// Why a call is refused that has too many of these parts; `None` if it has not.
    async fn refusal(self, service: &Service, [requests, descriptors, entries]: Parts) -> Option<String> {
        let one = request("shop", vec![descriptor(&vec![("user", "x"); entries]); descriptors]);
        let text = match self {
            Self::Grpc(method) => grpc(service, method, &message(method, &one, requests)).await,
            Self::Together => {
                let call = together(repeated(&one, requests)).encode_to_vec();
                grpc(service, CHECK, &call).await
            }
            Self::Question => {
                let mut stream = Stream::open(service).await;
                stream.ask(1, each(repeated(&one, requests))).await;
                match stream.next().await.unwrap().unwrap().result.unwrap() {
                    Answered::Error(error) => error.message,
                    Answered::Check(response) => errors(&response),
                }
            }
            Self::Json(method) => {
                let (http, body) = (service.addresses.http, json_body(method, &one, requests));
                send(http, HEADERS, "POST", method.json_path(), &body).await.1
            }
            Self::Explain => {
                let body = request_text(&one).unwrap();
                send(service.addresses.admin, HEADERS, "POST", "/explain", &body).await.1
            }
        };
        let refusal = &text[text.find("more than ")?..];
        Some(refusal.split_inclusive(')').next()?.to_owned())
    }
}

const CHECK: Method = Method::Decide(Verb::Check);

/// So many times the same request. The fields of both messages are the same.
fn repeated(one: &RateLimitRequest, requests: usize) -> Vec<Request> {
    vec![Request::decode(&*one.encode_to_vec()).unwrap(); requests]
}

/// Whether its message has limits to set, each with one descriptor.
fn sets_limits(method: Method) -> bool {
    matches!(method, Method::Operator(OperatorVerb::SetLimits))
}

/// Whether its message names a reservation.
fn names_reservation(method: Method) -> bool {
    matches!(method, Method::Hold(HoldVerb::Settle | HoldVerb::Cancel))
}

/// The message of a method. Those with one request begin with the same fields, and then with those of a settlement if they
/// name a reservation.
fn message(method: Method, one: &RateLimitRequest, requests: usize) -> Vec<u8> {
    if let Method::Decide(_) = method {
        return PeekRequest { requests: repeated(one, requests) }.encode_to_vec();
    }
    if sets_limits(method) {
        let Request { domain, descriptors, .. } = repeated(one, 1).remove(0);
        let limit = OwnLimit { domain, key: descriptors.into_iter().next(), ..OwnLimit::default() };
        let limits = vec![SetLimit { limit: Some(limit), replaces_version: None }; requests];
        return SetLimitsRequest { limits, dry_run: false }.encode_to_vec();
    }
    let mut bytes = one.encode_to_vec();
    if names_reservation(method) {
        SettleRequest { reservation_id: "a".to_owned(), ..Default::default() }.encode(&mut bytes).unwrap();
    }
    bytes
}

fn json_body(method: Method, one: &RateLimitRequest, requests: usize) -> String {
    let mut one: Value = serde_json::from_str(&request_text(one).unwrap()).unwrap();
    if let Method::Decide(_) = method {
        return json!({ "requests": vec![one; requests] }).to_string();
    }
    if sets_limits(method) {
        let limit = json!({"limit": {"domain": one["domain"], "key": one["descriptors"][0]}});
        return json!({ "limits": vec![limit; requests] }).to_string();
    }
    if names_reservation(method) {
        one["reservationId"] = "a".into();
    }
    one.to_string()
}

/// The messages of the errors of a response.
fn errors(response: &CheckResponse) -> String {
    let errors = response.answers.iter().filter_map(|answer| answer.error.as_ref());
    errors.map(|error| error.message.as_str()).collect()
}

/// The error of a call, or those of its requests; empty if there is none.
async fn grpc(service: &Service, method: Method, message: &[u8]) -> String {
    let length = u32::try_from(message.len()).unwrap();
    let (status, error, body) = grpc_status(service, method, partial_message(length, message)).await;
    match (status.as_deref(), method) {
        (None | Some("0"), Method::Decide(_)) => errors(&CheckResponse::decode(&body[5..]).unwrap()),
        _ => error,
    }
}

/// The status and the message of the head of an answer, and its body.
async fn grpc_status(service: &Service, method: Method, body: Vec<u8>) -> (Option<String>, String, Vec<u8>) {
    let stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let call = HttpRequest::post(format!("http://x{}", method.path()))
        .header("content-type", "application/grpc")
        .header("authorization", "Bearer secret");
    let response = client.send_request(call.body(Body::from(body)).unwrap()).await.unwrap();
    let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, error) =
        (header("grpc-status"), header("grpc-message").unwrap_or_default().replace("%20", " "));
    let body = to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap().to_vec();
    connection.abort();
    (status, error, body)
}

async fn service(settings: &[(&str, &str)]) -> Service {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "secret\n").unwrap();
    let token = [("admin.token_file", token.to_str().unwrap())];
    let service = Service::start_with(RULES, &[settings, &token].concat()).await;
    // The file is read for each call.
    std::mem::forget(folder);
    service
}

#[tokio::test]
async fn each_bound_acts_alike_over_every_door() {
    let settings = ["api.max_requests", "api.max_descriptors", "api.max_entries"];
    for bounds in [[2, 2, 3], [5, 4, 7]] {
        let values = bounds.map(|most| most.to_string());
        let given: Vec<_> = settings.into_iter().zip(values.iter().map(String::as_str)).collect();
        let service = service(&given).await;
        for door in Door::all() {
            let largest = if door.has_requests() { bounds } else { [1, bounds[1], bounds[2]] };
            // All descriptors of requests that are decided together count as those of one.
            let largest_together = [bounds[0].min(bounds[1]), 1, bounds[2]];
            let largest = if matches!(door, Door::Together) { largest_together } else { largest };
            assert_eq!(door.refusal(&service, largest).await, None, "{door:?} {largest:?}");
            for (part, name) in ["requests", "descriptors", "entries"].into_iter().enumerate() {
                let has_one_descriptor =
                    matches!(door, Door::Grpc(method) | Door::Json(method) if sets_limits(method));
                if name == "requests" && !door.has_requests() || name == "descriptors" && has_one_descriptor {
                    continue;
                }
                let mut parts = [1, 1, 1];
                parts[part] = bounds[part] + 1;
                let refusal = format!("more than {} {name} ({})", bounds[part], settings[part]);
                assert_eq!(door.refusal(&service, parts).await, Some(refusal), "{door:?} {parts:?}");
            }
        }
    }
    let bounds = CATALOG.iter().map(|setting| setting.name).filter(|name| name.starts_with("api.max_"));
    assert_eq!(
        bounds.collect::<BTreeSet<_>>(),
        BTreeSet::from(settings),
        "each bound is asked over every door"
    );
}

#[tokio::test]
async fn call_that_sets_limits_has_a_bound_of_its_own() {
    let service = service(&[("api.max_requests", "2")]).await;
    for door in Door::all() {
        let (Door::Grpc(method) | Door::Json(method)) = door else { continue };
        if sets_limits(method) {
            assert_eq!(door.refusal(&service, [1_000, 1, 1]).await, None, "{door:?}");
            let refusal = door.refusal(&service, [1_001, 1, 1]).await.unwrap();
            assert!(refusal.starts_with("more than 1000 limits"), "{door:?} {refusal}");
        }
    }
}

#[tokio::test]
async fn bounds_of_descriptors_act_on_requests_by_headers() {
    let check = [("check.domain", "shop"), ("check.descriptors", "user={x},user={x};user={x}")];
    for (bound, status) in [
        (("api.max_descriptors", "2"), 200),
        (("api.max_descriptors", "1"), 503),
        (("api.max_entries", "2"), 200),
        (("api.max_entries", "1"), 503),
    ] {
        let service = Service::start_with(RULES, &[&check[..], &[bound]].concat()).await;
        let (code, body) = send(service.addresses.http, "host: x\r\nx: a\r\n", "GET", "/check", "").await;
        assert_eq!(code, status, "{bound:?}: {body}");
    }
}

#[tokio::test]
async fn message_above_4_mib_is_refused_by_every_door() {
    let service = service(&[]).await;
    for method in Method::ALL.iter().copied() {
        let begun = partial_message(MESSAGE_BYTES_MAX + 1, b"x");
        let (status, error, _) = grpc_status(&service, method, begun).await;
        assert_eq!(
            (status.as_deref(), &*error),
            (Some("8"), "the request is larger than 4194304 bytes"),
            "{method:?}"
        );

        let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
        let (path, length) = (method.json_path(), MESSAGE_BYTES_MAX + 1);
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        timeout(TIMEOUT, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 413", "{path}");
    }
}

#[tokio::test]
async fn request_id_window_acts_alike_over_every_door() {
    const WINDOW: Duration = Duration::from_secs(600);
    let call = each(vec![Request { request_id: "a".into(), ..api_v1::request("user", "ann") }]);
    let body = json!({"requests": [{
        "requestId": "a", "domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}],
    }]});
    for door in [Door::Grpc(CHECK), Door::Question, Door::Json(CHECK)] {
        let service = Service::start_with(RULES, &[("api.request_id_window", "600s")]).await;
        let mut stream = Stream::open(&service).await;
        let mut left = async || match door {
            Door::Question => {
                stream.ask(1, call.clone()).await;
                stream.answer().await.1.answers[0].limits[0].remaining
            }
            Door::Json(method) => {
                let (_, answer) = service.http("POST", method.json_path(), &body.to_string()).await;
                let answer: Value = serde_json::from_str(&answer).unwrap();
                answer["answers"][0]["limits"][0]["remaining"].as_str().unwrap().parse().unwrap()
            }
            Door::Grpc(_) | Door::Together | Door::Explain => {
                api_v1::check(&service, call.clone()).await[0].limits[0].remaining
            }
        };
        assert_eq!(left().await, 999);
        service.advance(WINDOW);
        assert_eq!(left().await, 999, "{door:?}: the charge is remembered");
    }
}
