//! Accepts connections, does the TLS handshake and drives each connection until it closes.
//!
//! A client can only harm its own connection: each handshake runs in a task of its connection, and everything is
//! bounded in number or time. When a bound is reached, the connection is closed and counted.

use std::{io, pin::pin, sync::Arc};

use tokio::{sync::watch, task::JoinSet};
use tollgate_net::accept;
use tracing::warn;

use crate::server::{
    Phase, Services,
    lifecycle::wait_for_phase,
    listen::{self, BoundListener, Listener},
    workers::WorkerHandles,
};

mod connections;
mod limits;
mod protocols;

pub(super) use connections::ListenerTerms;
pub(super) use limits::{Limits, WhenFull};
pub(super) use protocols::Protocols;

use connections::ConnectionContext;

/// A listener and the terms of its connections.
#[derive(Debug)]
pub(super) struct ListenerAcceptor<L> {
    pub(super) listener: L,
    pub(super) terms: ListenerTerms,
}

impl ListenerAcceptor<BoundListener> {
    /// Takes connections from here on.
    pub(super) fn listen(self) -> io::Result<ListenerAcceptor<Listener>> {
        Ok(ListenerAcceptor { listener: self.listener.listen()?, terms: self.terms })
    }
}

impl ListenerAcceptor<Listener> {
    /// Serves connections with `service` until the process stops, then waits for open connections to finish.
    /// Connections run on `workers`.
    pub(super) async fn serve(
        self,
        service: Services,
        workers: WorkerHandles,
        phases: watch::Receiver<Phase>,
    ) {
        let Self { listener, terms } = self;
        let name = terms.name;
        let limits = terms.limits;
        let context = Arc::new(ConnectionContext { terms, service });
        let mut open = JoinSet::new();
        let mut acceptor = accept::Acceptor::new(name);
        let mut is_full = false;
        let accept = || async { listener.accept().await.and_then(listen::detach) };
        let mut stopping = pin!(wait_for_phase(phases.clone(), Phase::Stopping));
        loop {
            let socket = tokio::select! {
                () = &mut stopping => break,
                Some(_) = open.join_next() => continue,
                socket = acceptor.next(accept, || context.terms.stats.accept_errors.increase()) => socket,
            };
            context.terms.stats.accepted.increase();
            let available = context.terms.stats.try_permit(limits.connections);
            if let Some(permit) = &available {
                // A tenth of the permits must be free before the listener counts as not full, so that the log stays
                // short.
                is_full &= permit.number() > limits.connections - limits.connections / 10;
            } else {
                if !is_full {
                    let max_connections = limits.connections;
                    let closing = context.terms.when_full.closing();
                    warn!(listener = name, max_connections, closing, "listener is full, closing connections");
                }
                is_full = true;
            }
            let permit = match available {
                Some(permit) => Some(permit),
                None => context.replace_longest_idle(&mut open).await,
            };
            if let Some(permit) = permit {
                let connection = context.terms.when_full.open();
                let task = context.clone().handle(socket, permit, connection, phases.clone());
                workers.spawn(&mut open, task);
            } else {
                context.terms.stats.refused_full.increase();
            }
        }
        // New connections are refused from here on.
        drop(listener);
        while open.join_next().await.is_some() {}
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
