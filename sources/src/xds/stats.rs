//! Statistics of the client of a control plane.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tollgate_counter::metrics::MetricCounter;

use crate::xds::session::Acknowledgement;

/// What a client of a control plane counts.
#[derive(Debug, Default)]
pub struct XdsStats {
    is_connected: AtomicBool,
    /// Connections that were made.
    pub connections: MetricCounter,
    /// Responses whose rules are or were active.
    pub accepted: MetricCounter,
    /// Responses whose rules were refused.
    pub refused: MetricCounter,
}

impl XdsStats {
    /// Whether the control plane is connected.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Relaxed)
    }

    pub(super) fn connected(&self) {
        self.is_connected.store(true, Relaxed);
        self.connections.increase();
    }

    pub(super) fn disconnected(&self) {
        self.is_connected.store(false, Relaxed);
    }

    pub(super) fn answered(&self, answer: &Acknowledgement) {
        match answer {
            Acknowledgement::Accept => self.accepted.increase(),
            Acknowledgement::Refuse(_) => self.refused.increase(),
        }
    }
}
