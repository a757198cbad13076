//! Who answers what a connection asks: a router, or at once where the call is usual.

use std::{
    future::{Future, pending},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::ConnectInfo,
    http::{HeaderMap, HeaderValue, Request, Response},
};
use hyper::body::{Body as _, Bytes};
use tonic::codegen::Service as _;

use crate::{
    api::{Api, Reply, Turn},
    cluster::OpenForwards,
    server::{
        body::{Answer, Bound, Source, Timely},
        idle::{Activity, RequestActivity},
        quick,
    },
};

/// The gRPC service whose streams may stay open.
const CONVERSATIONS: &str = "/grpc.reflection.";
/// `OUT_OF_RANGE`, and what gRPC has for a message that is too large.
const OUT_OF_RANGE: &str = "11";
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");

/// Answers requests.
#[derive(Clone, Debug)]
pub(super) struct Routed {
    router: Router,
    // Where usual calls are answered without the router.
    quick: Option<Api>,
    // Who asks, where the router wants to know.
    peer: Option<Option<SocketAddr>>,
    // Of the connection, where a full listener closes idle ones.
    activity: Option<Arc<Activity>>,
    // The checks of this connection that other replicas are asked.
    forwards: OpenForwards,
}

impl Routed {
    /// Over HTTP.
    pub(super) fn http(router: Router) -> Self {
        // With its state in it a router need not be finished anew for each request.
        Self {
            router: router.with_state(()),
            quick: None,
            peer: Some(None),
            activity: None,
            forwards: OpenForwards::default(),
        }
    }

    /// Over gRPC; usual calls are answered by `api`.
    pub(super) fn grpc(router: Router, api: Api) -> Self {
        let quick = Some(api).filter(Api::is_quick);
        Self { router, quick, peer: None, activity: None, forwards: OpenForwards::default() }
    }

    /// The same for the connection of one client.
    pub(super) fn of(&self, peer: Option<SocketAddr>, activity: Option<Arc<Activity>>) -> Arc<Self> {
        let (router, quick) = (self.router.clone(), self.quick.clone());
        // Each has one of its own, so that connections on different cores share no count of references.
        let forwards = OpenForwards::default();
        Arc::new(Self { router, quick, peer: self.peer.map(|_| peer), activity, forwards })
    }

    /// Begins to answer calls that have come together, where any may be answered without waiting.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        self.quick.as_ref().map(Api::turn)
    }

    /// Answers a call of this body, whose counters other replicas hold; `None` where it is for [`Routed::answer`].
    pub(super) async fn afar(&self, body: &[u8], headers: &HeaderMap) -> Option<Reply> {
        self.quick.as_ref()?.answer_framed_afar(body, headers, &self.forwards).await
    }

    /// Waits until the turn of a call that was answered with this delay.
    pub(super) async fn wait(&self, delay: Duration) {
        if let Some(api) = &self.quick {
            api.wait(delay).await;
        }
    }

    /// Whether the streams of a request may stay open.
    pub(super) fn is_conversation<B>(request: &Request<B>) -> bool {
        request.uri().path().starts_with(CONVERSATIONS)
    }

    /// Answers a request, of whose body the first piece may have been read.
    pub(super) fn answer<B: Into<Source>>(
        self: &Arc<Self>,
        request: Request<B>,
        read: Option<Bytes>,
    ) -> impl Future<Output = Response<Answer>> + Send + use<B> {
        let this = self.clone();
        let bound = if Self::is_conversation(&request) { Bound::Unbounded } else { Bound::Bounded };
        let activity = this.activity.clone().map(|activity| Arc::new(RequestActivity::of(activity)));
        let mut request = request.map(|body| Timely::new(body.into(), read, bound).of(activity.clone()));
        async move {
            if let Some(activity) = &activity
                && request.body().is_end_stream()
                && !activity.run()
            {
                // The connection is being closed, and this with it.
                pending::<()>().await;
            }
            if let Some(api) = &this.quick
                && let Some(response) = quick::answer(api, &mut request, &this.forwards).await
            {
                return response;
            }
            // On the heap, so that the future of a usual call is small.
            let response = Box::pin(this.route(request)).await;
            drop(activity);
            response
        }
    }

    async fn route(&self, mut request: Request<Timely>) -> Response<Answer> {
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
        response.map(Answer::Routed)
    }
}
