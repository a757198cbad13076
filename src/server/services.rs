//! Dispatches requests of a connection: rate limit calls directly, other requests through a router.

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
use hyper::body::{Body as _, Incoming};
use tollgate_counter::resilience::{Caller, CallerOrigin, CallerRegistry};
use tollgate_quota::QuotaService;
use tonic::{Code, Status, codegen::Service as _};

use crate::{
    api::{error::Error, handle::ReadBatch, service::Api},
    server::{
        body::RequestBody,
        idle::{Activity, RequestActivity},
        tls::CertifiedClient,
    },
};

/// The gRPC service whose streams may stay open.
const STREAMING_SERVICES: &str = "/grpc.reflection.";
/// The status of tonic for a message above the size limit.
const OUT_OF_RANGE: &str = "11";
/// What replaces `OUT_OF_RANGE`.
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");
/// The status of tonic for bytes that are no message.
const INTERNAL: &str = "13";
/// What replaces `INTERNAL`.
const INVALID_ARGUMENT: HeaderValue = HeaderValue::from_static("3");

/// The services of a listener.
#[derive(Clone, Debug)]
pub(super) struct Services {
    router: Router,
    /// The rate limit service, which gRPC calls without the router.
    pub(super) api: Api,
    /// The rate limit quota service, if it is enabled.
    pub(super) quotas: Option<Arc<QuotaService>>,
    /// The address of the client.
    pub(super) peer: Option<SocketAddr>,
    /// Where the calls of the connection come from.
    pub(super) origin: CallerOrigin,
    // Activity of the connection, if the listener closes idle connections.
    activity: Option<Arc<Activity>>,
    callers: CallerRegistry,
    /// What this connection uses of what all share.
    pub(super) caller: Caller,
}

impl Services {
    /// `api` is the rate limit service, `quotas` that of quotas, `router` has the other services.
    pub(super) fn new(
        router: Router,
        api: Api,
        quotas: Option<Arc<QuotaService>>,
        callers: CallerRegistry,
    ) -> Self {
        Self {
            // A router with its state set is not rebuilt for each request.
            router: router.with_state(()),
            api,
            quotas,
            peer: None,
            origin: CallerOrigin::Network(None),
            activity: None,
            callers,
            caller: Caller::default(),
        }
    }

    /// The services for one connection. `client` is known by its certificate, which was verified.
    pub(super) fn for_connection(
        &self,
        peer: Option<SocketAddr>,
        client: Option<CertifiedClient>,
        activity: Option<Arc<Activity>>,
    ) -> Arc<Self> {
        let network = || CallerOrigin::network(peer.map(|peer| peer.ip()));
        let access = client.as_ref().map(|client| client.access).unwrap_or_default();
        let origin = client.and_then(|client| client.name).map_or_else(network, CallerOrigin::Name);
        // One per connection: connections on different cores must not share a reference count.
        let caller = self.callers.connected(origin.clone(), access);
        Arc::new(Self { peer, origin, activity, caller, ..self.clone() })
    }

    /// Starts a batch of calls that are read together.
    pub(super) fn batch(&self) -> ReadBatch<'_> {
        self.api.batch(&self.caller)
    }

    /// Counts and logs a call that is answered with an error.
    pub(super) fn failed(&self, path: &str, reason: &'static str, status: &Status) {
        self.api.failed(path, self.peer, &Error::new(status.code(), reason, status.message()));
    }

    /// Whether the streams of a request may stay open.
    pub(super) fn is_streaming<B>(request: &Request<B>) -> bool {
        request.uri().path().starts_with(STREAMING_SERVICES)
    }

    /// Handles a request over HTTP.
    pub(super) fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let this = self.clone();
        let activity = this.activity.clone().map(|activity| Arc::new(RequestActivity::new(activity)));
        let request = request.map(|body| RequestBody::new(body, activity.clone()));
        async move {
            if let Some(activity) = &activity
                && request.body().is_end_stream()
                && !activity.start()
            {
                // The connection is being closed, which cancels this future.
                pending::<()>().await;
            }
            // Boxed to keep this future small.
            let response = Box::pin(this.route(request.map(Body::new))).await;
            drop(activity);
            response
        }
    }

    /// Passes a request to the router.
    pub(super) async fn route(&self, mut request: Request<Body>) -> Response<Body> {
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        request.extensions_mut().insert(self.caller.clone());
        let uri = request.uri().clone();
        // A router is always ready.
        let Ok(mut response) = self.router.clone().call(request).await;
        // The services behind the router return neither status for other reasons.
        if let Some(status) = response.headers_mut().get_mut("grpc-status") {
            if status == OUT_OF_RANGE {
                *status = RESOURCE_EXHAUSTED;
            } else if status == INTERNAL {
                *status = INVALID_ARGUMENT;
            }
        }
        if let Some(status) = Status::from_header_map(response.headers())
            && status.code() != Code::Ok
        {
            let is_unknown = status.code() == Code::Unimplemented;
            self.failed(uri.path(), if is_unknown { "UNKNOWN_METHOD" } else { "OTHER" }, &status);
        }
        response
    }
}
