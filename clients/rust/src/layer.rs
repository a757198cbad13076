//! A tower layer that limits the requests of HTTP and gRPC servers.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{Either, Full};
use tonic::{Code, Status, codegen::Bytes};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, Service};

use crate::{
    Checker, Client, Decision, Request, Source,
    headers::{self, RefusalFormat},
};

/// Limits the requests of a service. `describe` says what each request asks; a request for which it returns `None` is
/// not limited.
///
/// A denied request gets [`Decision::refusal`]. Each response to a request with a limit has `RateLimit-Limit`,
/// `RateLimit-Remaining` and `RateLimit-Reset` of the tightest one, in whole seconds. If `describe` returns an invalid
/// request, the status is 500: to let it pass would open a way around the limit.
///
/// A call of gRPC, by its content type, gets `RESOURCE_EXHAUSTED` with `google.rpc.RetryInfo`, `UNAVAILABLE` with
/// `google.rpc.RetryInfo` of a second if the server gave no answer, or `INTERNAL`, and the same headers as metadata.
#[derive(Clone)]
pub struct RateLimitLayer<D, C = Client> {
    checker: C,
    describe: D,
}

/// The service that [`RateLimitLayer`] makes.
#[derive(Clone)]
pub struct RateLimitService<S, D, C = Client> {
    inner: S,
    checker: C,
    describe: D,
}

impl<D, C> RateLimitLayer<D, C> {
    /// A layer that asks this client, or these [`PrepaidSlices`](crate::PrepaidSlices).
    pub fn new(checker: C, describe: D) -> Self {
        Self { checker, describe }
    }
}

impl<S, D: Clone, C: Clone> Layer<S> for RateLimitLayer<D, C> {
    type Service = RateLimitService<S, D, C>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, checker: self.checker.clone(), describe: self.describe.clone() }
    }
}

/// The body of a response: that of the service, or that of a refusal.
pub type LimitedBody<B> = Either<B, Full<Bytes>>;

impl<S, D, C, A, B> Service<http::Request<A>> for RateLimitService<S, D, C>
where
    S: Service<http::Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    D: Fn(&http::Request<A>) -> Option<Request>,
    C: Checker + Clone + 'static,
    A: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<LimitedBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<A>) -> Self::Future {
        let Some(limited) = (self.describe)(&request) else {
            let responding = self.inner.call(request);
            return Box::pin(async { Ok(responding.await?.map(Either::Left)) });
        };
        let checker = self.checker.clone();
        // The service that is ready is called; its clone need not be.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let protocol = Protocol::from_headers(request.headers());
            let Ok(decision) = checker.check(&limited).await else {
                return Ok(protocol.failure().map(Either::Right));
            };
            let mut response = if decision.allowed {
                decision.wait().await;
                ready.call(request).await?.map(Either::Left)
            } else {
                protocol.refusal(&decision).map(Either::Right)
            };
            headers::add_limit(response.headers_mut(), &decision);
            Ok(response)
        })
    }
}

/// How a caller reads that a request is refused.
#[derive(Clone, Copy)]
enum Protocol {
    Http(RefusalFormat),
    Grpc,
}

impl Protocol {
    fn from_headers(headers: &HeaderMap) -> Self {
        let content_type = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
        if content_type.is_some_and(|value| value.starts_with(b"application/grpc")) {
            Self::Grpc
        } else {
            Self::Http(RefusalFormat::accepted(headers))
        }
    }

    fn refusal(self, decision: &Decision) -> Response<Full<Bytes>> {
        match self {
            Self::Http(format) => headers::refusal(decision, format).map(Full::from),
            Self::Grpc => denial(decision).into_http(),
        }
    }

    fn failure(self) -> Response<Full<Bytes>> {
        match self {
            Self::Http(_) => {
                let mut response = Response::new(Full::default());
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                response
            }
            Self::Grpc => Status::internal("the rate limit of this call is not set up correctly").into_http(),
        }
    }
}

fn denial(decision: &Decision) -> Status {
    let code = match decision.source {
        Source::Default => Code::Unavailable,
        Source::Server | Source::DenyCache | Source::Prepaid => Code::ResourceExhausted,
    };
    let message = headers::reason(decision);
    match headers::wait_of(decision) {
        Some(wait) => Status::with_error_details(code, message, ErrorDetails::with_retry_info(Some(wait))),
        None => Status::new(code, message),
    }
}
