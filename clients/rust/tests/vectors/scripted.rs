//! A server on the loopback whose calls wait for a script.

use axum::{Router, extract::Path};
use prost::Message;
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

/// One or several servers.
pub(super) struct Scripted {
    /// Their addresses, with commas between.
    pub(super) target: String,
    pub(super) servers: usize,
    pub(super) calls: mpsc::UnboundedReceiver<Received>,
}

/// A call that waits for its reply.
pub(super) struct Received {
    /// The number of the server.
    pub(super) server: usize,
    /// In lower case.
    pub(super) method: String,
    pub(super) content: Content,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// The requests, the terms, and the id of the reservation. The end of a reservation has its hits as those of a request.
type Content = (Vec<Request>, Option<Terms>, String);
pub(super) type Reply = Result<Replied, Status>;

#[derive(Debug, Default)]
pub(super) struct Replied {
    pub(super) answers: Vec<v1::Answer>,
    /// The id of the reservation if it is not the one that was received.
    pub(super) held_as: Option<String>,
    /// Whether the reservation has ended.
    pub(super) ended: bool,
}

/// Starts a server for each of these addresses that is `server`.
pub(super) fn start(addresses: &[String]) -> Scripted {
    let (sender, calls) = mpsc::unbounded_channel();
    let is_server = |address: &&String| *address == "server";
    let mut started = 0..;
    let targets = addresses.iter().map(|address| match address.as_str() {
        "server" => serve(started.next().unwrap(), sender.clone()),
        other => other.to_owned(),
    });
    let target = targets.collect::<Vec<_>>().join(",");
    Scripted { target, servers: addresses.iter().filter(is_server).count(), calls }
}

/// Starts a server, and returns its address.
fn serve(server: usize, calls: mpsc::UnboundedSender<Received>) -> String {
    let handler = move |Path(method): Path<String>, call| handle(server, method, call, calls.clone());
    let routes = Router::new().route("/tollgate.v1.RateLimiter/{method}", axum::routing::post(handler));
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    tokio::spawn(Server::builder().add_routes(Routes::from(routes)).serve_with_incoming(incoming));
    address
}

/// Messages with the same fields are decoded as one of them.
async fn handle(
    server: usize,
    method: String,
    call: axum::extract::Request,
    calls: mpsc::UnboundedSender<Received>,
) -> http::Response<Body> {
    assert!(!call.headers().contains_key("authorization"), "the admin token is sent");
    let method = method.to_lowercase();
    let send = move |method, content, reply| {
        // An error says that the test has ended.
        let _ = calls.send(Received { server, method, content, reply });
    };
    match method.as_str() {
        "check" | "peek" | "refund" => {
            let content = |message: v1::CheckRequest| {
                (message.requests.into_iter().map(request_of).collect(), None, String::new())
            };
            unary(method, call, send, content, |replied, _| v1::CheckResponse { answers: replied.answers })
                .await
        }
        "reserve" => {
            let content = |message: v1::ReserveRequest| {
                let on_expiry = OnExpiry::try_from(message.on_expiry).unwrap();
                let terms = Terms { ttl: message.ttl.unwrap().try_into().unwrap(), on_expiry };
                let request = reserved(message.domain, message.descriptors, message.amount);
                (vec![request], Some(terms), message.reservation_id)
            };
            let response = |replied: Replied, id| v1::ReserveResponse {
                answer: replied.answers.into_iter().next(),
                reservation_id: replied.held_as.unwrap_or(id),
                ended: replied.ended,
            };
            unary(method, call, send, content, response).await
        }
        "settle" | "cancel" => {
            let content = |message: v1::SettleRequest| {
                let request = reserved(message.domain, message.descriptors, message.actual);
                (vec![request], None, message.reservation_id)
            };
            unary(method, call, send, content, |_, _| v1::SettleResponse::default()).await
        }
        other => panic!("unknown method: {other}"),
    }
}

async fn unary<M: Message + Default + 'static, R: Message + Default + 'static>(
    method: String,
    call: axum::extract::Request,
    send: impl Fn(String, Content, oneshot::Sender<Reply>),
    content: fn(M) -> Content,
    response: fn(Replied, String) -> R,
) -> http::Response<Body> {
    let handler = service_fn(move |message: tonic::Request<M>| {
        let ((reply, replied), content) = (oneshot::channel(), content(message.into_inner()));
        let id = content.2.clone();
        send(method.clone(), content, reply);
        async move {
            let reply = replied.await.unwrap_or_else(|_| Err(Status::unavailable("the test has ended")));
            reply.map(|replied| tonic::Response::new(response(replied, id)))
        }
    });
    Grpc::new(ProstCodec::<R, M>::default()).unary(handler, call).await
}

fn reserved(domain: String, descriptors: Vec<v1::Descriptor>, hits: u64) -> Request {
    request_of(v1::Request { domain, descriptors, hits, ..v1::Request::default() })
}

fn request_of(message: v1::Request) -> Request {
    assert_eq!(message.id, "");
    let descriptors = message.descriptors.into_iter().map(|each| Descriptor {
        limit: each
            .limit
            .map(|limit| Limit { requests_per_unit: limit.requests_per_unit, unit: limit.unit() }),
        entries: each.entries.into_iter().map(|entry| (entry.key, entry.value)).collect(),
        hits: each.hits,
        on_expiry: each.on_expiry.map(|value| OnExpiry::try_from(value).unwrap()),
    });
    let request = Request::new(message.domain, descriptors.collect::<Vec<_>>());
    request.hits(message.hits).request_id(message.request_id)
}
