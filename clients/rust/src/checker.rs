//! What decides requests.

use crate::{Client, Decision, InvalidRequest, PrepaidSlices, Request};

/// Decides requests: a client, or slices of a limit. [`RateLimitLayer`](crate::RateLimitLayer) takes either.
pub trait Checker: Send + Sync {
    /// Charges the hits of a request if it is allowed.
    fn check(&self, request: &Request) -> impl Future<Output = Result<Decision, InvalidRequest>> + Send;
}

impl Checker for Client {
    fn check(&self, request: &Request) -> impl Future<Output = Result<Decision, InvalidRequest>> + Send {
        self.check(request)
    }
}

impl Checker for PrepaidSlices {
    fn check(&self, request: &Request) -> impl Future<Output = Result<Decision, InvalidRequest>> + Send {
        self.check(request)
    }
}
