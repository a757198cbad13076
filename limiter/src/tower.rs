//! A tower layer that limits HTTP requests inside a program: feature `tower`.
//!
//! A refused request gets status 429 with `Retry-After` (if the same request passes later) and, as each response to a
//! request with a limit, `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, in whole seconds; without a reset
//! if it is not known when the same request passes, or if it never does. A request that finds too many others waiting for
//! a shared store gets status 503. The body says why, as a text, or as a problem (RFC 9457) if the request accepts one.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER},
};
use tower_layer::Layer;
use tower_service::Service;

use crate::limiter::{
    Limiter,
    answer::LimiterError,
    embedded::{CheckError, Checked},
};
#[cfg(feature = "redis")]
use crate::shared_limiter::SharedLimiter;

/// The content type of a problem.
const PROBLEM: &str = "application/problem+json";

/// The check of a request by the limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The domain of the rules.
    pub domain: String,
    /// The entries of the descriptor.
    pub entries: Vec<(String, String)>,
    /// The hits to charge.
    pub hits: u64,
}

/// A limiter that decides the requests of a layer: [`Limiter`], or with the feature `redis` `SharedLimiter`.
pub trait Decide: Send + Sync + 'static {
    /// Charges the hits of a question if they pass.
    fn decide(&self, question: &Question) -> impl Future<Output = Result<Checked, CheckError>> + Send;
}

impl Decide for Limiter {
    async fn decide(&self, question: &Question) -> Result<Checked, CheckError> {
        self.check(&question.domain, &question.entries(), question.hits)
    }
}

#[cfg(feature = "redis")]
impl Decide for SharedLimiter {
    async fn decide(&self, question: &Question) -> Result<Checked, CheckError> {
        self.check(&question.domain, &question.entries(), question.hits).await
    }
}

impl Question {
    fn entries(&self) -> Vec<(&str, &str)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }
}

/// Limits the requests of a service. `question` returns the check of each request; a request for which it returns
/// `None` is not limited.
#[derive(Debug)]
pub struct RateLimitLayer<Q, L = Limiter> {
    limiter: Arc<L>,
    question: Q,
}

/// The service that [`RateLimitLayer`] makes.
#[derive(Debug)]
pub struct RateLimitService<S, Q, L = Limiter> {
    inner: S,
    limiter: Arc<L>,
    question: Q,
}

impl<Q, L> RateLimitLayer<Q, L> {
    /// A layer that uses this limiter.
    pub fn new(limiter: Arc<L>, question: Q) -> Self {
        Self { limiter, question }
    }
}

// By hand: the limiter need not be `Clone`.
impl<Q: Clone, L> Clone for RateLimitLayer<Q, L> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), question: self.question.clone() }
    }
}

impl<S: Clone, Q: Clone, L> Clone for RateLimitService<S, Q, L> {
    fn clone(&self) -> Self {
        let Self { inner, limiter, question } = self;
        Self { inner: inner.clone(), limiter: limiter.clone(), question: question.clone() }
    }
}

impl<S, Q: Clone, L> Layer<S> for RateLimitLayer<Q, L> {
    type Service = RateLimitService<S, Q, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, limiter: self.limiter.clone(), question: self.question.clone() }
    }
}

impl<S, Q, L, A, B> Service<Request<A>> for RateLimitService<S, Q, L>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Q: Fn(&Request<A>) -> Option<Question>,
    L: Decide,
    A: Send + 'static,
    B: From<String> + Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let Some(question) = (self.question)(&request) else {
            return Box::pin(self.inner.call(request));
        };
        // The service that is ready is called; its clone need not be.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let limiter = self.limiter.clone();
        let format = RefusalFormat::accepted(request.headers());
        Box::pin(async move {
            match limiter.decide(&question).await {
                Err(CheckError::Limiter(error @ LimiterError::Overloaded)) => {
                    Ok(response(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), format))
                }
                // A question without a domain limits nothing: the program's mistake must not fail its users.
                Err(_) => ready.call(request).await,
                Ok(checked) if !checked.passes => Ok(refusal(&checked, format)),
                Ok(checked) => {
                    if !checked.delay.is_zero() {
                        tokio::time::sleep(checked.delay).await;
                    }
                    let mut response = ready.call(request).await?;
                    add_headers(response.headers_mut(), &checked);
                    Ok(response)
                }
            }
        })
    }
}

/// The format of the body of a refusal.
#[derive(Clone, Copy, Debug)]
enum RefusalFormat {
    Text,
    /// RFC 9457.
    Problem,
}

impl RefusalFormat {
    /// The format for a request with these headers.
    fn accepted(headers: &HeaderMap) -> Self {
        let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_problem = accepted.any(|value| value.to_ascii_lowercase().contains(PROBLEM));
        if is_problem { Self::Problem } else { Self::Text }
    }
}

/// A response with the reason as its body, which has no character that JSON escapes.
fn response<B: From<String>>(status: StatusCode, reason: String, format: RefusalFormat) -> Response<B> {
    let title = status.canonical_reason().unwrap_or_default();
    let (content_type, body) = match format {
        RefusalFormat::Text => ("text/plain; charset=utf-8", reason),
        RefusalFormat::Problem => {
            let status = status.as_u16();
            (PROBLEM, format!(r#"{{"title":"{title}","status":{status},"detail":"{reason}"}}"#))
        }
    };
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn refusal<B: From<String>>(checked: &Checked, format: RefusalFormat) -> Response<B> {
    let reason = match checked.most_hits {
        Some(most) => format!("larger than the limit: at most {most} can ever pass"),
        None => "rate limit exceeded".to_owned(),
    };
    let mut response = response(StatusCode::TOO_MANY_REQUESTS, reason, format);
    add_headers(response.headers_mut(), checked);
    if let Some(wait) = checked.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds(wait).into());
    }
    response
}

fn add_headers(headers: &mut HeaderMap, checked: &Checked) {
    if let (Some(limit), Some(reset)) = (checked.limit, checked.reset_after) {
        headers.insert("ratelimit-limit", limit.into());
        headers.insert("ratelimit-remaining", checked.remaining.into());
        // A refusal that may never end waits for nothing.
        if checked.passes || checked.retry_after.is_some() {
            headers.insert("ratelimit-reset", seconds(reset).into());
        }
    }
}

/// Whole seconds, rounded up: a caller that waits for them is not refused for waiting too short.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const RULES: &str = "
domain: shop
descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
";

    /// Answers with the path as body.
    #[derive(Clone)]
    struct Echo;

    impl Service<Request<()>> for Echo {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            std::future::ready(Ok(Response::new(request.uri().path().to_owned())))
        }
    }

    fn question(request: &Request<()>) -> Option<Question> {
        let path = request.uri().path();
        let entries = vec![("path".to_owned(), path.to_owned())];
        (path != "/health").then(|| Question { domain: "shop".to_owned(), entries, hits: 1 })
    }

    async fn ask(
        service: &mut impl Service<Request<()>, Response = Response<String>, Error = Infallible>,
        path: &str,
    ) -> Response<String> {
        service.call(Request::builder().uri(path).body(()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn request_over_its_limit_is_refused_with_headers() {
        let limiter = Arc::new(Limiter::from_yaml(RULES).unwrap());
        let mut service = RateLimitLayer::new(limiter, question).layer(Echo);
        let passed = ask(&mut service, "/a").await;
        assert_eq!((passed.status(), passed.body().as_str()), (StatusCode::OK, "/a"));
        let header = |name: &str| passed.headers()[name].to_str().unwrap();
        assert_eq!(["ratelimit-limit", "ratelimit-remaining"].map(header), ["1", "0"]);
        let refused = ask(&mut service, "/a").await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.body(), "rate limit exceeded");
        assert_eq!(refused.headers()[RETRY_AFTER], "3600");
        assert_eq!(refused.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(ask(&mut service, "/b").await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn refusal_that_never_ends_has_neither_reset_nor_retry_after() {
        let limiter = Arc::new(Limiter::from_yaml(RULES).unwrap());
        let question =
            |request: &Request<()>| question(request).map(|question| Question { hits: 2, ..question });
        let refused = ask(&mut RateLimitLayer::new(limiter, question).layer(Echo), "/a").await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "retry-after"];
        assert_eq!(names.map(|name| refused.headers().contains_key(name)), [true, true, false, false]);
        assert_eq!(refused.body(), "larger than the limit: at most 1 can ever pass");
    }

    #[tokio::test]
    async fn refusal_is_a_problem_for_a_request_that_accepts_problems() {
        let limiter = Arc::new(Limiter::from_yaml(RULES).unwrap());
        let mut service = RateLimitLayer::new(limiter, question).layer(Echo);
        ask(&mut service, "/a").await;
        let request = Request::builder().uri("/a").header(ACCEPT, "text/html, Application/Problem+JSON");
        let refused = service.call(request.body(()).unwrap()).await.unwrap();
        assert_eq!(refused.headers()[CONTENT_TYPE], PROBLEM);
        let expected = r#"{"title":"Too Many Requests","status":429,"detail":"rate limit exceeded"}"#;
        assert_eq!(refused.body(), expected);
    }

    #[tokio::test]
    async fn request_without_question_is_not_limited() {
        let limiter = Arc::new(Limiter::from_yaml(RULES).unwrap());
        let mut service = RateLimitLayer::new(limiter, question).layer(Echo);
        for _ in 0..3 {
            let passed = ask(&mut service, "/health").await;
            assert_eq!(passed.status(), StatusCode::OK);
            assert!(!passed.headers().contains_key("ratelimit-limit"));
        }
    }
}
