//! Errors of the admin endpoints.

use std::fmt;

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

/// An error of a page: a status code and a line of text.
pub(super) struct AdminError(pub(super) StatusCode, pub(super) String);

impl AdminError {
    pub(super) fn bad_request(why: impl fmt::Display) -> Self {
        Self(StatusCode::BAD_REQUEST, why.to_string())
    }

    pub(super) fn not_found(why: impl fmt::Display) -> Self {
        Self(StatusCode::NOT_FOUND, why.to_string())
    }

    pub(super) fn unavailable(why: impl fmt::Display) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.0, format!("{}\n", self.1)).into_response()
    }
}
