//! A server on the loopback whose calls wait for a script.

use axum::{Router, extract::Path};
use tokio::sync::{mpsc, oneshot};
use tonic::{
    Status,
    body::Body,
    codegen::http,
    server::Grpc,
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::{Descriptor, Limit, OnExpiry, Request, Terms, v1};

pub(super) struct Scripted {
    pub(super) target: String,
    pub(super) calls: mpsc::UnboundedReceiver<Received>,
}

/// A call that waits for its reply.
pub(super) struct Received {
    /// In lower case.
    pub(super) method: String,
    /// Of a reservation and of its end: one request, whose hits are those that are held or used.
    pub(super) requests: Vec<Request>,
    pub(super) terms: Option<Terms>,
    pub(super) reservation_id: String,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// The answers, and the id of the reservation.
pub(super) type Reply = Result<(Vec<v1::Answer>, String), Status>;

impl Scripted {
    pub(super) fn start() -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let handler = move |Path(method): Path<String>, call: axum::extract::Request| {
            handle(method.to_lowercase(), call, sender.clone())
        };
        let routes = Router::new().route("/tollgate.v1.RateLimiter/{method}", axum::routing::post(handler));
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = incoming.local_addr().unwrap().to_string();
        tokio::spawn(Server::builder().add_routes(Routes::from(routes)).serve_with_incoming(incoming));
        Self { target, calls }
    }
}

/// Methods whose messages have the same fields are decoded as one of them.
async fn handle(
    method: String,
    call: axum::extract::Request,
    calls: mpsc::UnboundedSender<Received>,
) -> http::Response<Body> {
    let (reply, replied) = oneshot::channel();
    let (terms, reservation_id) = (None, String::new());
    let received = |requests| Received { method: method.clone(), requests, terms, reservation_id, reply };
    match method.as_str() {
        "check" | "peek" | "refund" => {
            let decode =
                |message: v1::CheckRequest| received(message.requests.into_iter().map(request_of).collect());
            unary(call, decode, calls, replied, |(answers, _)| v1::CheckResponse { answers }).await
        }
        "reserve" => {
            let decode = |message: v1::ReserveRequest| {
                let ttl = message.ttl.unwrap().try_into().unwrap();
                let on_expiry = OnExpiry::try_from(message.on_expiry).unwrap();
                Received {
                    terms: Some(Terms { ttl, on_expiry }),
                    reservation_id: message.reservation_id,
                    ..received(vec![reserved(message.domain, message.descriptors, message.amount)])
                }
            };
            let encode = |(answers, reservation_id): (Vec<_>, _)| v1::ReserveResponse {
                answer: answers.into_iter().next(),
                reservation_id,
            };
            unary(call, decode, calls, replied, encode).await
        }
        "settle" | "cancel" => {
            let decode = |message: v1::SettleRequest| Received {
                reservation_id: message.reservation_id,
                ..received(vec![reserved(message.domain, message.descriptors, message.actual)])
            };
            unary(call, decode, calls, replied, |_| v1::SettleResponse::default()).await
        }
        other => panic!("the client calls {other}"),
    }
}

async fn unary<M, R>(
    call: axum::extract::Request,
    decode: impl FnOnce(M) -> Received,
    calls: mpsc::UnboundedSender<Received>,
    replied: oneshot::Receiver<Reply>,
    encode: impl FnOnce((Vec<v1::Answer>, String)) -> R,
) -> http::Response<Body>
where
    M: prost::Message + Default + 'static,
    R: prost::Message + Default + 'static,
{
    let mut once = Some((decode, replied, encode));
    let answer = service_fn(|message: tonic::Request<M>| {
        let (decode, replied, encode) = once.take().unwrap();
        // An error says that the test has ended.
        let _ = calls.send(decode(message.into_inner()));
        async move {
            let reply = replied.await.unwrap_or_else(|_| Err(Status::unavailable("the test has ended")));
            reply.map(|reply| tonic::Response::new(encode(reply)))
        }
    });
    Grpc::new(ProstCodec::<R, M>::default()).unary(answer, call).await
}

fn reserved(domain: String, descriptors: Vec<v1::Descriptor>, hits: u64) -> Request {
    request_of(v1::Request { domain, descriptors, hits, ..v1::Request::default() })
}

fn request_of(message: v1::Request) -> Request {
    assert_eq!(message.id, "");
    let descriptors: Vec<_> = message.descriptors.into_iter().map(descriptor_of).collect();
    Request { hits: message.hits, ..Request::new(message.domain, descriptors).request_id(message.request_id) }
}

fn descriptor_of(message: v1::Descriptor) -> Descriptor {
    let entries = message.entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
    let limit =
        message.limit.map(|limit| Limit { requests_per_unit: limit.requests_per_unit, unit: limit.unit() });
    Descriptor { entries, limit, hits: message.hits }
}
