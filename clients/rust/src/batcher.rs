//! Sends checks together that begin while calls are under way.
//!
//! There is no timer: a check is sent at once if fewer calls are under way than may be.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prost::Message;
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tonic::{Code, Status};

use crate::{
    Options,
    connections::{Connections, Server, late, runtime_ended},
    metrics::Metrics,
    v1,
};

/// Bounds the bytes of a batch: a message may have 4 MiB.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Collects checks and sends them.
pub(crate) struct Batcher {
    shared: Arc<Shared>,
    _senders: JoinSet<()>,
}

struct Shared {
    connections: Arc<Connections>,
    metrics: Arc<dyn Metrics>,
    batch_max: usize,
    queue_max: usize,
    queue: Mutex<Queue>,
    /// Wakes a sender that waits for checks.
    arrival: Notify,
}

/// Checks that wait, by their numbers in the order of arrival.
#[derive(Default)]
struct Queue {
    checks: BTreeMap<u64, QueuedCheck>,
    next: u64,
}

struct QueuedCheck {
    request: v1::Request,
    bytes: usize,
    deadline: Instant,
    reply: oneshot::Sender<Result<Reply, Status>>,
}

/// The answer to one check.
pub(crate) struct Reply {
    pub(crate) answer: v1::Answer,
    /// When the check was sent.
    pub(crate) sent: Instant,
}

impl Batcher {
    /// Makes a batcher, and spawns its `calls_max` senders on the current runtime.
    pub(crate) fn new(connections: Arc<Connections>, options: &Options) -> Self {
        let shared = Arc::new(Shared {
            connections,
            metrics: options.metrics.clone(),
            batch_max: options.batch_max,
            queue_max: options.queue_max,
            queue: Mutex::default(),
            arrival: Notify::new(),
        });
        let mut senders = JoinSet::new();
        for _ in 0..options.calls_max {
            senders.spawn(shared.clone().send_batches());
        }
        Self { shared, _senders: senders }
    }

    /// Queues a check; the error says that the queue is full.
    pub(crate) fn queue(&self, request: v1::Request, deadline: Instant) -> Result<Waiting<'_>, Status> {
        let shared = &*self.shared;
        let (reply, answer) = oneshot::channel();
        let bytes = request.encoded_len();
        let mut queue = shared.lock();
        let length = queue.checks.len();
        if length >= shared.queue_max {
            return Err(Status::resource_exhausted(format!("{length} checks wait already")));
        }
        let number = queue.next;
        queue.next += 1;
        queue.checks.insert(number, QueuedCheck { request, bytes, deadline, reply });
        drop(queue);
        shared.arrival.notify_one();
        Ok(Waiting { shared, number, deadline, answer })
    }

    /// The number of checks that wait for a call.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.shared.lock().checks.len()
    }
}

/// A check that waits for its answer. It leaves the queue when this is dropped.
pub(crate) struct Waiting<'a> {
    shared: &'a Shared,
    number: u64,
    deadline: Instant,
    answer: oneshot::Receiver<Result<Reply, Status>>,
}

impl Waiting<'_> {
    /// Waits until the deadline.
    pub(crate) async fn reply(mut self) -> Result<Reply, Status> {
        match timeout_at(self.deadline, &mut self.answer).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(runtime_ended()),
            Err(_) => Err(late()),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.lock().checks.remove(&self.number);
    }
}

impl Shared {
    async fn send_batches(self: Arc<Self>) {
        loop {
            // A check that arrives after `take` leaves a permit.
            let batch = self.take();
            if batch.is_empty() {
                self.arrival.notified().await;
            } else {
                self.send(batch).await;
            }
        }
    }

    /// The next batch. A single check may have more bytes than a batch.
    fn take(&self) -> Vec<QueuedCheck> {
        let mut queue = self.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < self.batch_max
            && let Some(next) = queue.checks.first_entry()
        {
            bytes += next.get().bytes;
            if !batch.is_empty() && bytes > BATCH_BYTES_MAX {
                break;
            }
            batch.push(next.remove());
        }
        batch
    }

    /// Replies to each check of a batch. If the server refuses the call as a whole, the halves are sent apart: the
    /// server allows less in one call, or one check is too large.
    async fn send(&self, batch: Vec<QueuedCheck>) {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            // Callers of a second half may have gone while the first one was sent.
            part.retain(|check| !check.reply.is_closed());
            if part.is_empty() {
                continue;
            }
            let sent = Instant::now();
            let result = self.call(&part).await;
            if part.len() > 1 && matches!(&result, Err(status) if status.code() == Code::InvalidArgument) {
                let second = part.split_off(part.len() / 2);
                parts.extend([second, part]);
                continue;
            }
            match result {
                Ok(answers) => {
                    for (check, answer) in part.into_iter().zip(answers) {
                        check.reply(Ok(Reply { answer, sent }));
                    }
                }
                Err(status) => {
                    for check in part {
                        check.reply(Err(status.clone()));
                    }
                }
            }
        }
    }

    async fn call(&self, part: &[QueuedCheck]) -> Result<Vec<v1::Answer>, Status> {
        self.metrics.sent(part.len());
        let requests = part.iter().map(|check| check.request.clone()).collect();
        let message = v1::CheckRequest { requests, ..v1::CheckRequest::default() };
        // The check that waits longest: the others must not end it.
        let deadline = part.iter().map(|check| check.deadline).max().unwrap_or_else(Instant::now);
        let method = |mut server: Server, request| async move { server.check(request).await };
        let response = self.connections.call(message, deadline, method).await?;
        answers_to(part.len(), response.answers)
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedCheck {
    fn reply(self, reply: Result<Reply, Status>) {
        // An error says that the caller is gone.
        let _ = self.reply.send(reply);
    }
}

/// The answers to this number of requests.
pub(crate) fn answers_to(requests: usize, answers: Vec<v1::Answer>) -> Result<Vec<v1::Answer>, Status> {
    if answers.len() != requests {
        return Err(Status::internal(format!("{} answers to {requests} requests", answers.len())));
    }
    Ok(answers)
}
