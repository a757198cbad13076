//! Brings reports of clients that decide by themselves to the owners of their counters.

use tollgate_store::divider::{Divide, SubscriberReport};

use crate::{
    Cluster,
    message::{RemoteCheck, RemoteOperation},
};

/// The most reports that are sent while checks wait.
const REPORTS_MAX: usize = 64;

impl Divide for Cluster {
    fn report(&self, reports: Vec<SubscriberReport>) {
        let mut reports = reports.into_iter().peekable();
        while reports.peek().is_some() {
            self.0.with_node(|node, now| {
                for SubscriberReport { key, limit, id, terms, report } in reports.by_ref().take(REPORTS_MAX) {
                    let operation = RemoteOperation::Divide(id, terms, report);
                    node.send(RemoteCheck { key, limit, operation, lease_hits: 0 }, now);
                }
            });
        }
    }
}
