//! What decides on one key in place of the numbers of its rule.

use serde::{Deserialize, Serialize};

use crate::algorithm::{Decision, Limit, Verdict};

/// What decides on one key in place of the numbers of its rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnTerms {
    /// The limit, of the same kind as that of the rule.
    pub limit: Limit,
    /// What is displayed: see [`OwnTerms::displayed`], or [`OwnTerms::UNLIMITED`].
    pub requests_per_unit: u64,
}

/// The bits of a displayed number. Those above are the code of its unit.
const NUMBER_BITS: u32 = 61;
/// The largest displayed number.
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 2;

impl OwnTerms {
    /// Displayed for a limit that refuses nothing.
    pub const UNLIMITED: u64 = u64::MAX;

    /// What is displayed for this number of requests, in the unit with this code from 1 to 7, or in that of the rule (0).
    pub fn displayed(requests: u64, unit: u8) -> u64 {
        requests.min(NUMBER_MAX) | u64::from(unit) << NUMBER_BITS
    }

    /// The number of requests and the code of the unit, of what is displayed.
    pub fn requests_and_unit(displayed: u64) -> (u64, u8) {
        (displayed & ((1 << NUMBER_BITS) - 1), (displayed >> NUMBER_BITS) as u8)
    }

    /// Whether it refuses nothing.
    pub fn is_unlimited(&self) -> bool {
        self.requests_per_unit == Self::UNLIMITED
    }

    /// Whether it may refuse what `rule` lets pass.
    pub fn may_be_smaller_than(&self, rule: &Limit) -> bool {
        let Self { limit, .. } = self;
        let is_as_large = rule.allowance() <= limit.allowance()
            && rule.hits_per_period() <= limit.hits_per_period()
            && limit.kind().window_nanos() <= rule.kind().window_nanos();
        !self.is_unlimited() && !is_as_large
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
