//! The members that have departed: by a proof of their death, or because they were silent for too long.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use tollgate_counter::time::Timestamp;

use crate::{
    member::{Departure, MemberId},
    message::{MemberRecord, MemberState},
};

/// The most departed members that are retained.
const DEPARTED_MAX: usize = 10_000;
/// The most dead members that a new session is told of.
const DEAD_REPORTED_MAX: usize = 100;
/// How long a member that departed by silence is dialled again.
const SILENT_REDIALLED: Duration = Duration::from_secs(24 * 60 * 60);
/// How long members that have left are still listed.
const LEFT_DISPLAYED: Duration = Duration::from_secs(60);
/// How long members that died or were silent are still listed.
const DIED_DISPLAYED: Duration = Duration::from_secs(10 * 60);

/// How a member has departed, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberDeparture {
    /// The member has announced that it leaves, or has never served.
    Left,
    /// The process of the member has ended without an announcement.
    Died,
    /// The member was silent for too long.
    Silent,
}

/// The departed members.
#[derive(Debug, Default)]
pub(in crate::node) struct Departures(BTreeMap<MemberId, Departed>);

/// A departed member.
#[derive(Clone, Debug)]
struct Departed {
    record: MemberRecord,
    at: Timestamp,
    heard_at: Timestamp,
    departure: Departure,
    dialled_at: Timestamp,
}

impl Departures {
    /// Adds a member: `known` is its record and when it was last heard, if it was a peer. Returns whether the member
    /// was ever known here.
    pub(super) fn add(
        &mut self,
        member: MemberId,
        known: Option<(MemberRecord, Timestamp)>,
        departure: Departure,
        now: Timestamp,
    ) -> bool {
        let earlier = || self.0.get(&member).map(|departed| (departed.record.clone(), now));
        let known = known.or_else(earlier);
        let was_known = known.is_some();
        // Another replica may report the death of a member that was never known here.
        let (record, heard_at) = known.unwrap_or_else(|| (MemberRecord::joining(member, String::new()), now));
        self.0.insert(member, Departed { record, at: now, heard_at, departure, dialled_at: now });
        if self.0.len() > DEPARTED_MAX {
            let oldest = self.0.iter().min_by_key(|(_, departed)| departed.at).map(|(id, _)| *id);
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        was_known
    }

    /// Removes a member, because a session with it has begun.
    pub(super) fn forget(&mut self, member: MemberId) {
        self.0.remove(&member);
    }

    pub(super) fn contains(&self, member: MemberId) -> bool {
        self.0.contains_key(&member)
    }

    pub(in crate::node) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::node) fn is_dead(&self, member: MemberId) -> bool {
        self.0.get(&member).is_some_and(|departed| departed.departure == Departure::Dead)
    }

    /// The members most recently proven dead.
    pub(in crate::node) fn latest_dead(&self) -> Vec<MemberId> {
        // A peer may know earlier ones. If it does not, it declares them dead as soon as it dials them.
        let dead = self
            .0
            .iter()
            .filter(|(_, departed)| departed.departure == Departure::Dead)
            .map(|(id, departed)| (departed.at, *id));
        let mut dead: Vec<_> = dead.collect();
        dead.sort_unstable();
        dead.into_iter().rev().take(DEAD_REPORTED_MAX).map(|(_, id)| id).collect()
    }

    /// How long the member has not been heard; `None` if it has not departed.
    pub(super) fn silence(&self, member: MemberId, now: Timestamp) -> Option<Duration> {
        self.0.get(&member).map(|departed| now.since(departed.heard_at))
    }

    /// The addresses of members that were silent and are to be dialled now: each may return at its address.
    pub(super) fn addresses_to_redial(
        &mut self,
        every: Duration,
        now: Timestamp,
    ) -> impl Iterator<Item = &str> {
        let due = self.0.values_mut().filter(move |departed| {
            departed.departure == Departure::Forgotten
                && now.since(departed.dialled_at) >= every
                && now.since(departed.at) < SILENT_REDIALLED
        });
        due.map(move |departed| {
            departed.dialled_at = now;
            &*departed.record.address
        })
    }

    /// The members that were known and departed recently, how long ago, and how.
    pub(in crate::node) fn recent(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&MemberRecord, Duration, MemberDeparture)> {
        let known = self.0.values().filter(|departed| !departed.record.address.is_empty());
        let departed =
            known.map(move |departed| (&departed.record, now.since(departed.at), departed.displayed()));
        departed.filter(|(_, since, departure)| match departure {
            MemberDeparture::Left => *since < LEFT_DISPLAYED,
            MemberDeparture::Died | MemberDeparture::Silent => *since < DIED_DISPLAYED,
        })
    }
}

impl Departed {
    fn displayed(&self) -> MemberDeparture {
        match (self.departure, self.record.state) {
            (Departure::Forgotten, _) => MemberDeparture::Silent,
            (Departure::Dead, MemberState::Serving) => MemberDeparture::Died,
            (Departure::Dead, MemberState::Joining | MemberState::Draining) => MemberDeparture::Left,
        }
    }
}
