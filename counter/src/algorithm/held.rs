//! Held charges: a part of one charge is taken back later, although other calls have used the counter since.
//!
//! A counter adds charges up, so it does not know what is left of one of them. The floor does: it is the least that the
//! counter has weighed since the charge. Without the charge, the counter would have been at zero at that instant if the
//! floor is smaller than the charge, and all other charges since then stay. So the charge still weighs the smaller of
//! itself and its floor, whatever else was charged, paid or refunded in between.

use serde::{Deserialize, Serialize};

use crate::time::timestamp::Timestamp;

/// Where a charge is in its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChargePosition {
    /// The charge is in the sum of all charges.
    Sum,
    /// The charge is in the window that ends at this instant.
    Window(Timestamp),
    /// The charge is at this instant of the counter's own.
    Instant(Timestamp),
}

/// A charge of which a part may be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCharge {
    /// Where the charge stands in the counter.
    pub position: ChargePosition,
    /// What the charge has added, in the units of the algorithm.
    pub taken: u128,
    /// The least that everything in the same position has weighed since, as far as it was observed.
    pub floor: u128,
}

impl HeldCharge {
    /// Records that `units` of an earlier held charge were taken back.
    pub fn after_earlier(&mut self, earlier: &Self, units: u128) {
        if self.position == earlier.position {
            self.floor = self.floor.saturating_sub(units);
        }
    }

    /// Records that `units` of a later held charge, with this floor before, were taken back.
    pub fn before_later(&mut self, later: &Self, units: u128) {
        if self.position == later.position {
            self.floor = self.floor.min(later.floor.saturating_sub(units));
        }
    }
}
