//! Why requests are not answered.

use tollgate_counter::resilience::Overloaded;

/// Why a valid request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimiterError {
    /// No valid rules have been loaded.
    #[error("no valid rules are loaded yet")]
    NoRules,
    /// This replica does not know the slot owners yet.
    #[error("still joining the cluster")]
    Joining,
    /// The counters are elsewhere: use [`ActiveView::decide`](crate::limiter::ActiveView::decide).
    #[error("the counters are in another replica or in the shared store")]
    Remote,
    /// The shared store cannot be used.
    #[error("the shared store cannot be used; see /readyz")]
    NoStore,
    /// Too many checks of the call, its connection or this replica wait for counters elsewhere. Nothing is charged.
    #[error("too many checks wait for counters elsewhere: nothing was charged, try again later")]
    Overloaded,
}

impl From<Overloaded> for LimiterError {
    fn from(Overloaded: Overloaded) -> Self {
        Self::Overloaded
    }
}
