//! The admin pages, for operators, on a listener of their own.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    middleware,
    routing::{get, post},
};
use serde_json::{Map, Value, json};
use tollgate_telemetry::logs::{LogError, UNLIMITED};
use tracing::warn;

use crate::api::cross_site::{CrossSiteGuard, loopback, refuse_cross_site, same_origin};

pub(crate) mod alerts;
mod cluster;
mod counters;
mod doctor;
mod explain;
pub mod page;
mod record;
mod rules;
pub(crate) mod state;

pub use crate::api::token::{Token, TokenError};
pub use alerts::{AlertHistory, MetricReader, MetricValues};
pub use state::{AdminState, Certificates, EffectiveSetting, Readiness, SettingOrigin};

use crate::api::format::{AdminError, ClientAddress};

/// The endpoints, each with its help.
const ENDPOINTS: [(&str, &str); 19] = [
    ("/", "the operators' page, for a browser"),
    ("/cluster", "the view of this replica of the cluster"),
    ("/cluster/declare-dead", "POST ?member=ID: declares a silent member dead"),
    ("/config", "the effective settings and the origin of each"),
    ("/counters", "?domain=D&key=k=v[,k=v]: one counter; DELETE resets it, PUT {\"used\": N} sets it"),
    (
        "/doctor",
        "what commonly goes wrong, and how to repair it; POST descriptors of an Envoy to compare them",
    ),
    ("/endpoints", "this list"),
    (
        "/explain",
        "POST a request as for /json, or ?domain=D&key=k=v[,k=v]: the decision and the reasons for it",
    ),
    ("/live", "the figures of the page: a line of JSON each second, for a minute"),
    ("/log", "the log level; PUT a level, as in info,tollgate_rules=debug, to change it"),
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
    ("/top", "the most denied keys, and those most requested at clients with quotas"),
    ("/v1/limits/clear", "POST: removes limits of their own of keys, as on the HTTP listener"),
    ("/v1/limits/get", "POST: reads them"),
    ("/v1/limits/list", "POST: lists them"),
    ("/v1/limits/set", "POST: sets them"),
];

/// The maximum size of a body that sets a counter or a log level, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// All endpoints, those of `more`, and the operators' page. With a token file every request for data must contain the
/// token. Requests that a web page of another origin can cause are refused; without a token file, those to a `Host` other
/// than the loopback too.
pub fn router(state: AdminState, token_file: Option<PathBuf>, more: Router) -> Router {
    let doctor = get(doctor::diagnose_replica).post(doctor::diagnose_envoy);
    let doctor = doctor.layer(DefaultBodyLimit::max(doctor::BODY_BYTES_MAX));
    let endpoints = Router::new()
        .route("/endpoints", get(endpoints))
        .route("/cluster", get(cluster::view))
        .route("/cluster/declare-dead", post(cluster::declare_dead))
        .route("/config", get(config))
        .route("/counters", get(counters::get).delete(counters::reset).put(counters::set))
        .route("/doctor", doctor)
        .route("/explain", post(explain::explain_message).get(explain::explain_query))
        .route("/log", get(log_level).put(set_log_level))
        .route("/record", get(record::stream))
        .route("/rlconfig", get(rules::lines))
        .route("/rules", get(rules::status))
        .route("/store", get(counters::store))
        .route("/top", get(counters::top))
        .with_state(state)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .merge(more);
    let guard = |guard: CrossSiteGuard| middleware::from_fn_with_state(guard, refuse_cross_site);
    let endpoints = match token_file {
        None => endpoints.layer(guard(Arc::new(loopback))),
        Some(path) => endpoints.layer(guard(Arc::new(same_origin))).layer(middleware::from_fn_with_state(
            Arc::new(Token::new(path)),
            crate::api::token::require_token,
        )),
    };
    // In this order, so that unknown paths get the answer of the endpoints.
    page::files().merge(endpoints)
}

async fn endpoints() -> String {
    ENDPOINTS.iter().map(|(path, help)| format!("{path}: {help}\n")).collect()
}

/// The effective settings. `settings`: names and values; `from`: the origin of each.
async fn config(State(state): State<AdminState>) -> Json<Value> {
    let (mut values, mut origins) = (Map::new(), Map::new());
    for setting in &*state.settings {
        values.insert(setting.name.to_owned(), setting.value.clone().into());
        origins.insert(setting.name.to_owned(), setting.from.name().into());
    }
    Json(json!({"settings": values, "from": origins}))
}

async fn log_level(State(state): State<AdminState>) -> String {
    state.logs.level() + "\n"
}

/// Sets the log level until the process ends or the next change.
async fn set_log_level(
    State(state): State<AdminState>,
    peer: ClientAddress,
    body: String,
) -> Result<String, AdminError> {
    let level = body.trim();
    match state.logs.set_level(level) {
        Ok(before) => {
            // A warning, so that lowering the level leaves a trace of who did it.
            warn!(name: UNLIMITED, %peer, before, after = level, "changed the log level");
            Ok(format!("{level}\n"))
        }
        Err(error @ LogError::Level(_)) => Err(AdminError::bad_request(error)),
        Err(error @ (LogError::Thread(_) | LogError::Detached)) => Err(AdminError::unavailable(error)),
    }
}
