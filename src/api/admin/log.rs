//! `/log`: the log level, which can be changed at run time.

use axum::{extract::State, http::StatusCode};
use tollgate_telemetry::logs::{SetLevelError, UNLIMITED};
use tracing::warn;

use crate::api::admin::{AdminState, client_address::ClientAddress, error::AdminError};

pub(super) async fn get(State(state): State<AdminState>) -> String {
    state.logs.level() + "\n"
}

/// Sets the level until the process ends or the next change.
pub(super) async fn put(
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
        Err(error @ SetLevelError::Level(_)) => Err(AdminError::bad_request(error)),
        Err(error @ SetLevelError::Detached) => {
            Err(AdminError(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
        }
    }
}
