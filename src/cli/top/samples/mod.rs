//! Samples of real servers, for tests.

use serde_json::Value;

use crate::cli::top::{history::History, sample::Sample};

/// A single replica under load; each second 400 calls with 20 keys of the rule `edge.tenant`, which all pass, and 100
/// with four keys of `edge.remote_address`, most of which are refused.
const SINGLE: &str = include_str!("single.ndjson");

/// A replica of a cluster of two, whose certificate ends in 20 days.
const CLUSTER: &str = include_str!("cluster.ndjson");

/// What the samples of the single replica tell.
pub(super) fn loaded() -> History {
    let mut history = History::default();
    for line in SINGLE.lines() {
        history.add(serde_json::from_str(line).unwrap());
    }
    history
}

/// The first sample of the single replica, after a change.
pub(super) fn single(change: impl FnOnce(&mut Value)) -> Sample {
    changed(SINGLE, change)
}

/// The sample of the replica of the cluster, after a change.
pub(super) fn cluster(change: impl FnOnce(&mut Value)) -> Sample {
    changed(CLUSTER, change)
}

fn changed(lines: &str, change: impl FnOnce(&mut Value)) -> Sample {
    let mut value: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    change(&mut value);
    serde_json::from_value(value).unwrap()
}
