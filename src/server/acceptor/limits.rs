//! The limits of the connections of a listener, and what makes room when it is full.

use std::{sync::Arc, time::Duration};

use crate::{
    server::idle::{Activity, ConnectionTracker},
    settings,
};

/// Average maximum age of an HTTP connection. The current request is still answered.
const HTTP_MAX_AGE: Duration = Duration::from_secs(5 * 60);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Limits {
    /// Maximum number of open connections.
    pub(super) connections: u64,
    /// Time for the TLS handshake, and then for the first bytes.
    pub(super) handshake: Duration,
    /// Average maximum age of a connection.
    pub(super) age: Duration,
    /// Time for open calls to finish after a graceful shutdown has begun.
    pub(super) grace: Duration,
}

impl Limits {
    pub(in crate::server) fn grpc(settings: &settings::Grpc) -> Self {
        Self {
            connections: settings.max_connections as u64,
            handshake: settings.handshake_timeout,
            age: settings.max_connection_age,
            grace: settings.max_connection_age_grace,
        }
    }

    pub(in crate::server) fn http(max_connections: usize, header_timeout: Duration) -> Self {
        let connections = max_connections as u64;
        Self { connections, handshake: header_timeout, age: HTTP_MAX_AGE, grace: HTTP_MAX_AGE }
    }
}

/// What makes room for a new connection when the maximum number of connections is open.
#[derive(Clone, Debug)]
pub(in crate::server) enum WhenFull {
    /// Close the new connection: its client can use another replica.
    CloseNew,
    /// Close the connection that has been idle longest: a probe cannot use another replica.
    CloseIdle(Arc<ConnectionTracker>),
}

impl WhenFull {
    /// Names the connections that are closed, for the log.
    pub(super) fn closing(&self) -> &'static str {
        match self {
            Self::CloseNew => "new",
            Self::CloseIdle(_) => "longest idle",
        }
    }

    /// Registers a new connection if idle connections may be closed.
    pub(super) fn open(&self) -> Option<Arc<Activity>> {
        match self {
            Self::CloseNew => None,
            Self::CloseIdle(connections) => Some(connections.track()),
        }
    }
}
