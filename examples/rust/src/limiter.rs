//! Asks Tollgate whether a request may pass.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint, Error},
};

use crate::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};

/// What happens to a request if Tollgate gives no answer.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnError {
    /// For protection against overload: an outage of the limiter must not be an outage of the service.
    Allow,
    /// For limits that protect money, logins or secrets.
    Deny,
}

/// What to do with a request.
pub struct Decision {
    pub allowed: bool,
    pub outcome: Result<Outcome, Status>,
}

/// The content of an answer besides its verdict.
pub struct Outcome {
    /// What is left of the tightest limit; `None` if no limit applies.
    pub remaining: Option<u32>,
    /// The time after which a refused request would pass.
    pub retry_after: Duration,
}

/// Create one for the whole process and clone it: clones share one connection, which multiplexes all calls and
/// reconnects by itself.
#[derive(Clone)]
pub struct Limiter {
    client: RateLimitServiceClient<Channel>,
    timeout: Duration,
    on_error: OnError,
}

impl Limiter {
    /// Does not wait for the connection, so a service can start while Tollgate is down.
    pub fn new(to: &str, timeout: Duration, on_error: OnError) -> Result<Self, Error> {
        let channel = Endpoint::from_shared(format!("http://{to}"))?
            .connect_timeout(Duration::from_secs(1))
            // Detects a peer that disappeared without closing the connection.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(2))
            .connect_lazy();
        Ok(Self { client: RateLimitServiceClient::new(channel), timeout, on_error })
    }

    /// Charges the hits to the descriptor with these entries.
    pub async fn ask(&self, domain: &str, entries: Vec<Entry>, hits: u32) -> Decision {
        let descriptor = RateLimitDescriptor { entries, ..Default::default() };
        let mut request = Request::new(RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: vec![descriptor],
            hits_addend: hits,
        });
        // Sends the deadline to Tollgate.
        request.set_timeout(self.timeout);
        // The deadline of the request does not include opening a connection; this timeout does.
        let answer = timeout(self.timeout, self.client.clone().should_rate_limit(request)).await;
        match answer.unwrap_or_else(|_late| Err(Status::deadline_exceeded("no answer in time"))) {
            Ok(answer) => decision_of(answer.get_ref()),
            Err(status) => Decision { allowed: self.on_error == OnError::Allow, outcome: Err(status) },
        }
    }
}

fn decision_of(answer: &RateLimitResponse) -> Decision {
    let allowed = answer.overall_code() != Code::OverLimit;
    let limited = answer.statuses.iter().filter(|status| status.current_limit.is_some());
    let refusing = answer.statuses.iter().filter(|status| !allowed && status.code() == Code::OverLimit);
    let waits = refusing.filter_map(|status| Duration::try_from(status.duration_until_reset?).ok());
    let outcome = Outcome {
        remaining: limited.map(|status| status.limit_remaining).min(),
        // If several limits refuse, the longest wait applies.
        retry_after: waits.max().unwrap_or_default(),
    };
    Decision { allowed, outcome: Ok(outcome) }
}
