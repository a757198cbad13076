//! The record of one hold: while it weighs something in its counter, and after it has ended.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Admission, ChargePosition, Counter, Decision, HeldCharge, Limit, Verdict},
    time::Timestamp,
};

use crate::{
    holds::changes::Uncompared,
    reservation::{HoldId, OnExpiry, Settled},
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
    /// The expiry has charged the hold, which can be adjusted until it is forgotten.
    Charged,
}

impl Hold {
    /// Whether the hold keeps places of a limit on what is in flight. They are not in the counter, which frees a place
    /// after a time.
    pub(super) fn keeps_places(&self, limit: &Limit) -> bool {
        self.state == HoldState::Open && limit.admission() == Admission::InFlight
    }

    /// Charges places that the hold has retained, as of the reservation.
    pub(super) fn charge_places(&self, limit: &Limit, counter: &mut Counter, places: u64, now: Timestamp) {
        if let ChargePosition::Instant(at) = self.held.position {
            limit.charge_at(counter, places, at.min(now), now);
        }
    }

    pub(super) fn forgotten_at(&self) -> Timestamp {
        self.expires_at.after(RETENTION)
    }
}

/// A hold that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedHold {
    pub(super) answer: HoldAnswer,
    // `None` if its expiry has released it.
    pub(super) settled: Option<Settled>,
    pub(super) forgotten_at: Timestamp,
    // Which change of the ended holds this is: the least is the oldest.
    #[serde(skip)]
    pub(super) change: Uncompared<u64>,
}

/// The decision by which a hold was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HoldAnswer {
    pub(super) verdict: Verdict,
    pub(super) remaining: u64,
    pub(super) reset_after: Duration,
}

impl HoldAnswer {
    pub(super) fn from_decision(decision: &Decision) -> Self {
        let Decision { verdict, remaining, reset_after, receipt: _ } = *decision;
        Self { verdict, remaining, reset_after }
    }

    pub(super) fn decision(self) -> Decision {
        let Self { verdict, remaining, reset_after } = self;
        Decision { verdict, remaining, reset_after, receipt: None }
    }
}

/// Ended holds in the order of their changes, which are numbered anew.
pub(super) mod oldest_first {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::{
        holds::{changes::Uncompared, hold::EndedHold},
        reservation::HoldId,
    };

    pub(in crate::holds) fn serialize<S: Serializer>(
        ended: &BTreeMap<HoldId, EndedHold>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut each: Vec<(&HoldId, &EndedHold)> = ended.iter().collect();
        each.sort_by_key(|(_, ended)| ended.change.0);
        serializer.collect_seq(each)
    }

    pub(in crate::holds) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<HoldId, EndedHold>, D::Error> {
        let each: Vec<(HoldId, EndedHold)> = Vec::deserialize(deserializer)?;
        let numbered = (1..).zip(each).map(|(change, (id, ended))| {
            let change = Uncompared(change);
            (id, EndedHold { change, ..ended })
        });
        Ok(numbered.collect())
    }
}
