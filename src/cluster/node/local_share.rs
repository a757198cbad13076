//! Local shares: while owners are unreachable, this replica admits its share of each limit. It reports the consumption
//! once the owner is reachable.

use std::sync::Arc;

use tollgate_limiter::{
    descriptor::Key,
    remote::{self, Admitted},
    store::SlotData,
    time::Timestamp,
};

use crate::cluster::message::{RemoteCheck, RemoteOperation};

/// The most reports that wait to be sent again.
const REPORTS_MAX: usize = 10_000;

/// The local shares, and the reports that could not be sent.
#[derive(Debug, Default)]
pub(super) struct LocalShare {
    pub(super) share: remote::LocalShare,
    unsent_reports: Vec<Arc<RemoteCheck>>,
}

impl LocalShare {
    pub(super) fn clear(&mut self) {
        self.share.clear();
        self.unsent_reports.clear();
    }

    /// Queues a report for an owner that is unreachable. False if the queue is full, and the report is dropped.
    pub(super) fn queue_report(&mut self, report: Arc<RemoteCheck>) -> bool {
        let has_room = self.unsent_reports.len() < REPORTS_MAX;
        if has_room {
            self.unsent_reports.push(report);
        }
        has_room
    }

    /// Takes the reports whose owners are reachable.
    pub(super) fn take_reports(
        &mut self,
        is_reachable: impl Fn(Key) -> bool,
        now: Timestamp,
    ) -> Vec<Arc<RemoteCheck>> {
        let mut reports: Vec<Arc<RemoteCheck>> =
            self.unsent_reports.extract_if(.., |report| is_reachable(report.key)).collect();
        let admitted = self.share.take_admitted_where(is_reachable);
        reports.extend(admitted.map(|(key, Admitted { limit, counter })| {
            let consumed = Arc::new(SlotData::of_usage(key, &limit, counter, now));
            let operation = RemoteOperation::Absorb(consumed);
            Arc::new(RemoteCheck { key, limit, operation, lease_hits: 0 })
        }));
        reports
    }
}
