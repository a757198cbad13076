use serde_json::json;

use super::*;
use crate::cli::top::{
    sample::{Answered, Decisions},
    samples::{loaded, single},
};

/// The first sample with these decisions, so many seconds later.
fn later(seconds: i64, ok: u64) -> Sample {
    let mut sample = single(|sample| {
        sample["decisions"]["ok"] = ok.into();
        sample["requests"]["count"] = ok.into();
        sample["each_rule"]["changed"] = json!([[0, [ok, 0, ok, 0, 0, 0]]]);
        sample["top"]["denied"] = json!([{"key": "edge k=v", "count": ok, "error": 0}]);
    });
    sample.at += SignedDuration::from_secs(seconds);
    sample
}

fn near(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value - expected).abs() < 1.0)
}

#[test]
fn rates_of_loaded_server_are_those_of_its_callers() {
    let history = loaded();
    assert!(near(history.growth(|sample| sample.decisions.ok), 404.0));
    assert!(near(history.growth(|sample| sample.decisions.over_limit), 96.0));
    let rates: Vec<_> =
        history.rules().into_iter().map(|rule| (rule.name, rule.rate, rule.refused)).collect();
    for (name, decided, refused) in [("edge.tenant", 400.0, 0.0), ("edge.remote_address", 100.0, 96.0)] {
        assert!(
            rates
                .iter()
                .any(|rule| rule.0 == name && near(Some(rule.1), decided) && near(Some(rule.2), refused)),
            "{rates:?}"
        );
    }
    assert_eq!(history.keys().len(), 4);
    assert!(history.keys().iter().all(|key| near(Some(key.rate), 24.0)), "{:?}", history.keys());
}

#[test]
fn rate_is_the_mean_of_the_last_ten_seconds() {
    let mut history = History::default();
    for second in 0..30 {
        history.add(later(second, if second < 20 { 1_000 } else { 1_000 + 10 * second.unsigned_abs() }));
    }
    assert!(near(history.growth(|sample| sample.decisions.ok), 29.0));
    assert!(near(history.rules().first().map(|rule| rule.rate), 29.0));
    assert!(near(history.keys().first().map(|key| key.rate), 29.0));
    // A rule that is in no more samples has no more decisions.
    let mut last = later(45, 2_000);
    last.each_rule = None;
    history.add(last);
    assert!(near(history.rules().first().map(|rule| rule.rate), 0.0));
}

#[test]
fn history_keeps_five_minutes() {
    let mut history = History::default();
    for second in 0..1_000 {
        history.add(later(second, 0));
    }
    assert_eq!((history.points.len(), history.samples.len()), (301, 11));
    for _ in 0..1_000 {
        history.add(later(1_000, 0));
    }
    assert_eq!((history.points.len(), history.samples.len()), (301, 11));
}

/// Points of a server at these seconds after the first sample, with ten passed decisions each second.
fn past(seconds: impl IntoIterator<Item = i64>) -> Past {
    let start = later(0, 0).counted();
    let points = seconds.into_iter().map(|second| Counted {
        at: start.at + SignedDuration::from_secs(second),
        requests: Answered { count: counted(second) },
        decisions: Decisions { ok: counted(second), ..start.decisions },
    });
    Past { points: points.collect() }
}

/// The decisions at a second of `past`.
fn counted(second: i64) -> u64 {
    u64::try_from(10 * (second + 1_000)).unwrap()
}

fn instants(history: &History) -> Vec<i64> {
    let start = later(0, 0).at;
    history.points().map(|point| point.at.duration_since(start).as_secs()).collect()
}

#[test]
fn history_begins_with_points_of_server() {
    let mut history = History::default();
    history.add_past(&past([-15, -10, -5]));
    history.add(later(0, counted(0)));
    assert_eq!(instants(&history), [-10, -5, 0]);
    assert!(history.points().all(|point| near(Some(point.passed), 10.0)));
    // Rates are of samples only.
    assert_eq!(history.growth(|sample| sample.decisions.ok), None);
}

#[test]
fn points_of_server_fill_gap_between_streams() {
    let mut history = History::default();
    history.add_past(&past([]));
    for second in [0, 1, 2] {
        history.add(later(second, counted(second)));
    }
    history.add_past(&past([-5, 0, 5, 10]));
    history.add(later(11, counted(11)));
    assert_eq!(instants(&history), [0, 1, 2, 5, 10, 11]);
    assert!(history.points().all(|point| near(Some(point.passed), 10.0)));
}

#[test]
fn points_of_restarted_server_replace_those_before() {
    let mut history = History::default();
    history.add(later(0, 5_000_000));
    history.add(later(1, 5_000_000));
    history.add_past(&past([5, 10]));
    history.add(later(11, counted(11)));
    assert_eq!(instants(&history), [10, 11]);
}

#[test]
fn points_of_server_are_bounded() {
    let mut history = History::default();
    for _ in 0..3 {
        history.add_past(&past(-900..3_000));
        history.add_past(&past(-900..9_000));
    }
    assert_eq!(history.points.len(), POINTS_MAX);
}

#[test]
fn rules_beyond_bound_are_dropped_without_recent_decisions() {
    let mut history = History::default();
    for second in 0..20 {
        let mut sample = later(second, 0);
        let first = usize::try_from(second).unwrap() * 1_000;
        let totals = Totals { decided: 1, refused: 0 };
        let changed = (first..first + 1_000).map(|index| (index, totals)).collect();
        sample.each_rule = Some(EachRule { hash: Text::default(), changed, busiest: Vec::new() });
        history.add(sample);
        assert!(history.rules.len() <= RULES_MAX + 10 * TAKEN_MAX);
    }
    assert_eq!(history.rules.len(), 10_000);
}

#[test]
fn server_that_starts_again_has_new_history() {
    let mut history = loaded();
    history.add(later(60, 3));
    assert_eq!((history.points.len(), history.samples.len()), (0, 1));
    assert_eq!(history.growth(|sample| sample.decisions.ok), None);
}

#[test]
fn latency_is_the_bound_that_a_part_of_requests_keeps() {
    let mut history = History::default();
    let requests = |count: u64, fast: u64, slow: u64| {
        single(|sample| {
            let up_to = json!([[0.001, fast], [1.0, slow]]);
            sample["requests"]["up_to"] = up_to;
            sample["requests"]["count"] = count.into();
        })
    };
    history.add(requests(100, 100, 100));
    assert_eq!(history.latency(0.5), None);
    let mut now = requests(200, 160, 198);
    now.at += RATE;
    history.add(now);
    assert_eq!(history.latency(0.5), Some(Latency::UpTo(0.001)));
    assert_eq!(history.latency(0.98), Some(Latency::UpTo(1.0)));
    assert_eq!(history.latency(0.99), Some(Latency::Above(1.0)));
}
