//! The plain HTTP side: probes, and the rate limit service as JSON.

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};

use crate::{
    api::{Api, envoy::Resets, json, proto::envoy::service::ratelimit::v3::rate_limit_response::Code},
    cluster::OpenForwards,
};

/// The largest request, in bytes: as over gRPC, for a smaller bound would be a way around the limits.
const REQUEST_MAX: usize = 4 * 1024 * 1024;

/// Tells whether this process should be sent requests, and if not, why.
pub trait Readiness: Clone + Send + Sync + 'static {
    /// `Err` says why not.
    fn ready(&self) -> Result<(), String>;
}

/// `/healthcheck`, `/livez`, `/readyz` and `POST /json`.
pub fn router<R: Readiness>(api: Api, readiness: R) -> Router {
    let probes = Router::new()
        .route("/livez", get(async || "OK"))
        .route("/readyz", get(readyz::<R>))
        .route("/healthcheck", axum::routing::any(healthcheck::<R>))
        .with_state(readiness);
    let json = Router::new().route("/json", post(should_rate_limit)).with_state(api);
    probes.merge(json).layer(DefaultBodyLimit::max(REQUEST_MAX))
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
    State(api): State<Api>,
    connection: Option<Extension<OpenForwards>>,
    body: Bytes,
) -> Response {
    let Extension(connection) = connection.unwrap_or_default();
    let request = match json::request(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let response = match api.answer(&request, None, Resets::Millis, &connection).await {
        Ok(response) => response,
        Err(error) if error.is_callers_fault() => {
            return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
        }
        Err(error) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    };
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    match json::response(&response) {
        Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
