use tollgate_counter::time::SECOND;

use super::*;
use tollgate_wire::descriptor_text;

use crate::bench::schedule::{Arrivals, MeasuredSpan};

const HOUR: Duration = Duration::from_secs(3_600);

fn schedule(rate: u64, arrivals: Arrivals, duration: Duration, seed: u64) -> Schedule {
    let span = MeasuredSpan { warmup: Duration::ZERO, duration: Some(duration), requests: None };
    Schedule::new(rate, arrivals, span, seed)
}

fn terms(rate: u64, duration: Duration, shape: Shape) -> GeneratorTerms {
    GeneratorTerms {
        start: Timestamp::EPOCH,
        domain: "shop".to_owned(),
        template: DescriptorTemplate::new([descriptor_text::parse("user={key}").unwrap()].iter()).unwrap(),
        arrivals: schedule(rate, Arrivals::Poisson, duration, 7),
        shape,
        keys: Keys::new(10, 0.0, 7).unwrap(),
        attack: None,
        retry: None,
    }
}

/// The instants in seconds and the keys.
fn all(terms: GeneratorTerms) -> Vec<(f64, String)> {
    let mut generated = Generated::new(terms);
    let mut event = Event::default();
    let mut all = Vec::new();
    while generated.next(&mut event).unwrap() {
        let key = String::from_utf8(event.entries().next().unwrap().value.to_vec()).unwrap();
        all.push((event.at.as_nanos() as f64 / SECOND as f64, key));
    }
    all
}

/// Asserts that a number of independent requests is what is expected, up to five standard deviations of a Poisson
/// distribution.
fn assert_count(found: usize, expected: f64) {
    let slack = 5.0 * expected.sqrt();
    assert!((found as f64 - expected).abs() < slack, "{found}, not {expected} (up to {slack})");
}

#[test]
fn daily_curve_has_the_expected_requests_of_each_hour() {
    let amplitude = 0.8;
    let requests = all(terms(5, 24 * HOUR, Shape::Daily { amplitude }));
    assert!(requests.is_sorted_by(|a, b| a.0 <= b.0));
    for hour in 0..24 {
        let until = |hour: f64| {
            let angle = std::f64::consts::TAU * hour / 24.0;
            3_600.0 * (hour - amplitude * 24.0 / std::f64::consts::TAU * angle.sin())
        };
        let expected = 5.0 * (until(f64::from(hour) + 1.0) - until(f64::from(hour)));
        let found = requests.iter().filter(|(at, _)| (at / 3_600.0) as i32 == hour).count();
        assert_count(found, expected);
    }
}

#[test]
fn bursts_have_their_factor_and_the_mean_rate_is_kept() {
    let bursts =
        Shape::Bursts { every: Duration::from_secs(60), length: Duration::from_secs(6), factor: 10.0 };
    let requests = all(terms(20, HOUR, bursts));
    assert_count(requests.len(), 20.0 * 3_600.0);
    let in_burst = requests.iter().filter(|(at, _)| at % 60.0 < 6.0).count();
    // In each minute 6 s count ten times: 60 of 114 parts.
    assert_count(in_burst, 20.0 * 3_600.0 * 60.0 / 114.0);
}

#[test]
fn attacker_adds_its_own_requests_in_order() {
    let attack = Some(schedule(50, Arrivals::Poisson, HOUR, 8));
    let requests = all(GeneratorTerms { attack, ..terms(5, HOUR, Shape::Flat) });
    assert!(requests.is_sorted_by(|a, b| a.0 <= b.0));
    let attacks = requests.iter().filter(|(_, key)| key == "attacker").count();
    assert_count(attacks, 50.0 * 3_600.0);
    assert_count(requests.len() - attacks, 5.0 * 3_600.0);
}

#[test]
fn same_seed_generates_the_same_requests() {
    let requests = || all(terms(5, HOUR, Shape::Daily { amplitude: 0.5 }));
    assert_eq!(requests(), requests());
}

/// The instants in milliseconds and the attempts of one request that is always refused.
fn attempts(wait: Option<Duration>, told: Option<Duration>) -> Vec<(u64, u32)> {
    let arrivals = schedule(1, Arrivals::Even, Duration::from_secs(1), 1);
    let retry = Some(RetryPolicy { max: 2, wait });
    let mut generated = Generated::new(GeneratorTerms { arrivals, retry, ..terms(1, HOUR, Shape::Flat) });
    let mut event = Event::default();
    let mut all = Vec::new();
    while generated.next(&mut event).unwrap() {
        all.push((event.at.as_nanos() / 1_000_000, event.origin.attempt));
        let event = event.clone();
        generated.refused(&event, told);
    }
    all
}

#[test]
fn refused_clients_retry_as_told_or_after_their_own_time() {
    let told = Some(Duration::from_millis(700));
    assert_eq!(attempts(None, told), [(0, 0), (700, 1), (1_400, 2)]);
    assert_eq!(attempts(None, None), [(0, 0)]);
    assert_eq!(attempts(Some(Duration::from_millis(50)), told), [(0, 0), (50, 1), (100, 2)]);
}
