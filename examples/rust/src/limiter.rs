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

/// What happens to a request when Tollgate gives no answer.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnError {
    /// For protection against overload: losing the limiter must not mean losing the service.
    Allow,
    /// For limits that guard money, logins or secrets.
    Deny,
}

/// What to do with a request.
pub struct Decision {
    pub allowed: bool,
    pub told: Result<Told, Status>,
}

/// What an answer tells beside its verdict. Without an answer, `OnError` decides.
pub struct Told {
    /// What is left of the tightest limit; `None` where no limit applies.
    pub remaining: Option<u32>,
    /// The wait after which a refused request would pass.
    pub retry_after: Duration,
}

/// Make one for the whole process and clone it: clones share one connection, which carries all calls at once and
/// comes back by itself.
#[derive(Clone)]
pub struct Limiter {
    client: RateLimitServiceClient<Channel>,
    timeout: Duration,
    on_error: OnError,
}

impl Limiter {
    /// Does not wait for the connection, so a service starts while Tollgate is down.
    pub fn new(to: &str, timeout: Duration, on_error: OnError) -> Result<Self, Error> {
        let channel = Endpoint::from_shared(format!("http://{to}"))?
            .connect_timeout(Duration::from_secs(1))
            // A peer that vanished without a word is noticed by this.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(2))
            .connect_lazy();
        Ok(Self { client: RateLimitServiceClient::new(channel), timeout, on_error })
    }

    /// Charges the hits to the descriptor that the entries make.
    pub async fn ask(&self, domain: &str, entries: Vec<Entry>, hits: u32) -> Decision {
        let descriptor = RateLimitDescriptor { entries, ..Default::default() };
        let mut request = Request::new(RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: vec![descriptor],
            hits_addend: hits,
        });
        // Tells Tollgate how long the answer is of use.
        request.set_timeout(self.timeout);
        // That one does not cover the time in which a connection is opened; this one covers all.
        let answer = timeout(self.timeout, self.client.clone().should_rate_limit(request)).await;
        match answer.unwrap_or_else(|_late| Err(Status::deadline_exceeded("no answer in time"))) {
            Ok(answer) => decision_of(answer.get_ref()),
            Err(status) => Decision { allowed: self.on_error == OnError::Allow, told: Err(status) },
        }
    }
}

fn decision_of(answer: &RateLimitResponse) -> Decision {
    let allowed = answer.overall_code() != Code::OverLimit;
    let limited = answer.statuses.iter().filter(|status| status.current_limit.is_some());
    let refusing = answer.statuses.iter().filter(|status| !allowed && status.code() == Code::OverLimit);
    let waits = refusing.filter_map(|status| Duration::try_from(status.duration_until_reset?).ok());
    let told = Told {
        remaining: limited.map(|status| status.limit_remaining).min(),
        // Where several limits refuse, the longest wait counts.
        retry_after: waits.max().unwrap_or_default(),
    };
    Decision { allowed, told: Ok(told) }
}
