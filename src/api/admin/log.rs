//! `/log`: what is logged, changed while running.

use axum::{extract::State, http::StatusCode};
use tracing::warn;

use crate::{
    api::admin::{Desk, Peer, Refused},
    telemetry::logs::{DialError, UNLIMITED},
};

pub(super) async fn get(State(desk): State<Desk>) -> String {
    desk.logs.level() + "\n"
}

/// Puts another level in force until the process ends or the next one comes.
pub(super) async fn put(State(desk): State<Desk>, peer: Peer, body: String) -> Result<String, Refused> {
    let level = body.trim();
    match desk.logs.turn(level) {
        Ok(before) => {
            // A warning, so that turning logs down leaves a trace of who did.
            warn!(name: UNLIMITED, %peer, before, after = level, "changed what is logged");
            Ok(format!("{level}\n"))
        }
        Err(error @ DialError::Level(_)) => Err(Refused::bad(error)),
        Err(error @ DialError::Detached) => Err(Refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
}
