//! What a bucket of a client is to do.

use std::time::Duration;

use tollgate_store::divider::Assignment;

/// An action for one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaAction {
    /// Let through what the divider assigns.
    Assign(Assignment),
    /// Let everything through for this time.
    Allow(Duration),
    /// Let nothing through.
    Deny,
    /// Forget the bucket.
    Abandon,
}

impl QuotaAction {
    /// The action that comes of two, of which neither is sent yet. A slice stays new until it is sent.
    pub(super) fn then(self, later: Self) -> Self {
        match (self, later) {
            // An assignment may be on its way when the bucket is abandoned.
            (Self::Abandon, _) => self,
            (Self::Assign(Assignment::Slice(hits)), Self::Assign(Assignment::Renewal(same)))
                if hits == same =>
            {
                self
            }
            (_, later) => later,
        }
    }
}
