//! The last five minutes of the lines that the operators' page draws, so that a page that is opened begins with them.

use std::{collections::VecDeque, time::Duration};

use axum::body::Bytes;
use tollgate_counter::time::Timestamp;

use crate::api::admin::page::sample::HistoryPoint;

/// The time between points.
pub(super) const POINT_INTERVAL: Duration = Duration::from_secs(5);
/// The number of points: five minutes.
const POINTS_MAX: usize = 60;

/// The latest points, oldest first.
// Invariants: at most `POINTS_MAX` points, whose instants never decrease.
#[derive(Debug, Default)]
pub(super) struct PageHistory(VecDeque<(Timestamp, String)>);

impl PageHistory {
    /// Adds a point, and drops the oldest one if there are too many. If the clock was set back, the points before are
    /// dropped: they are in the future.
    pub(super) fn push(&mut self, point: &HistoryPoint) {
        if self.0.back().is_some_and(|(last, _)| point.at < *last) {
            self.0.clear();
        }
        if self.0.len() == POINTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((point.at, point.json().to_string()));
    }

    /// All points as one line of JSON.
    pub(super) fn line(&self) -> Bytes {
        let points: Vec<_> = self.0.iter().map(|(_, point)| &**point).collect();
        format!("{{\"points\":[{}]}}\n", points.join(",")).into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::admin::page::sample::point;

    fn seconds(history: &PageHistory) -> Vec<Value> {
        let line: Value = serde_json::from_slice(&history.line()).unwrap();
        let points = line["points"].as_array().unwrap();
        points.iter().map(|point| point["at"].clone()).collect()
    }

    #[test]
    fn history_keeps_latest_points_of_five_minutes() {
        let mut history = PageHistory::default();
        assert_eq!(&*history.line(), b"{\"points\":[]}\n");
        for number in 0..1_000 {
            history.push(&point(number * POINT_INTERVAL.as_secs()));
        }
        let kept = seconds(&history);
        assert_eq!(kept.len(), POINTS_MAX);
        assert_eq!((&kept[0], &kept[59]), (&json!("1970-01-01T01:18:20Z"), &json!("1970-01-01T01:23:15Z")));
        assert!(history.line().len() < 64 * 1024);
    }

    #[test]
    fn clock_that_is_set_back_drops_points_before() {
        let mut history = PageHistory::default();
        for second in [100, 105, 105, 3] {
            history.push(&point(second));
        }
        assert_eq!(seconds(&history), [json!("1970-01-01T00:00:03Z")]);
    }
}
