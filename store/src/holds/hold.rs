//! One hold that still weighs something in its counter.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Admission, ChargePosition, Counter, HeldCharge, Limit},
    time::Timestamp,
};

use crate::{
    holds::{changes::Uncompared, ended::HoldAnswer},
    reservation::{HoldId, OnExpiry},
};

/// A hold is retained for this long after its expiry.
pub const RETENTION: Duration = Duration::from_secs(60);

/// One hold that still weighs something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) id: HoldId,
    pub(super) attempt: u64,
    pub(super) hits: u64,
    pub(super) answer: HoldAnswer,
    pub(super) ttl: Duration,
    pub(super) expires_at: Timestamp,
    pub(super) on_expiry: OnExpiry,
    pub(super) state: HoldState,
    pub(super) held: HeldCharge,
    // What tells whether it has changed since the last copy of changes.
    #[serde(skip)]
    pub(super) copied: Uncompared<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum HoldState {
    Open,
    /// The expiry has charged it. It can be adjusted until it is forgotten.
    Charged,
}

impl Hold {
    /// Whether it keeps places of a limit on what is in flight. They are not in the counter, which frees a place after a
    /// time.
    pub(super) fn keeps_places(&self, limit: &Limit) -> bool {
        self.state == HoldState::Open && limit.admission() == Admission::InFlight
    }

    /// Charges places that it has retained, as of the reservation.
    pub(super) fn charge_places(&self, limit: &Limit, counter: &mut Counter, places: u64, now: Timestamp) {
        if let ChargePosition::Instant(at) = self.held.position {
            limit.charge_at(counter, places, at.min(now), now);
        }
    }

    pub(super) fn forgotten_at(&self) -> Timestamp {
        self.expires_at.after(RETENTION)
    }
}
