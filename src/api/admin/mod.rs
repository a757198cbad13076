//! What operators see and change, on a listener of its own.

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    extract::{ConnectInfo, DefaultBodyLimit, State},
    http::{StatusCode, request},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};

use crate::{
    api::{cross_site, reader::RequestReader},
    limiter::Limiter,
    rules::ActiveRules,
    store::Memory,
    telemetry::logs::LogControl,
};

mod cluster;
mod config;
mod counters;
mod explain;
mod format;
mod log;
mod rules;
mod token;

pub use config::{EffectiveSetting, Origin};
pub use token::{Token, TokenError};

/// The pages, each with a line of help.
const PAGES: [(&str, &str); 11] = [
    ("/", "this list"),
    ("/cluster", "the other replicas, as this one sees them"),
    ("/cluster/declare-dead", "POST ?member=ID: treats a member as dead of which nothing proves that it is"),
    ("/config", "the settings in force, and what set each"),
    (
        "/counters",
        "?domain=D&key=k=v[,k=v]: one counter; DELETE makes it a fresh one, PUT {\"used\": N} sets it",
    ),
    ("/explain", "POST a request as for /json, or ?domain=D&key=k=v[,k=v]: what would be decided and why"),
    ("/log", "what is logged; PUT a level, as in info,tollgate::rules=debug, to change it"),
    ("/rlconfig", "the rules in force, a line each"),
    ("/rules", "how the rules in force came about, and what is wrong with those that are not"),
    ("/store", "how many counters there are"),
    ("/top", "the keys that are denied most often"),
];

/// The largest body that sets a counter or a log level, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// What operators look at.
#[derive(Clone, Debug)]
pub struct AdminState {
    /// The rules.
    pub active_rules: Arc<ActiveRules>,
    /// The counters.
    pub memory: Arc<Memory>,
    /// Who decides.
    pub limiter: Limiter,
    /// Reads requests that are to be explained.
    pub reader: RequestReader,
    /// The settings in force.
    pub settings: Arc<[EffectiveSetting]>,
    /// What is logged.
    pub logs: LogControl,
}

/// All pages, and `more` ones. With a token file every request needs the token in it, which no page of another site
/// knows. Without one, requests that such a page can cause are refused.
pub fn router(state: AdminState, token_file: Option<PathBuf>, more: Router) -> Router {
    let pages = Router::new()
        .route("/", get(index))
        .route("/cluster", get(cluster::view))
        .route("/cluster/declare-dead", post(cluster::declare_dead))
        .route("/config", get(config::get))
        .route("/counters", get(counters::get).delete(counters::reset).put(counters::set))
        .route("/explain", post(explain::of_message).get(explain::of_query))
        .route("/log", get(log::get).put(log::put))
        .route("/rlconfig", get(rules::lines))
        .route("/rules", get(rules::status))
        .route("/store", get(store))
        .with_state(state)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .merge(more);
    match token_file {
        None => pages.layer(middleware::from_fn(cross_site::refuse_unless_loopback)),
        Some(path) => {
            pages.layer(middleware::from_fn_with_state(Arc::new(Token::new(path)), token::require_token))
        }
    }
}

async fn index() -> String {
    PAGES.iter().map(|(path, help)| format!("{path}: {help}\n")).collect()
}

async fn store(State(state): State<AdminState>) -> Json<Value> {
    let figures = state.memory.figures();
    Json(json!({
        "live": figures.live,
        "bytes": figures.bytes,
        "evicted_idle": figures.evicted_idle,
        "evicted_unexpired": figures.evicted_unexpired,
        "refused_full": figures.refused_full,
    }))
}

/// Why a page has no answer: a code, and a line of text.
struct AdminError(StatusCode, String);

impl AdminError {
    fn bad_request(why: impl fmt::Display) -> Self {
        Self(StatusCode::BAD_REQUEST, why.to_string())
    }

    fn not_found(why: impl fmt::Display) -> Self {
        Self(StatusCode::NOT_FOUND, why.to_string())
    }

    fn unavailable(why: impl fmt::Display) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.0, format!("{}\n", self.1)).into_response()
    }
}

/// Who asks.
struct ClientAddress(Option<SocketAddr>);

impl ClientAddress {
    fn of(parts: &request::Parts) -> Self {
        Self(parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0))
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

impl<S: Sync> axum::extract::FromRequestParts<S> for ClientAddress {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut request::Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(parts))
    }
}
