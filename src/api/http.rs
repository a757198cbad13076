//! The HTTP API: probes, the rate limit services as JSON, and decisions by headers.

use std::{fmt, net::SocketAddr, sync::Arc};

use axum::{
    Extension, Router,
    body::Body,
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE, request},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::sync::{Semaphore, watch};
use tollgate_counter::{printable, resilience::Caller};
use tollgate_wire::proto::google::rpc;
use tonic::Code;

use crate::api::{
    Api, ApiKind, Call, CallReply, Error, FailedCall, Hosts, Method, ResetPrecision,
    call::CHECK_PATH,
    cross_site::{self, GatewayRequests},
    error::details,
    failed_calls::BAD_HEADER,
    forward_auth, json,
    reader::{ReadError, ReadRequest, RequestReader},
};

/// What `GET /` answers.
const WHAT_LISTENS: &str = "Tollgate over HTTP: POST /json and /v1/... decide, GET /livez, /readyz and /healthcheck are probes; gRPC, metrics and the operators' page have ports of their own\n";

/// The maximum number of calls for limits of their own that run at once on the admin listener.
const LIMIT_CALLS_MAX: usize = 16;

/// Reports whether this process is ready to serve requests.
pub trait Readiness: fmt::Debug + Send + Sync + 'static {
    /// `Ok` has the answer if it is, `Err` the reason why it is not.
    fn ready(&self) -> Result<String, String>;

    /// The answer of `/healthcheck`, which is also the probe of liveness where rules are not required. `Ok` and `Err`
    /// have the meanings of [`Readiness::ready`].
    fn healthy(&self) -> Result<String, String> {
        self.ready()
    }
}

/// Routes `/`, `/healthcheck`, `/livez`, `/readyz`, `POST /json`, the calls of `tollgate.v1` below `/v1` and, if it is
/// set, `/check`. At most `calls_max` calls run at once. Calls wait until it is `opened`.
pub fn router<R: Readiness + Clone>(
    api: Api,
    readiness: R,
    reader: RequestReader,
    check: forward_auth::ForwardAuthSettings,
    hosts: Hosts,
    calls_max: usize,
    opened: watch::Receiver<bool>,
) -> Router {
    let probes = Router::new()
        .route("/", get(async || WHAT_LISTENS))
        .route("/livez", get(async || "OK"))
        .route("/readyz", get(readyz::<R>))
        .route("/healthcheck", axum::routing::any(healthcheck::<R>))
        .with_state(readiness);
    let calls = HttpCalls { api, running: Arc::new(Semaphore::new(calls_max)), opened };
    let v1 = |method| post(async move |state, parts, body| call_v1(method, state, parts, body).await);
    let json = Method::ALL.iter().fold(Router::new(), |router, method| {
        let handler = match method {
            Method::ShouldRateLimit => post(should_rate_limit),
            Method::Decide(_) | Method::Single(_) => v1(*method),
        };
        router.route(method.json_path(), handler)
    });
    let json = json.with_state((calls.clone(), reader));
    // A web page must not be able to make charges or reservations.
    let guard = middleware::from_fn_with_state(hosts.clone(), cross_site::refuse_unless_served);
    let routes = probes.merge(json.route_layer(guard));
    match check.check() {
        None => routes,
        Some(check) => {
            let gateways = GatewayRequests { hosts, headers: check.headers().into() };
            let guard = middleware::from_fn_with_state(gateways, cross_site::refuse_pages);
            let methods = get(decide_headers).post(decide_headers);
            let check = Router::new().route(CHECK_PATH, methods).with_state((calls, Arc::new(check)));
            routes.merge(check.route_layer(guard))
        }
    }
}

/// The calls for limits of their own, for the page of the admin listener. They need the admin token.
pub fn limits_router(api: Api, reader: RequestReader) -> Router {
    // The sender is gone, and what waits for it goes on.
    let (_, opened) = watch::channel(true);
    let calls = HttpCalls { api, running: Arc::new(Semaphore::new(LIMIT_CALLS_MAX)), opened };
    let methods = Method::ALL.iter().filter(|method| method.json_path().starts_with("/v1/limits/"));
    let routes = methods.fold(Router::new(), |router, method| {
        let handler = post(async move |state, parts, body| call_v1(*method, state, parts, body).await);
        router.route(method.json_path(), handler)
    });
    routes.with_state((calls, reader))
}

/// Decides calls.
#[derive(Clone, Debug)]
struct HttpCalls {
    api: Api,
    /// Permits of calls that are running or delayed. Connections without one can be closed to admit a probe.
    running: Arc<Semaphore>,
    /// Whether calls are answered.
    opened: watch::Receiver<bool>,
}

/// The address of a client; `None` over a Unix socket.
type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;

/// Why a call has no reply.
enum Undecided {
    Overloaded,
    /// A panic, which is a bug and was logged.
    Failed,
    Error(Error),
}

impl HttpCalls {
    /// Decides the message of `request`, and waits for the delay of the reply.
    async fn decide<M: Send + 'static>(
        &self,
        api: ApiKind,
        method: Method,
        metadata: Option<HeaderMap>,
        connection: Caller,
        request: M,
        message: fn(&M) -> &[u8],
    ) -> Result<CallReply, Undecided> {
        let Ok(_permit) = self.running.try_acquire() else { return Err(Undecided::Overloaded) };
        // An error means that the service ends, and the call is answered.
        let _ = self.opened.clone().wait_for(|is_open| *is_open).await;
        // A task of its own, because hyper drops the handler of a client that is gone, and a call that was forwarded
        // must be decided to its end. The task frees the memory of the request before the delay.
        let decider = self.api.clone();
        let decided = tokio::spawn(async move {
            let precision = ResetPrecision::Millis;
            let call =
                Call { method, message: message(&request), metadata: metadata.as_ref(), precision, api };
            decider.handle(call, &connection).await
        });
        let reply = decided.await.map_err(|_| Undecided::Failed)?.map_err(Undecided::Error)?;
        if !reply.delay.is_zero() {
            self.api.wait(reply.delay).await;
        }
        Ok(reply)
    }
}

impl HttpCalls {
    /// Counts and logs a call that is answered with an error.
    fn failed(&self, path: &str, (code, reason): (Code, &'static str), message: &str, peer: Peer) {
        let peer = peer.map(|Extension(ConnectInfo(peer))| peer);
        self.api.failed(&FailedCall { path, code, reason, message, peer });
    }
}

impl Undecided {
    fn reason(&self) -> String {
        match self {
            Self::Overloaded => "too many concurrent calls".to_owned(),
            Self::Failed => "the call failed".to_owned(),
            Self::Error(error) => error.to_string(),
        }
    }

    /// The code of its status, and the reason in the details.
    fn code_and_reason(&self) -> (Code, &'static str) {
        match self {
            Self::Overloaded => (Code::ResourceExhausted, "OVERLOADED"),
            Self::Failed => (Code::Internal, "INTERNAL"),
            Self::Error(error) => (error.code(), error.reason_name()),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Error(error) => match error.code() {
                Code::Unauthenticated => StatusCode::UNAUTHORIZED,
                Code::PermissionDenied => StatusCode::FORBIDDEN,
                Code::NotFound => StatusCode::NOT_FOUND,
                Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
                _ if error.is_caller_error() => StatusCode::BAD_REQUEST,
                _the_servers => StatusCode::SERVICE_UNAVAILABLE,
            },
        }
    }

    /// The error as `tollgate.v1` sends it.
    fn details(&self) -> rpc::Status {
        match self {
            Self::Error(error) => error.details(),
            Self::Overloaded | Self::Failed => {
                let (code, reason) = self.code_and_reason();
                details(code, reason, self.reason())
            }
        }
    }
}

async fn readyz<R: Readiness + Clone>(State(readiness): State<R>) -> Response {
    readiness.ready().map_err(|why| (StatusCode::SERVICE_UNAVAILABLE, printable_lines(&why))).into_response()
}

/// Like `/readyz`, with the status codes that probes for envoyproxy/ratelimit expect.
async fn healthcheck<R: Readiness + Clone>(State(readiness): State<R>) -> Response {
    readiness
        .healthy()
        .map_err(|why| (StatusCode::INTERNAL_SERVER_ERROR, printable_lines(&why)))
        .into_response()
}

/// A reason may quote rules and names of others, and `curl` prints it on a terminal.
fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable::escaped(line) + "\n").collect()
}

async fn should_rate_limit(
    State((calls, reader)): State<(HttpCalls, RequestReader)>,
    connection: Option<Extension<Caller>>,
    peer: Peer,
    body: Body,
) -> Response {
    let Extension(connection) = connection.unwrap_or_default();
    let method = Method::ShouldRateLimit;
    let request = match read(&calls, &reader, method, peer, body).await {
        Ok(request) => request,
        Err(error) => return error.into_response(),
    };
    let reply = match calls
        .decide(ApiKind::Json, method, None, connection, request, |request| request.message())
        .await
    {
        Ok(reply) => reply,
        Err(undecided) => {
            calls.failed(method.json_path(), undecided.code_and_reason(), &undecided.reason(), peer);
            return (undecided.status(), undecided.reason() + "\n").into_response();
        }
    };
    let status = if reply.passes == Some(true) { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    json_response(status, json::response(method, reply.message()))
}

/// A call of `tollgate.v1`. The status of an answered call is 200, whatever its verdicts.
async fn call_v1(
    method: Method,
    State((calls, reader)): State<(HttpCalls, RequestReader)>,
    parts: request::Parts,
    body: Body,
) -> Response {
    let connection = parts.extensions.get::<Caller>().cloned().unwrap_or_default();
    let peer: Peer = parts.extensions.get().copied().map(Extension);
    let request = match read(&calls, &reader, method, peer, body).await {
        Ok(request) => request,
        Err(error) => return json_response(error.status(), json::error(&error.details())),
    };
    let decided = calls
        .decide(ApiKind::Json, method, Some(parts.headers), connection, request, |request| request.message());
    match decided.await {
        Ok(reply) => json_response(StatusCode::OK, json::response(method, reply.message())),
        Err(undecided) => {
            calls.failed(method.json_path(), undecided.code_and_reason(), &undecided.reason(), peer);
            json_response(undecided.status(), json::error(&undecided.details()))
        }
    }
}

/// Reads the request of a method, and counts one that cannot be read.
async fn read(
    calls: &HttpCalls,
    reader: &RequestReader,
    method: Method,
    peer: Peer,
    body: Body,
) -> Result<ReadRequest, ReadError> {
    reader.read(method, body).await.inspect_err(|error| {
        calls.failed(method.json_path(), error.reason(), &error.to_string(), peer);
        if let Some(error) = error.too_large() {
            calls.api.metrics().unanswered(Error::Decode(error.into()));
        }
    })
}

fn json_response(status: StatusCode, json: Result<String, serde_json::Error>) -> Response {
    match json {
        Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn decide_headers(
    State((calls, check)): State<(HttpCalls, Arc<forward_auth::ForwardAuthCheck>)>,
    connection: Option<Extension<Caller>>,
    peer: Peer,
    headers: HeaderMap,
) -> Response {
    let message = match check.request(&headers) {
        Ok(Some(message)) => message,
        Ok(None) => return StatusCode::OK.into_response(),
        Err(header) => {
            calls.api.metrics().bad_header(&header);
            calls.failed(CHECK_PATH, (Code::InvalidArgument, BAD_HEADER), &header.to_string(), peer);
            return (StatusCode::BAD_REQUEST, format!("{header}\n")).into_response();
        }
    };
    let Extension(connection) = connection.unwrap_or_default();
    match calls
        .decide(ApiKind::ForwardAuth, Method::ShouldRateLimit, None, connection, message, |message| message)
        .await
    {
        Ok(reply) => {
            let (headers, body) = forward_auth::headers_and_body(reply.message());
            let mut response = (check.status(reply.passes == Some(true)), body).into_response();
            *response.headers_mut() = headers;
            response
        }
        Err(undecided) => {
            calls.failed(CHECK_PATH, undecided.code_and_reason(), &undecided.reason(), peer);
            (check.failure(), undecided.reason() + "\n").into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::api::fuzz;

    const OPENAPI: &str = include_str!("../../proto/tollgate/v1/openapi.yaml");

    #[test]
    fn routes_of_v1_are_the_paths_of_openapi() {
        // The router lists its routes nowhere else.
        let router = format!("{:?}", fuzz::http_router());
        let routes: BTreeSet<_> = router.split('"').filter(|text| text.starts_with("/v1")).collect();
        let paths = OPENAPI.lines().filter_map(|line| line.strip_prefix("  /v1")?.strip_suffix(':'));
        let paths: BTreeSet<_> = paths.map(|path| format!("/v1{path}")).collect();
        assert_eq!(routes, paths.iter().map(String::as_str).collect());
        assert!(!paths.is_empty());
    }
}
