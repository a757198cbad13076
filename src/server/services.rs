//! Who answers what a connection asks: a router, or at once where the call is usual.

use std::{
    future::{Future, pending},
    net::SocketAddr,
    sync::Arc,
};

use axum::{
    Router,
    body::Body,
    extract::ConnectInfo,
    http::{HeaderValue, Request, Response},
};
use hyper::body::{Body as _, Bytes};
use tonic::codegen::Service as _;

use crate::{
    api::{Api, Batch},
    cluster::OpenForwards,
    server::{
        body::{CallKind, RequestBody, Source},
        idle::{Activity, RequestActivity},
    },
};

/// The gRPC service whose streams may stay open.
const STREAMING_SERVICES: &str = "/grpc.reflection.";
/// `OUT_OF_RANGE`, and what gRPC has for a message that is too large.
const OUT_OF_RANGE: &str = "11";
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");

/// Answers requests.
#[derive(Clone, Debug)]
pub(super) struct Services {
    router: Router,
    // The rate limit service, which is not behind the router.
    api: Option<Api>,
    // Who asks, where the router wants to know.
    peer: Option<Option<SocketAddr>>,
    // Of the connection, where a full listener closes idle ones.
    activity: Option<Arc<Activity>>,
    // The checks of this connection that other replicas are asked.
    forwards: OpenForwards,
}

impl Services {
    /// Over HTTP.
    pub(super) fn http(router: Router) -> Self {
        // With its state in it a router need not be finished anew for each request.
        Self {
            router: router.with_state(()),
            api: None,
            peer: Some(None),
            activity: None,
            forwards: OpenForwards::default(),
        }
    }

    /// Over gRPC: the rate limit service is `api`, and the router has the other services.
    pub(super) fn grpc(router: Router, api: Api) -> Self {
        Self { router, api: Some(api), peer: None, activity: None, forwards: OpenForwards::default() }
    }

    /// The same for the connection of one client.
    pub(super) fn for_connection(
        &self,
        peer: Option<SocketAddr>,
        activity: Option<Arc<Activity>>,
    ) -> Arc<Self> {
        let (router, api) = (self.router.clone(), self.api.clone());
        // Each has one of its own, so that connections on different cores share no count of references.
        let forwards = OpenForwards::default();
        Arc::new(Self { router, api, peer: self.peer.map(|_| peer), activity, forwards })
    }

    /// Begins to decide calls that are read together.
    pub(super) fn batch(&self) -> Option<Batch<'_>> {
        self.api.as_ref().map(Api::batch)
    }

    /// The rate limit service, and the checks of this connection that other replicas are asked.
    pub(super) fn api(&self) -> Option<(&Api, &OpenForwards)> {
        Some((self.api.as_ref()?, &self.forwards))
    }

    /// Whether the streams of a request may stay open.
    pub(super) fn is_streaming<B>(request: &Request<B>) -> bool {
        request.uri().path().starts_with(STREAMING_SERVICES)
    }

    /// Answers a request, of whose body the first piece may have been read.
    pub(super) fn handle<B: Into<Source>>(
        self: &Arc<Self>,
        request: Request<B>,
        read: Option<Bytes>,
    ) -> impl Future<Output = Response<Body>> + Send + use<B> {
        let this = self.clone();
        let kind = if Self::is_streaming(&request) { CallKind::Streaming } else { CallKind::Unary };
        let activity = this.activity.clone().map(|activity| Arc::new(RequestActivity::new(activity)));
        let request =
            request.map(|body| RequestBody::new(body.into(), read, kind).with_activity(activity.clone()));
        async move {
            if let Some(activity) = &activity
                && request.body().is_end_stream()
                && !activity.start()
            {
                // The connection is being closed, and this with it.
                pending::<()>().await;
            }
            // On the heap, so that the future of a usual call is small.
            let response = Box::pin(this.route(request)).await;
            drop(activity);
            response
        }
    }

    async fn route(&self, mut request: Request<RequestBody>) -> Response<Body> {
        if let Some(peer) = self.peer.flatten() {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        request.extensions_mut().insert(self.forwards.clone());
        // A router is always ready.
        let Ok(mut response) = self.router.clone().call(request).await;
        // tonic calls a message above the limit out of range, and nothing else.
        if let Some(status) = response.headers_mut().get_mut("grpc-status")
            && status == OUT_OF_RANGE
        {
            *status = RESOURCE_EXHAUSTED;
        }
        response
    }
}
