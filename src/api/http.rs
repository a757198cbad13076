//! The HTTP API: probes, and the rate limit service as JSON.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::sync::Semaphore;

use crate::{
    api::{Api, Call, Error, ResetPrecision, cross_site, json, reader::RequestReader},
    cluster::OpenForwards,
};

/// Reports whether this process is ready to serve requests.
pub trait Readiness: Clone + Send + Sync + 'static {
    /// `Err` has the reason why it is not ready.
    fn ready(&self) -> Result<(), String>;
}

/// Routes `/healthcheck`, `/livez`, `/readyz` and `POST /json`. At most `calls_max` JSON calls run at once.
pub fn router<R: Readiness>(api: Api, readiness: R, reader: RequestReader, calls_max: usize) -> Router {
    let probes = Router::new()
        .route("/livez", get(async || "OK"))
        .route("/readyz", get(readyz::<R>))
        .route("/healthcheck", axum::routing::any(healthcheck::<R>))
        .with_state(readiness);
    let json = Json { api, reader, calls: Arc::new(Semaphore::new(calls_max)) };
    let json = Router::new().route("/json", post(should_rate_limit)).with_state(json);
    // A web page must not be able to make charges.
    probes.merge(json.route_layer(middleware::from_fn(cross_site::refuse)))
}

/// State of the `/json` handler.
#[derive(Clone, Debug)]
struct Json {
    api: Api,
    reader: RequestReader,
    /// Permits of calls that are running or delayed. Connections without one can be closed to admit a probe.
    calls: Arc<Semaphore>,
}

async fn readyz<R: Readiness>(State(readiness): State<R>) -> Response {
    match readiness.ready() {
        Ok(()) => "OK".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

/// Like `/readyz`, with the status codes that probes for envoyproxy/ratelimit expect.
async fn healthcheck<R: Readiness>(State(readiness): State<R>) -> Response {
    match readiness.ready() {
        Ok(()) => "OK".into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
    }
}

async fn should_rate_limit(
    State(Json { api, reader, calls }): State<Json>,
    connection: Option<Extension<OpenForwards>>,
    body: Body,
) -> Response {
    let Extension(connection) = connection.unwrap_or_default();
    let request = match reader.read(body).await {
        Ok(request) => request,
        Err(error) => {
            if let Some(error) = error.too_large() {
                api.metrics().unanswered(Error::Decode(error.into()));
            }
            return error.into_response();
        }
    };
    let Ok(_permit) = calls.try_acquire() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many concurrent calls\n").into_response();
    };
    let call = Call { message: request.message(), metadata: None, precision: ResetPrecision::Millis };
    let handled = api.handle(call, &connection).await;
    // Frees the memory of the request before the delay.
    drop(request);
    let reply = match handled {
        Ok(reply) => reply,
        Err(error) if error.is_caller_error() => {
            return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
        }
        Err(error) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    };
    if !reply.delay.is_zero() {
        api.wait(reply.delay).await;
    }
    let status = if reply.passes { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    match json::response(reply.message()) {
        Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
