//! The end of buckets: what they took is given back, and their dividers are told.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, task::yield_now};
use tollgate_store::divider::{DividerReport, SubscriberId, SubscriberReport};

use crate::{
    bucket::{BucketTerms, DIVISION_BYTES, PART_MAX, QuotaBucket},
    memory::BucketOwner,
    service::QuotaService,
};

/// The longest time for which a divider keeps a bucket that has ended.
const DIVISION_TTL: Duration = Duration::from_secs(17);

/// A stream that has ended, with the buckets that have not.
pub(super) struct EndedStream {
    pub(super) service: Arc<QuotaService>,
    pub(super) owner: BucketOwner,
    /// The size of the domain.
    pub(super) domain: usize,
    pub(super) buckets: BTreeMap<u32, QuotaBucket>,
}

impl EndedStream {
    /// Ends all buckets: many of them in parts, between which others have their turn.
    pub(super) fn run(mut self) {
        match Handle::try_current() {
            Ok(runtime) if self.buckets.len() > PART_MAX => drop(runtime.spawn(async move {
                while self.end_some() {
                    yield_now().await;
                }
            })),
            Ok(_) | Err(_) => while self.end_some() {},
        }
    }

    /// Ends some of the buckets, and with the last ones the stream. Returns whether there are more.
    fn end_some(&mut self) -> bool {
        let some = std::iter::from_fn(|| self.buckets.pop_first()).take(PART_MAX);
        let reports: Vec<_> =
            some.filter_map(|(number, bucket)| end(&self.service, self.owner, number, bucket)).collect();
        if !reports.is_empty() {
            self.service.report(reports);
        }
        let has_more = !self.buckets.is_empty();
        if !has_more {
            self.service.close(self.owner, self.domain);
        }
        has_more
    }
}

/// Gives back what a bucket took, which its stream does not have any more. Returns the report of its end, if its limit is
/// divided.
pub(super) fn end(
    service: &QuotaService,
    owner: BucketOwner,
    number: u32,
    bucket: QuotaBucket,
) -> Option<SubscriberReport> {
    let QuotaService { memory, stats, .. } = service;
    let now = service.now();
    let BucketOwner { caller, stream } = owner;
    stats.buckets.fetch_sub(1, Ordering::Relaxed);
    memory.give_back(caller, QuotaBucket::bytes(bucket.id.len()), now);
    match bucket.terms {
        BucketTerms::Divide(key, limit, terms) => {
            // Until then the divider keeps what may be in force.
            memory.give_back_after(DIVISION_TTL, caller, DIVISION_BYTES, now);
            let id = SubscriberId { replica: service.replica, stream, bucket: number };
            Some(SubscriberReport { key, limit, id, terms, report: DividerReport::End })
        }
        BucketTerms::Allow | BucketTerms::Count(..) | BucketTerms::Deny => {
            memory.give_back(caller, DIVISION_BYTES, now);
            None
        }
    }
}
