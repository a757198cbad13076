//! What holds for all connections of a listener.

use std::sync::Arc;

use crate::server::{
    Budgets, ListenerCertificates,
    acceptor::{
        limits::{Limits, WhenFull},
        protocols::Protocols,
    },
    stats::ListenerStats,
};

/// What holds for all connections of a listener.
#[derive(Debug)]
pub(in crate::server) struct ListenerTerms {
    pub(in crate::server) name: &'static str,
    pub(in crate::server) certificates: Option<Arc<ListenerCertificates>>,
    pub(in crate::server) protocols: Protocols,
    pub(in crate::server) limits: Limits,
    pub(in crate::server) budgets: Budgets,
    pub(in crate::server) stats: Arc<ListenerStats>,
    pub(in crate::server) when_full: WhenFull,
}
