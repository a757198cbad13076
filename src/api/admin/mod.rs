//! The admin pages, for operators, on a listener of their own.

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
use tollgate_limiter::{
    limiter::Limiter, rules::ActiveRules, shared_store::SharedStore, store::Memory, time::Timestamp,
};

use crate::{
    api::{cross_site, reader::RequestReader, recorder::Recorder},
    cluster::Cluster,
    telemetry::logs::LogControl,
};

mod cluster;
mod config;
mod counters;
pub mod doctor;
mod explain;
pub(crate) mod format;
mod log;
pub mod page;
mod record;
mod rules;
mod token;

pub use config::{EffectiveSetting, Origin};
pub use token::{Token, TokenError};

/// The certificates of the listeners.
pub trait Certificates: fmt::Debug + Send + Sync {
    /// The name of each listener with a certificate, and when the active one expires.
    fn expiries(&self) -> Vec<(&'static str, Timestamp)>;
}

/// The endpoints, each with its help.
const ENDPOINTS: [(&str, &str); 15] = [
    ("/", "the operators' page, for a browser"),
    ("/cluster", "the view of this replica of the cluster"),
    ("/cluster/declare-dead", "POST ?member=ID: declares a silent member dead"),
    ("/config", "the effective settings and the origin of each"),
    ("/counters", "?domain=D&key=k=v[,k=v]: one counter; DELETE resets it, PUT {\"used\": N} sets it"),
    ("/doctor", "what commonly goes wrong, and how to repair it"),
    ("/endpoints", "this list"),
    (
        "/explain",
        "POST a request as for /json, or ?domain=D&key=k=v[,k=v]: the decision and the reasons for it",
    ),
    ("/live", "the figures of the page and of tollgate top: a line of JSON each second, for a minute"),
    ("/log", "the log level; PUT a level, as in info,tollgate_limiter::rules=debug, to change it"),
    (
        "/record",
        "?seconds=60&values=hashed: the requests that are decided, for tollgate simulate; needs admin.record",
    ),
    ("/rlconfig", "the active rules, one per line"),
    (
        "/rules",
        "the status of the active rules, and the problems of the last load; with ?list=WORDS the rules with all words, and their decisions",
    ),
    ("/store", "the stats of the counters"),
    ("/top", "the most denied keys"),
];

/// The maximum size of a body that sets a counter or a log level, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The state that the admin handlers share.
#[derive(Clone, Debug)]
pub struct AdminState {
    /// The cluster, if this replica is part of one.
    pub cluster: Option<Cluster>,
    /// The shared store, if the counters are there.
    pub shared_store: Option<SharedStore>,
    /// The active rules.
    pub active_rules: Arc<ActiveRules>,
    /// The counters.
    pub memory: Arc<Memory>,
    /// The limiter.
    pub limiter: Limiter,
    /// Reads the requests to explain.
    pub reader: RequestReader,
    /// The effective settings.
    pub settings: Arc<[EffectiveSetting]>,
    /// The log level.
    pub logs: LogControl,
    /// The samples for the operators' page.
    pub live: Arc<page::Live>,
    /// The recorder of requests; `None` if requests are never recorded.
    pub recorder: Option<Arc<Recorder>>,
}

/// All endpoints, those of `more`, and the operators' page. With a token file every request for data must contain the
/// token. Requests that a web page of another origin can cause are refused; without a token file, those to a `Host` other
/// than the loopback too.
pub fn router(state: AdminState, token_file: Option<PathBuf>, more: Router) -> Router {
    let live = Router::new().route("/live", get(page::live)).with_state(state.live.clone());
    let endpoints = Router::new()
        .route("/endpoints", get(endpoints))
        .route("/cluster", get(cluster::view))
        .route("/cluster/declare-dead", post(cluster::declare_dead))
        .route("/config", get(config::get))
        .route("/counters", get(counters::get).delete(counters::reset).put(counters::set))
        .route("/explain", post(explain::of_message).get(explain::of_query))
        .route("/log", get(log::get).put(log::put))
        .route("/record", get(record::stream))
        .route("/rlconfig", get(rules::lines))
        .route("/rules", get(rules::status))
        .route("/store", get(store))
        .with_state(state)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .merge(live)
        .merge(more);
    let endpoints = match token_file {
        None => endpoints.layer(middleware::from_fn(cross_site::refuse_unless_loopback)),
        Some(path) => endpoints
            .layer(middleware::from_fn(cross_site::refuse))
            .layer(middleware::from_fn_with_state(Arc::new(Token::new(path)), token::require_token)),
    };
    // In this order, so that unknown paths get the answer of the endpoints.
    page::files().merge(endpoints)
}

async fn endpoints() -> String {
    ENDPOINTS.iter().map(|(path, help)| format!("{path}: {help}\n")).collect()
}

async fn store(State(state): State<AdminState>) -> Json<Value> {
    Json(store_json(&state))
}

fn store_json(state: &AdminState) -> Value {
    let figures = state.memory.stats();
    let mut page = json!({
        "live": figures.live,
        "bytes": figures.bytes,
        "bytes_max": figures.bytes_max,
        "evicted_idle": figures.evicted_idle,
        "evicted_unexpired": figures.evicted_unexpired,
        "refused_full": figures.refused_full,
    });
    if let Some(store) = &state.shared_store {
        let stats = store.stats();
        page["shared"] = json!({
            "state": store.state().to_string(),
            "replicas": stats.replicas,
            "checks": stats.checks,
            "batches": stats.batches,
            "conflicts": stats.conflicts,
            "refused_locally": stats.refused_locally,
            "degraded": stats.degraded,
            "lost": stats.lost,
        });
    }
    page
}

/// An error of a page: a status code and a line of text.
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

/// The address of the client.
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
