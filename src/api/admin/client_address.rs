//! The address of a client, for log lines.

use std::{convert::Infallible, fmt, net::SocketAddr};

use axum::{
    extract::{ConnectInfo, FromRequestParts},
    http::request,
};

/// The address of the client.
pub(super) struct ClientAddress(Option<SocketAddr>);

impl ClientAddress {
    pub(super) fn from_parts(parts: &request::Parts) -> Self {
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
