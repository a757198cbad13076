//! What decides on one key in place of the numbers of its rule.

use serde::{Deserialize, Serialize};

use crate::algorithm::{Decision, Limit, Verdict};

/// What decides on one key in place of the numbers of its rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnTerms {
    /// The limit, of the same kind as that of the rule.
    pub limit: Limit,
    /// The limit as displayed, or [`OwnTerms::UNLIMITED`].
    pub requests_per_unit: u64,
}

impl OwnTerms {
    /// Displayed for a limit that refuses nothing.
    pub const UNLIMITED: u64 = u64::MAX;

    /// Whether it refuses nothing.
    pub fn is_unlimited(&self) -> bool {
        self.requests_per_unit == Self::UNLIMITED
    }

    /// The decision of its limit, which refuses nothing if it is unlimited.
    pub fn allowed(&self, decision: Decision) -> Decision {
        if self.is_unlimited() {
            Decision { verdict: Verdict::Pass, remaining: u64::MAX, ..decision }
        } else {
            decision
        }
    }
}
