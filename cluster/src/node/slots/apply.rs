//! Decides checks of the counters that are owned here.

use std::sync::Arc;

use tollgate_store::{
    CounterOperation, HoldOutcome, NotLocal, OperationOutcome,
    divider::{SUBSCRIBERS_LISTED_MAX, SubscriberReport},
};

use crate::{
    MemberId,
    message::{CheckReply, RemoteCheck, RemoteOperation},
    node::{context::Context, slots::Slots},
};

impl Slots {
    /// Applies a check to the counter, which is owned here. `peer` is the member that has forwarded it and may get a
    /// lease. `None` if grants have to be returned first.
    pub(in crate::node) fn apply(
        &mut self,
        check: &RemoteCheck,
        peer: Option<MemberId>,
        cx: &mut Context<'_>,
    ) -> Option<CheckReply> {
        let RemoteCheck { key, limit, operation, lease_hits } = check;
        let outcome = match operation {
            RemoteOperation::Counter(operation) => {
                if let CounterOperation::Set(_) = operation {
                    self.leases.fix_charged_hits(*key);
                }
                let operated = match peer.filter(|_| operation.remembers_id()) {
                    Some(peer) => {
                        let share = self.id_shares.entry(peer).or_default();
                        share.operate(&self.memory, *key, limit, operation, cx.wall)
                    }
                    None => self.memory.operate(*key, limit, operation, cx.wall),
                };
                let mut outcome = match operated {
                    Ok(outcome) => outcome,
                    Err(missing) => return self.not_local(missing, cx),
                };
                if let HoldOutcome::Shown(shown) = &mut outcome.hold {
                    let subscribers = self.dividers.subscribers(*key, SUBSCRIBERS_LISTED_MAX, cx.wall);
                    Arc::make_mut(shown).subscribers = subscribers.map(Arc::new);
                }
                // Earlier refusals are no longer true.
                if operation.frees_hits() {
                    self.leases.revoke_refusals(*key, cx.out);
                }
                outcome
            }
            RemoteOperation::Absorb(consumed) => {
                self.memory.add(self.of(*key), consumed.difference(&Default::default()), cx.wall);
                OperationOutcome::new(self.memory.admin().peek(*key, limit, cx.wall).peek, 0)
            }
            RemoteOperation::Settle(settlement) => {
                self.leases.settle(*key, limit, settlement, cx);
                OperationOutcome::new(self.memory.admin().peek(*key, limit, cx.wall).peek, 0)
            }
            RemoteOperation::Divide(id, terms, report) => {
                let id = *id;
                let terms = *terms;
                let report = *report;
                let report = SubscriberReport { key: *key, limit: limit.clone(), id, terms, report };
                if self.may_divide(self.of(*key), cx) {
                    self.assign(self.dividers.report(&report, cx.wall), cx);
                }
                OperationOutcome::new(self.memory.admin().peek(*key, limit, cx.wall).peek, 0)
            }
        };
        let borrower = peer.filter(|_| *lease_hits > 0);
        let lease = borrower.and_then(|peer| self.leases.grant_lease(peer, check, &outcome.decision, cx));
        Some(CheckReply::Decided { outcome, lease: lease.map(Box::new) })
    }

    /// What follows if the memory does not decide a check of an owned slot.
    fn not_local(&mut self, missing: NotLocal, cx: &mut Context<'_>) -> Option<CheckReply> {
        match missing {
            NotLocal::Leased(key) => {
                self.leases.recall_grants(key, cx.out);
                None
            }
            // Not expected: the caller has checked that this replica owns the slot.
            NotLocal::Slot(_) => Some(CheckReply::Unreachable),
        }
    }
}
