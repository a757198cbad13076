//! Without the feature `redis`, no counters are elsewhere.

use crate::limiter::{LimiterError, Request};

/// Decides checks whose counters are elsewhere. There is none without the feature `redis`.
#[derive(Clone, Debug)]
pub enum RemoteDecider {}

impl RemoteDecider {
    pub(super) fn takes(&self, _: &Request<'_>) -> bool {
        match *self {}
    }

    pub(super) fn takes_holds(&self) -> bool {
        match *self {}
    }

    pub(super) fn not_local_error(&self) -> LimiterError {
        match *self {}
    }
}
