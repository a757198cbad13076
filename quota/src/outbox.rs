//! What is to be sent to one client.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::task::AtomicWaker;
use tollgate_counter::lock::lock;

use crate::bucket::QuotaAction;

/// Actions for the buckets of a stream that are not sent yet, at most one for each.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The address of the client.
    pub(super) client: Option<SocketAddr>,
    actions: Mutex<BTreeMap<u32, QuotaAction>>,
    // Whether the rules have changed since the buckets were looked up.
    has_new_rules: AtomicBool,
    /// Wakes the task that sends.
    pub(super) waker: AtomicWaker,
}

impl Outbox {
    /// An empty outbox for the client at this address.
    pub(super) fn new(client: Option<SocketAddr>) -> Self {
        Self { client, ..Self::default() }
    }

    /// Adds actions from another stream or task.
    pub(super) fn push(&self, actions: impl Iterator<Item = (u32, QuotaAction)>) {
        {
            let mut all = lock(&self.actions);
            actions.for_each(|(bucket, action)| add(&mut all, bucket, action));
        }
        self.waker.wake();
    }

    /// Adds an action from the stream itself, which sends it next.
    pub(super) fn add(&self, bucket: u32, action: QuotaAction) {
        add(&mut lock(&self.actions), bucket, action);
    }

    /// Removes what is for a bucket.
    pub(super) fn remove(&self, bucket: u32) {
        lock(&self.actions).remove(&bucket);
    }

    /// Removes the first actions, at most `max`.
    pub(super) fn take(&self, max: usize) -> Vec<(u32, QuotaAction)> {
        let mut actions = lock(&self.actions);
        std::iter::from_fn(|| actions.pop_first()).take(max).collect()
    }

    /// Asks the stream to look its buckets up again.
    pub(super) fn announce_rules(&self) {
        self.has_new_rules.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the buckets are to be looked up again, which nothing has begun yet.
    pub(super) fn has_new_rules(&self) -> bool {
        self.has_new_rules.load(Ordering::Acquire)
    }

    /// Whether the buckets are to be looked up again, from now on.
    pub(super) fn take_new_rules(&self) -> bool {
        self.has_new_rules.swap(false, Ordering::AcqRel)
    }
}

fn add(actions: &mut BTreeMap<u32, QuotaAction>, bucket: u32, action: QuotaAction) {
    actions.entry(bucket).and_modify(|earlier| *earlier = earlier.then(action)).or_insert(action);
}
