//! Where the decisions of a request come from.

use std::{sync::Arc, time::Duration};

use crate::{
    remote::CounterChecks,
    rules::KeyedRules,
    store::{Refusal, RemoteDecisions},
    time::Reading,
};

/// A request whose counters are elsewhere: the view that it is decided by, and what its counters are asked. It does not
/// borrow the request, so that it is small while it waits.
#[derive(Debug)]
pub struct Elsewhere {
    pub(super) rules: Arc<KeyedRules>,
    pub(super) reading: Reading,
    pub(super) checks: CounterChecks,
    pub(super) refusal: Refusal,
    pub(super) timeout: Option<Duration>,
}

/// Where the decisions of a request come from.
#[derive(Debug)]
pub(super) enum Source<'d> {
    /// The memory of this process. If the counters are elsewhere, they may be planned.
    Here(Option<&'d mut Option<Box<Elsewhere>>>),
    /// They were made elsewhere.
    Decided(&'d RemoteDecisions),
}

impl<'d> Source<'d> {
    /// The decisions that were made elsewhere.
    #[inline(always)]
    pub(super) fn decided(&self) -> Option<&'d RemoteDecisions> {
        match self {
            Self::Here(_) => None,
            Self::Decided(decided) => Some(*decided),
        }
    }
}
