//! The HTTP API: probes, the rate limit services as JSON, and decisions by headers.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::{Extensions, HeaderMap, StatusCode, header::CONTENT_TYPE, request},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::sync::{Semaphore, watch};
use tollgate_counter::{printable, resilience::Caller};
use tonic::Code;

use crate::api::{
    ApiKind,
    admin::state::Readiness,
    call::{CHECK_PATH, Call, CallReply, Method, ResetPrecision},
    cross_site::{GatewayRequests, Hosts, refuse_cross_site},
    error::{Error, HttpError},
    failed_calls::BAD_HEADER,
    forward_auth, json,
    reader::{ReadRequest, RequestReader},
    service::Api,
};

/// What `GET /` answers.
const WHAT_LISTENS: &str = "Tollgate over HTTP: POST /json and /v1/... decide, GET /livez, /readyz and /healthcheck are probes; gRPC, metrics and the operators' page have ports of their own\n";

/// The maximum number of calls for limits of their own that run at once on the admin listener.
const LIMIT_CALLS_MAX: usize = 16;

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
    let json = json_routes(Method::ALL.iter(), &calls, reader);
    // A web page must not be able to make charges or reservations.
    let guard = |guard| middleware::from_fn_with_state(guard, refuse_cross_site);
    let routes = probes.merge(json.route_layer(guard(hosts.clone().guard())));
    match check.check() {
        None => routes,
        Some(check) => {
            let gateways = GatewayRequests { hosts, headers: check.headers().into() };
            let methods = get(decide_headers).post(decide_headers);
            let check = Router::new().route(CHECK_PATH, methods).with_state((calls, Arc::new(check)));
            routes.merge(check.route_layer(guard(gateways.guard())))
        }
    }
}

/// The calls for limits of their own, for the page of the admin listener. They need the admin token.
pub fn limits_router(api: Api, reader: RequestReader) -> Router {
    // The sender is gone, and what waits for it goes on.
    let (_, opened) = watch::channel(true);
    let calls = HttpCalls { api, running: Arc::new(Semaphore::new(LIMIT_CALLS_MAX)), opened };
    let methods = Method::ALL.iter().filter(|method| method.json_path().starts_with("/v1/limits/"));
    json_routes(methods, &calls, reader)
}

/// Routes these methods as JSON.
fn json_routes<'m>(
    methods: impl Iterator<Item = &'m Method>,
    calls: &HttpCalls,
    reader: RequestReader,
) -> Router {
    let routes = methods.fold(Router::new(), |router, method| {
        let method = *method;
        router.route(method.json_path(), post(async move |state, request| call(method, state, request).await))
    });
    routes.with_state((calls.clone(), reader))
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

impl HttpCalls {
    /// Decides the message of `request`, and waits for the delay of the reply.
    async fn decide(
        &self,
        api: ApiKind,
        method: Method,
        metadata: Option<HeaderMap>,
        connection: Caller,
        request: ReadRequest,
    ) -> Result<CallReply, Error> {
        let busy = |_| Error::new(Code::ResourceExhausted, "OVERLOADED", "too many concurrent calls");
        let _permit = self.running.try_acquire().map_err(busy)?;
        // An error means that the service ends, and the call is answered.
        let _ = self.opened.clone().wait_for(|is_open| *is_open).await;
        // A task of its own, because hyper drops the handler of a client that is gone, and a call that was forwarded
        // must be decided to its end. The task frees the memory of the request before the delay.
        let decider = self.api.clone();
        let decided = tokio::spawn(async move {
            let precision = ResetPrecision::Millis;
            let message = &*request.message;
            let call = Call { method, message, metadata: metadata.as_ref(), precision, api };
            decider.handle(call, &connection).await
        });
        // A panic is a bug and was logged.
        let reply =
            decided.await.map_err(|_| Error::new(Code::Internal, "INTERNAL", "the call failed"))??;
        if !reply.delay.is_zero() {
            self.api.wait(reply.delay).await;
        }
        Ok(reply)
    }

    /// Counts and logs a call that is answered with an error.
    fn failed(&self, path: &str, error: &Error, extensions: &Extensions) {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        self.api.failed(path, peer, error);
    }
}

async fn readyz<R: Readiness + Clone>(State(readiness): State<R>) -> Response {
    probed(readiness.ready(), StatusCode::SERVICE_UNAVAILABLE)
}

/// Answers `/healthcheck` as probes for envoyproxy/ratelimit expect: 200, or 500 with the reason.
async fn healthcheck<R: Readiness + Clone>(State(readiness): State<R>) -> Response {
    probed(readiness.healthy(), StatusCode::INTERNAL_SERVER_ERROR)
}

fn probed(answer: Result<String, String>, failure: StatusCode) -> Response {
    // A reason may quote rules and names of others, and `curl` prints it on a terminal.
    let printable = |why: String| why.lines().map(|line| printable::escaped(line) + "\n").collect::<String>();
    answer.map_err(|why| (failure, printable(why))).into_response()
}

/// A call as JSON. The status of an answered call of `tollgate.v1` is 200, whatever its verdicts.
async fn call(
    method: Method,
    State((calls, reader)): State<(HttpCalls, RequestReader)>,
    request: Request,
) -> Response {
    let (request::Parts { headers, extensions, .. }, body) = request.into_parts();
    let is_envoys = method == Method::ShouldRateLimit;
    let metadata = (!is_envoys).then_some(headers);
    let connection = extensions.get::<Caller>().cloned().unwrap_or_default();
    let answered = async {
        let read = reader.read(method, body).await;
        // Other errors are counted where they arise.
        let counted = |read: &HttpError| calls.api.metrics.count_unanswered(&read.error);
        let request = read.inspect_err(counted)?;
        Ok::<_, HttpError>(calls.decide(ApiKind::Json, method, metadata, connection, request).await?)
    };
    match answered.await {
        Ok(reply) => {
            let passes = !is_envoys || reply.passes == Some(true);
            let status = if passes { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
            json_response(status, json::response(method, reply.message()))
        }
        Err(error) => {
            calls.failed(method.json_path(), &error.error, &extensions);
            if is_envoys {
                error.into_response()
            } else {
                json_response(error.status, json::error(&error.error.details()))
            }
        }
    }
}

fn json_response(status: StatusCode, json: Result<String, serde_json::Error>) -> Response {
    match json {
        Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn decide_headers(
    State((calls, check)): State<(HttpCalls, Arc<forward_auth::ForwardAuthCheck>)>,
    request: Request,
) -> Response {
    let (request::Parts { headers, extensions, .. }, _) = request.into_parts();
    let message = match check.request(&headers) {
        Ok(Some(message)) => message,
        Ok(None) => return StatusCode::OK.into_response(),
        Err(header) => {
            calls.api.metrics.missing_headers.increase();
            let error = Error::new(Code::InvalidArgument, BAD_HEADER, header.to_string());
            calls.failed(CHECK_PATH, &error, &extensions);
            return (StatusCode::BAD_REQUEST, format!("{header}\n")).into_response();
        }
    };
    let connection = extensions.get::<Caller>().cloned().unwrap_or_default();
    let method = Method::ShouldRateLimit;
    match calls.decide(ApiKind::ForwardAuth, method, None, connection, message.into()).await {
        Ok(reply) => {
            let (headers, body) = forward_auth::headers_and_body(reply.message());
            let mut response = (check.status(reply.passes == Some(true)), body).into_response();
            *response.headers_mut() = headers;
            response
        }
        Err(error) => {
            calls.failed(CHECK_PATH, &error, &extensions);
            (check.failure, format!("{error}\n")).into_response()
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
