//! The client.

use std::sync::Arc;

use tokio::{runtime::Handle, time::Instant};
use tonic::{
    Code, Request as Call, Status,
    metadata::{Ascii, MetadataValue},
};

use crate::{
    Decision, InvalidOptions, InvalidRequest, NoAnswer, OnNoAnswer, Options, Outcome, Request,
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

/// The parts of a [`Client`], which its clones share.
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) runtime: Handle,
    pub(crate) connections: Arc<Connections>,
    pub(crate) batcher: Batcher,
    pub(crate) denials: DenyCache,
    pub(crate) hasher: KeyHasher,
    /// The metadata with the admin token, which calls of limits of their own send.
    pub(crate) authorization: Option<MetadataValue<Ascii>>,
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
        let authorization = options.authorization()?;
        let runtime = Handle::current();
        let connections = Arc::new(Connections::new(target, options.tls.as_ref())?);
        let batcher = Batcher::new(connections.clone(), &options);
        let denials = DenyCache::new(options.deny_cache_keys, options.deny_cache_max);
        let hasher = KeyHasher::default();
        Ok(Self(Arc::new(Inner { options, runtime, connections, batcher, denials, hasher, authorization })))
    }

    /// Charges the hits of a request if it is allowed. The server decides each request with a
    /// [`request_id`](Request::request_id).
    pub async fn check(&self, request: &Request) -> Result<Decision, InvalidRequest> {
        let inner = &*self.0;
        let mut measured = Measured::new(&*inner.options.metrics);
        let message = request.counted_message()?;
        let (key, hits) = (inner.hasher.key_of(request), request.hits_of_each());
        if request.request_id.is_empty()
            && let Some(decision) = inner.denials.denied(key, &hits, measured.begin)
        {
            measured.outcome = Outcome::DeniedLocally;
            return Ok(decision);
        }
        let under_way = inner.denials.begin(key);
        let waiting = match inner.batcher.queue(message, inner.deadline()) {
            Ok(waiting) => waiting,
            Err(full) => {
                measured.outcome = Outcome::QueueFull;
                return inner.or_default(Err(full.into()));
            }
        };
        let reply = waiting.reply().await;
        let answer = reply.and_then(|reply| Ok((Decision::from_answer(reply.answer)?, reply.sent)));
        match answer {
            Ok((decision, sent)) => {
                measured.outcome = if decision.allowed { Outcome::Allowed } else { Outcome::Denied };
                if !decision.allowed {
                    under_way.refuse(hits, &decision, sent);
                }
                Ok(decision)
            }
            Err(status) => {
                let decision = inner.or_default(Err(status.into()))?;
                measured.outcome = Outcome::NoAnswer;
                Ok(decision)
            }
        }
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
        let message = v1::RefundRequest { requests: vec![request.counted_message()?] };
        let method = |mut server: Server, call: Call<_>| async move { server.refund(call).await };
        let _refunding = self.0.denials.refunding(self.0.hasher.key_of(request));
        let response = self.0.connections.call(message, self.0.deadline(), method).await;
        only(response.map(|response| response.answers))
    }

    /// Closes the connections. Calls under way, of all clones, and later ones have no answer.
    pub fn close(&self) {
        self.0.connections.close();
    }
}

impl Inner {
    /// The instant at which the timeout of a call that begins now is over.
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
    Ok(Decision::from_answer(answer.unwrap_or_default())?)
}
