//! The record of a hold that has ended.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Decision, Verdict},
    time::Timestamp,
};

use crate::{Settled, holds::changes::Uncompared};

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
        HoldId,
        holds::{changes::Uncompared, ended::EndedHold},
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
