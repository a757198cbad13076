//! How long holds that have ended are retained, and which are forgotten earlier.

use std::time::Duration;

use tollgate_counter::{
    algorithm::{Decision, Verdict},
    time::Timestamp,
};

use crate::{
    holds::{
        Holds, IDS_MAX,
        changes::Uncompared,
        ended::{EndedHold, HoldAnswer},
        hold::{Hold, HoldState, RETENTION},
    },
    reservation::{HOLD_TTL_MAX, HoldId, HoldTerms, SettleOutcome, Settled},
};

/// That many are forgotten at once, so that one more costs little.
const FORGOTTEN_AT_ONCE: usize = 256;
/// With more than [`FORGOTTEN_AT_ONCE`] ended holds, expired ones are forgotten only so often: each has to be looked
/// at.
const FORGET_PAUSE: Duration = Duration::from_secs(1);

impl Holds {
    /// Forgets holds whose retention has ended.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        let charged = self.each.iter().filter(|hold| hold.state == HoldState::Charged);
        let next = charged.map(Hold::forgotten_at).fold(self.next_forgotten.0, Timestamp::min);
        if now < next {
            return;
        }
        let id_bytes = &mut self.id_bytes;
        let request_ids = &mut self.request_ids;
        let changes = &mut self.changes;
        self.each.retain(|hold| {
            let stays = hold.state == HoldState::Open || now < hold.forgotten_at();
            if !stays {
                *id_bytes -= hold.id.bytes.len();
                changes.remove(&hold.id);
            }
            stays
        });
        self.ended.retain(|id, ended| {
            let stays = now < ended.forgotten_at;
            if !stays {
                *id_bytes -= id.bytes.len();
                *request_ids -= usize::from(id.is_of_request());
            }
            stays
        });
        self.set_next_forgotten();
        if self.ended.len() > FORGOTTEN_AT_ONCE {
            self.next_forgotten.0 = self.next_forgotten.0.max(now.after(FORGET_PAUSE));
        }
    }

    /// Forgets the oldest of the reservations that have ended, if there are too many. Those that are settled go first.
    /// Ids of requests are retained for their time, so that no repeated one is charged again.
    pub(super) fn forget_oldest(&mut self) {
        let reservations = self.ended.len() - self.request_ids;
        let excess = (self.each.len() + reservations).saturating_sub(IDS_MAX).min(reservations);
        if excess < FORGOTTEN_AT_ONCE {
            return;
        }
        let age = |(id, ended): (&HoldId, &EndedHold)| (ended.settled.is_none(), ended.change.0, id.clone());
        let of_reservations = self.ended.iter().filter(|(id, _)| !id.is_of_request());
        let mut ended: Vec<_> = of_reservations.map(age).collect();
        ended.select_nth_unstable(excess - 1);
        ended[..excess].iter().for_each(|(_, _, id)| self.forget_ended(id));
        self.forgotten_early.0 += excess;
    }

    /// How many ended holds were forgotten because there were too many, since the last call.
    pub(crate) fn take_forgotten_early(&mut self) -> usize {
        std::mem::take(&mut self.forgotten_early.0)
    }

    /// Retains a hold that has ended.
    pub(super) fn remember(&mut self, id: HoldId, ended: EndedHold) {
        let change = self.changes.next();
        self.next_forgotten.0 = self.next_forgotten.0.min(ended.forgotten_at);
        let of_request = usize::from(id.is_of_request());
        if self.ended.insert(id, EndedHold { change, ..ended }).is_none() {
            self.request_ids += of_request;
        }
        self.forget_oldest();
    }

    /// Forgets a hold that has ended.
    pub(crate) fn forget_ended(&mut self, id: &HoldId) {
        if self.ended.remove(id).is_some() {
            self.id_bytes -= id.bytes.len();
            self.request_ids -= usize::from(id.is_of_request());
        }
    }

    pub(super) fn end(&mut self, hold: Hold, settled: Option<Settled>) {
        let forgotten_at = hold.forgotten_at();
        self.remember(
            hold.id,
            EndedHold { answer: hold.answer, settled, forgotten_at, change: Uncompared(0) },
        );
    }

    /// Retains the settlement of an id that is unknown, or whose hold was released.
    pub(super) fn end_unknown(&mut self, id: &HoldId, settled: Settled, now: Timestamp) {
        if let Some(ended) = self.ended.get_mut(id) {
            (ended.settled, ended.change) = (Some(settled), self.changes.next());
            return;
        }
        let Settled { remaining, reset_after, .. } = settled;
        let answer = HoldAnswer { verdict: Verdict::Pass, remaining, reset_after };
        self.id_bytes += id.bytes.len();
        let settled = Some(settled);
        let forgotten_at = now.after(RETENTION);
        self.remember(id.clone(), EndedHold { answer, settled, forgotten_at, change: Uncompared(0) });
    }

    /// Retains a refund, as long as a charge of the same terms. The id must be unknown.
    pub(crate) fn remember_refund(&mut self, terms: &HoldTerms, decision: &Decision, now: Timestamp) {
        let Decision { remaining, reset_after, .. } = *decision;
        let outcome = SettleOutcome::Open;
        let reserved = 0;
        let uncharged = 0;
        let settled = Some(Settled { outcome, reserved, uncharged, remaining, reset_after });
        let forgotten_at = now.after(terms.ttl.min(HOLD_TTL_MAX)).after(RETENTION);
        self.id_bytes += terms.id.bytes.len();
        let answer = HoldAnswer::from_decision(decision);
        self.remember(terms.id.clone(), EndedHold { answer, settled, forgotten_at, change: Uncompared(0) });
    }

    pub(super) fn set_next_forgotten(&mut self) {
        let ended = self.ended.values().map(|ended| ended.forgotten_at);
        self.next_forgotten.0 = ended.min().unwrap_or(Timestamp::MAX);
    }
}
