//! A router as what a connection asks.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Router,
    extract::ConnectInfo,
    http::{HeaderValue, Request, Response},
    routing::future::RouteFuture,
};
use hyper::body::Incoming;
use tonic::codegen::Service as _;

use crate::server::body::{Bound, Timely};

/// The gRPC service whose streams may stay open.
const CONVERSATIONS: &str = "/grpc.reflection.";
/// `OUT_OF_RANGE`, and what gRPC has for a message that is too large.
const OUT_OF_RANGE: &str = "11";
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");

/// Answers requests by a router.
#[derive(Clone, Debug)]
pub(super) struct Routed {
    router: Router,
    // Who asks, where the router wants to know.
    peer: Option<Option<SocketAddr>>,
}

impl Routed {
    /// Over HTTP.
    pub(super) fn http(router: Router) -> Self {
        // With its state in it a router need not be finished anew for each request.
        Self { router: router.with_state(()), peer: Some(None) }
    }

    /// Over gRPC.
    pub(super) fn grpc(router: Router) -> Self {
        Self { router, peer: None }
    }

    /// The same for the connection of one client.
    pub(super) fn of(&self, peer: Option<SocketAddr>) -> Self {
        Self { router: self.router.clone(), peer: self.peer.map(|_| peer) }
    }
}

impl hyper::service::Service<Request<Incoming>> for Routed {
    type Response = Response<axum::body::Body>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let is_conversation = request.uri().path().starts_with(CONVERSATIONS);
        let bound = if is_conversation { Bound::Unbounded } else { Bound::Bounded };
        let mut request = request.map(|body| Timely::new(body, bound));
        if let Some(peer) = self.peer.flatten() {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        // A router is always ready.
        Answering(self.router.clone().call(request))
    }
}

/// The answer to come.
pub(super) struct Answering(RouteFuture<Infallible>);

impl Future for Answering {
    type Output = Result<Response<axum::body::Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_ok(|mut response| {
            // tonic calls a message above the limit out of range, and nothing else.
            if let Some(status) = response.headers_mut().get_mut("grpc-status")
                && status == OUT_OF_RANGE
            {
                *status = RESOURCE_EXHAUSTED;
            }
            response
        })
    }
}
