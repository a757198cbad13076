//! An entry of a log.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Hits of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub(crate) at: Timestamp,
    pub(crate) hits: u64,
}
