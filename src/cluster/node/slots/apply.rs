//! Decides checks of the counters that are owned here.

use crate::{
    algorithm::{Decision, Limit, Operation},
    cluster::{
        MemberId,
        message::{RemoteCheck, RemoteOperation, Reply},
        node::{context::Context, slots::Slots},
    },
    descriptor::Key,
    store::{Check, Checks, NotLocal, OnRefusal, ReserveError, Reserved},
};

impl Slots {
    /// Applies a check to the counter, which is owned here. `borrower` is the peer that may get a lease. `None` if
    /// grants have to be returned first.
    pub(in crate::cluster::node) fn apply(
        &mut self,
        check: &RemoteCheck,
        borrower: Option<MemberId>,
        cx: &mut Context<'_>,
    ) -> Option<Reply> {
        let RemoteCheck { key, limit, operation, lease_hits } = check;
        let mut charged = 0;
        let decision = match operation {
            RemoteOperation::Decide(operation) => {
                let check = Check { key: *key, limit, operation: *operation, on_refusal: OnRefusal::Keep };
                match self.memory.apply(&Checks::from_slice(&[check]), cx.wall, |_| false) {
                    Ok(decisions) => {
                        charged = decisions.charged()[0];
                        decisions[0]
                    }
                    Err(missing) => return self.not_local(missing, cx),
                }
            }
            RemoteOperation::Undo(receipt) => self.memory.undo(*key, limit, *receipt, cx.wall),
            RemoteOperation::Absorb(consumed) => {
                self.memory.add(self.of(*key), consumed.difference(&Default::default()), cx.wall);
                self.memory.peek(*key, limit, cx.wall).peek
            }
            RemoteOperation::Settle(settlement) => {
                self.leases.settle(*key, limit, settlement, cx);
                self.memory.peek(*key, limit, cx.wall).peek
            }
            RemoteOperation::Set(hits) => {
                self.leases.fix_charged_hits(*key);
                self.memory.set(*key, limit, *hits, cx.wall)
            }
            RemoteOperation::Reserve { terms, hits } => {
                let checks = charge(*key, limit, *hits);
                let refused = |decisions: &[Decision]| !decisions[0].verdict.passes();
                match self.memory.reserve(&checks, terms, cx.wall, refused) {
                    Ok(Reserved { decisions, .. }) => {
                        charged = decisions.charged()[0];
                        decisions[0]
                    }
                    Err(ReserveError::NotLocal(missing)) => return self.not_local(missing, cx),
                    Err(ReserveError::Exhausted) => return Some(Reply::Exhausted),
                }
            }
            RemoteOperation::SettleHold { id, actual } => {
                let settled = match self.memory.settle(&charge(*key, limit, *actual), id, cx.wall) {
                    Ok(settled) => settled[0],
                    Err(missing) => return self.not_local(missing, cx),
                };
                self.leases.revoke_refusals(*key, cx.out);
                return Some(Reply::Settled(settled));
            }
            RemoteOperation::WithdrawHold { id, attempt } => {
                if let Err(missing) = self.memory.withdraw(&charge(*key, limit, 0), id, *attempt, cx.wall) {
                    return self.not_local(missing, cx);
                }
                self.memory.peek(*key, limit, cx.wall).peek
            }
        };
        if frees_hits(operation) {
            self.leases.revoke_refusals(*key, cx.out);
        }
        let borrower = borrower.filter(|_| *lease_hits > 0);
        let lease = borrower.and_then(|peer| self.leases.grant_lease(peer, check, &decision, cx));
        Some(Reply::Decided { decision, charged, lease })
    }

    /// What follows if the memory does not decide a check of an owned slot.
    fn not_local(&mut self, missing: NotLocal, cx: &mut Context<'_>) -> Option<Reply> {
        match missing {
            NotLocal::Leased(key) => {
                self.leases.recall_grants(key, cx.out);
                None
            }
            // Not expected: the caller has checked that this replica owns the slot.
            NotLocal::Slot(_) => Some(Reply::Unreachable),
        }
    }
}

/// The check set of one charge, for holds.
fn charge(key: Key, limit: &Limit, hits: u64) -> Checks<'_> {
    let operation = Operation::Charge(hits);
    Checks::from_slice(&[Check { key, limit, operation, on_refusal: OnRefusal::TakeBack }])
}

/// Whether the operation raises what remains, so that earlier refusals are no longer true.
fn frees_hits(operation: &RemoteOperation) -> bool {
    match operation {
        RemoteOperation::Decide(Operation::Refund(_))
        | RemoteOperation::Undo(_)
        | RemoteOperation::Set(_)
        | RemoteOperation::SettleHold { .. }
        | RemoteOperation::WithdrawHold { .. } => true,
        RemoteOperation::Decide(Operation::Peek | Operation::Charge(_))
        | RemoteOperation::Absorb(_)
        | RemoteOperation::Settle(_)
        | RemoteOperation::Reserve { .. } => false,
    }
}
