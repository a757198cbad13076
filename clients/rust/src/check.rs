//! What decides requests.

use std::sync::Arc;

use crate::{Client, Decision, InvalidRequest, Prepaid, Request};

/// Decides requests: a client, or slices of a limit. [`RateLimitLayer`](crate::RateLimitLayer) takes either.
pub trait Check: Send + Sync {
    /// Charges the hits of a request if it is allowed.
    fn check(&self, request: &Request) -> impl Future<Output = Result<Decision, InvalidRequest>> + Send;
}

impl Check for Client {
    fn check(&self, request: &Request) -> impl Future<Output = Result<Decision, InvalidRequest>> + Send {
        self.check(request)
    }
}

impl Check for Prepaid {
    fn check(&self, request: &Request) -> impl Future<Output = Result<Decision, InvalidRequest>> + Send {
        self.check(request)
    }
}

impl<C: Check> Check for Arc<C> {
    fn check(&self, request: &Request) -> impl Future<Output = Result<Decision, InvalidRequest>> + Send {
        (**self).check(request)
    }
}
