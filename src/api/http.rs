//! The plain HTTP side: probes, and the rate limit service as JSON.

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

/// Tells whether this process should be sent requests, and if not, why.
pub trait Readiness: Clone + Send + Sync + 'static {
    /// `Err` says why not.
    fn ready(&self) -> Result<(), String>;
}

/// `/healthcheck`, `/livez`, `/readyz` and `POST /json`, with at most `calls_max` calls of the last under way.
pub fn router<R: Readiness>(api: Api, readiness: R, reader: RequestReader, calls_max: usize) -> Router {
    let probes = Router::new()
        .route("/livez", get(async || "OK"))
        .route("/readyz", get(readyz::<R>))
        .route("/healthcheck", axum::routing::any(healthcheck::<R>))
        .with_state(readiness);
    let json = Json { api, reader, calls: Arc::new(Semaphore::new(calls_max)) };
    let json = Router::new().route("/json", post(should_rate_limit)).with_state(json);
    // A page that is read in this network must not make charges.
    probes.merge(json.route_layer(middleware::from_fn(cross_site::refuse)))
}

/// What answers `/json`.
#[derive(Clone, Debug)]
struct Json {
    api: Api,
    reader: RequestReader,
    /// Calls that are answered or wait for their turn: the connections of the others can be closed for a probe's.
    calls: Arc<Semaphore>,
}

async fn readyz<R: Readiness>(State(readiness): State<R>) -> Response {
    match readiness.ready() {
        Ok(()) => "OK".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

/// As `/readyz`, with the codes that probes written for envoyproxy/ratelimit know.
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
    let Ok(_call) = calls.try_acquire() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many calls are under way\n").into_response();
    };
    let call = Call { message: request.message(), metadata: None, precision: ResetPrecision::Millis };
    let handled = api.handle(call, &connection).await;
    // The request is freed before its call waits.
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
