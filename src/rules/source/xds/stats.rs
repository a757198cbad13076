//! Statistics of the client of a control plane.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::rules::source::xds::session::Answer;

/// What a client of a control plane counts.
#[derive(Debug, Default)]
pub struct Stats {
    connected: AtomicBool,
    connections: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
}

/// The statistics at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whether the control plane is connected.
    pub is_connected: bool,
    /// Connections that were made.
    pub connections: u64,
    /// Responses whose rules are or were active.
    pub accepted: u64,
    /// Responses whose rules were refused.
    pub refused: u64,
}

impl Stats {
    /// Reads all of them.
    pub fn read(&self) -> Reading {
        Reading {
            is_connected: self.connected.load(Relaxed),
            connections: self.connections.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    pub(super) fn connected(&self) {
        self.connected.store(true, Relaxed);
        self.connections.fetch_add(1, Relaxed);
    }

    pub(super) fn disconnected(&self) {
        self.connected.store(false, Relaxed);
    }

    pub(super) fn answered(&self, answer: &Answer) {
        match answer {
            Answer::Accept => self.accepted.fetch_add(1, Relaxed),
            Answer::Refuse(_) => self.refused.fetch_add(1, Relaxed),
        };
    }
}
