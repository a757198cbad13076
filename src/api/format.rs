//! Formats times, keys, addresses and errors for operators.

use std::{convert::Infallible, fmt, net::SocketAddr, time::Duration};

use axum::{
    extract::{ConnectInfo, FromRequestParts},
    http::{StatusCode, request},
    response::{IntoResponse, Response},
};
use tollgate_counter::{descriptor::Key, time::Timestamp};

use crate::api::error::{Error, HttpError};

/// An instant in RFC 3339.
pub(crate) fn instant(instant: Timestamp) -> String {
    let nanos = i128::from(instant.as_nanos());
    jiff::Timestamp::from_nanosecond(nanos).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// `text` as one word of a POSIX shell, whatever its characters.
pub(crate) fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whole milliseconds, rounded up.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A key in hexadecimal.
pub(crate) fn key(key: Key) -> String {
    format!("{:016x}{:016x}", key.high(), key.low())
}

/// The address of the client, for log lines.
pub(in crate::api) struct ClientAddress(Option<SocketAddr>);

impl ClientAddress {
    pub(in crate::api) fn from_parts(parts: &request::Parts) -> Self {
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

impl<S: Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut request::Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::from_parts(parts))
    }
}

/// An error of a page: a status code and a line of text.
pub(in crate::api) struct AdminError(pub(in crate::api) StatusCode, pub(in crate::api) String);

impl AdminError {
    pub(in crate::api) fn bad_request(why: impl fmt::Display) -> Self {
        Self(StatusCode::BAD_REQUEST, why.to_string())
    }

    pub(in crate::api) fn not_found(why: impl fmt::Display) -> Self {
        Self(StatusCode::NOT_FOUND, why.to_string())
    }

    pub(in crate::api) fn unavailable(why: impl fmt::Display) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
    }
}

impl From<HttpError> for AdminError {
    fn from(HttpError { status, error }: HttpError) -> Self {
        Self(status, error.to_string())
    }
}

impl From<Error> for AdminError {
    fn from(error: Error) -> Self {
        HttpError::from(error).into()
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.0, format!("{}\n", self.1)).into_response()
    }
}
