//! `/log`: what is logged, changed while running.

use axum::{extract::State, http::StatusCode};
use tracing::warn;

use crate::{
    api::admin::{AdminError, AdminState, ClientAddress},
    telemetry::logs::{SetLevelError, UNLIMITED},
};

pub(super) async fn get(State(state): State<AdminState>) -> String {
    state.logs.level() + "\n"
}

/// Puts another level in force until the process ends or the next one comes.
pub(super) async fn put(
    State(state): State<AdminState>,
    peer: ClientAddress,
    body: String,
) -> Result<String, AdminError> {
    let level = body.trim();
    match state.logs.set_level(level) {
        Ok(before) => {
            // A warning, so that turning logs down leaves a trace of who did.
            warn!(name: UNLIMITED, %peer, before, after = level, "changed what is logged");
            Ok(format!("{level}\n"))
        }
        Err(error @ SetLevelError::Level(_)) => Err(AdminError::bad_request(error)),
        Err(error @ SetLevelError::Detached) => {
            Err(AdminError(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
        }
    }
}
