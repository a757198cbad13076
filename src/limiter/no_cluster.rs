//! Without the feature `server`, there is no cluster.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::Decision,
    resilience::{OpenForwards, Overloaded},
    rules::ForwardPolicy,
    store::{Check, Checks, HoldId, HoldTerms, RemoteDecisions, RemoteHoldError, Reserved, Settled},
};

/// A cluster. There is none without the feature `server`.
#[derive(Clone, Debug)]
pub enum Cluster {}

#[derive(PartialEq, Eq)]
pub(super) enum MemberState {
    Joining,
}

impl Cluster {
    pub(super) fn state(&self) -> MemberState {
        match *self {}
    }

    pub(super) async fn decide(
        &self,
        _: &[Check<'_>],
        _: &[ForwardPolicy],
        _: Option<Duration>,
        _: &OpenForwards,
        _: impl Fn(&[Decision]) -> bool,
    ) -> Result<RemoteDecisions, Overloaded> {
        match *self {}
    }

    pub(super) async fn reserve(
        &self,
        _: &Checks<'_>,
        _: &HoldTerms,
        _: Option<Duration>,
        _: &OpenForwards,
        _: impl Fn(&[Decision]) -> bool,
    ) -> Result<Reserved, RemoteHoldError> {
        match *self {}
    }

    pub(super) async fn settle(
        &self,
        _: &Checks<'_>,
        _: &HoldId,
        _: Option<Duration>,
        _: &OpenForwards,
    ) -> Result<SmallVec<[Settled; 2]>, RemoteHoldError> {
        match *self {}
    }
}
