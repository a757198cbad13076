//! The client.

use std::sync::Arc;

use tokio::{runtime::Handle, time::Instant};
use tonic::{Code, Request as Call, Status};

use crate::{
    Decision, InvalidOptions, InvalidRequest, NoAnswer, OnNoAnswer, Options, Outcome, Request, Source,
    batcher::{Batcher, answers_to},
    connections::{Connections, Server},
    deny_cache::DenyCache,
    metrics::Measured,
    request::KeyHasher,
    v1,
};

/// Asks one Tollgate, which may have many replicas. Make one for the process; clones share it.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) runtime: Handle,
    pub(crate) connections: Arc<Connections>,
    batcher: Batcher,
    pub(crate) denials: DenyCache,
    pub(crate) hasher: KeyHasher,
}

/// Why a call that changes counters has no result. Hits may have been charged or given back, or not.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The request cannot be decided, now or later.
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// The server did not answer in time or at all.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
}

impl Client {
    /// A client of the target: `host:port`, or several of them with commas between. It connects in the background to
    /// all addresses of the names, and reconnects by itself. The last clone that is dropped closes the connections.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn new(target: &str, options: Options) -> Result<Self, InvalidOptions> {
        options.validate()?;
        let runtime = Handle::current();
        let connections = Arc::new(Connections::new(target, options.tls.as_ref())?);
        let batcher = Batcher::new(connections.clone(), &options);
        let denials = DenyCache::new(options.deny_cache_keys, options.deny_cache_max);
        let hasher = KeyHasher::default();
        Ok(Self(Arc::new(Inner { options, runtime, connections, batcher, denials, hasher })))
    }

    /// Charges the hits of a request if it is allowed. The server decides each request with a
    /// [`request_id`](Request::request_id).
    pub async fn check(&self, request: &Request) -> Result<Decision, InvalidRequest> {
        let inner = &*self.0;
        let mut measured = Measured::new(&*inner.options.metrics);
        let message = request.check_message()?;
        let (key, hits) = (inner.hasher.key_of(request), request.hits_of_each());
        if request.request_id.is_none()
            && let Some(decision) = inner.denials.denied(key, &hits, measured.begin)
        {
            measured.outcome = Outcome::DeniedLocally;
            return Ok(decision);
        }
        let under_way = inner.denials.begin(key);
        let reply = inner.batcher.check(message, inner.deadline()).await;
        let sent = reply.as_ref().ok().map(|reply| reply.sent);
        let answer = match reply {
            Ok(reply) => reply.answer.and_then(Decision::of_answer).map_err(Error::from),
            Err(no_answer) => Err(no_answer.into()),
        };
        let decision = inner.or_default(answer)?;
        measured.outcome = match &decision.source {
            Source::Default(NoAnswer::QueueFull) => Outcome::QueueFull,
            Source::Default(NoAnswer::Failed { .. }) => Outcome::NoAnswer,
            Source::Server | Source::DenyCache | Source::Prepaid if decision.allowed => Outcome::Allowed,
            Source::Server | Source::DenyCache | Source::Prepaid => Outcome::Denied,
        };
        if let (Outcome::Denied, Some(sent)) = (measured.outcome, sent) {
            under_way.refuse(hits, &decision, sent.into_std());
        }
        Ok(decision)
    }

    /// Decides whether anything is left, and charges nothing.
    pub async fn peek(&self, request: &Request) -> Result<Decision, InvalidRequest> {
        let message = v1::PeekRequest { requests: vec![request.peek_message()?] };
        let method = |mut server: Server, call: Call<_>| async move { server.peek(call).await };
        let response = self.0.connections.call(message, self.0.deadline(), method).await;
        self.0.or_default(only(response.map(|response| response.answers)))
    }

    /// Gives the hits of an earlier check back. No decision stands in for a missing answer.
    pub async fn refund(&self, request: &Request) -> Result<Decision, Error> {
        let message = v1::RefundRequest { requests: vec![request.refund_message()?] };
        let method = |mut server: Server, call: Call<_>| async move { server.refund(call).await };
        let response = self.0.connections.call(message, self.0.deadline(), method).await;
        self.0.denials.refund(self.0.hasher.key_of(request), std::time::Instant::now());
        only(response.map(|response| response.answers))
    }
}

impl Inner {
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.options.timeout
    }

    /// The default decision stands in for a missing answer.
    pub(crate) fn or_default(&self, result: Result<Decision, Error>) -> Result<Decision, InvalidRequest> {
        match result {
            Ok(decision) => Ok(decision),
            Err(Error::InvalidRequest(invalid)) => Err(invalid),
            Err(Error::NoAnswer(reason)) => {
                Ok(Decision::default_of(self.options.on_no_answer == OnNoAnswer::Allow, reason))
            }
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::InvalidArgument => InvalidRequest(status.message().to_owned()).into(),
            _ => NoAnswer::from(status).into(),
        }
    }
}

/// The decision on the only request of a call.
fn only(answers: Result<Vec<v1::Answer>, Status>) -> Result<Decision, Error> {
    let answer = answers.and_then(|answers| answers_to(1, answers)).map(Vec::into_iter)?.next();
    Ok(Decision::of_answer(answer.unwrap_or_default())?)
}
