//! Turns in which subscribers have what is too little for all of them.

use serde::{Deserialize, Serialize};
use tollgate_counter::time::Timestamp;

use crate::divider::shares::ROTATION;

/// The turns of one that has a share at times only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Turns {
    pub(super) has_share: bool,
    // Since when it has a share, or waits for one.
    pub(super) since: Timestamp,
}

impl Turns {
    /// Less comes first: a turn that is not over, then the longest wait, then the last turn that is over.
    pub(super) fn rank(self, now: Timestamp) -> (u8, u64) {
        let since = self.since.as_nanos();
        match self.has_share {
            true if now < self.since.after(ROTATION) => (0, since),
            false => (1, since),
            true => (2, u64::MAX - since),
        }
    }
}
