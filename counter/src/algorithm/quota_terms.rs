//! What a client is entitled to of a limit that is divided over clients.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// The part of a limit to which a bucket is entitled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaTerms {
    /// The weight of its demand if the limit is below the sum of demands.
    pub weight: NonZeroU32,
    /// Hits a second of a rate, or hits of a budget, that it may let pass whatever the demand of others is.
    pub floor: u64,
}

impl Default for QuotaTerms {
    fn default() -> Self {
        Self { weight: NonZeroU32::MIN, floor: 0 }
    }
}
