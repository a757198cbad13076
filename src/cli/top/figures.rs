//! The overview: a line for each of the figures that the operators' page has as a card.

use bytesize::ByteSize;

use crate::cli::top::{
    history::{History, Latency},
    numbers::{count, rate, share, time, whole},
    sample::{Certificate, Cluster, Sample, Store},
};

/// The time before its end from which on a certificate needs attention, in seconds.
const EXPIRY_SOON_S: f64 = 30.0 * 86_400.0;

/// A figure with its name and what belongs to it.
#[derive(Debug)]
pub(super) struct Figure {
    pub name: &'static str,
    pub value: String,
    pub note: String,
    pub tone: Tone,
}

/// How urgent a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Neutral,
    Good,
    Warning,
    Bad,
}

impl Figure {
    fn new(name: &'static str, value: impl Into<String>, note: impl Into<String>, tone: Tone) -> Self {
        Self { name, value: value.into(), note: note.into(), tone }
    }
}

/// All figures; none before the first sample.
pub(super) fn figures(history: &History) -> Vec<Figure> {
    let Some(sample) = history.latest() else { return Vec::new() };
    let [passed, refused] = decisions(history, sample);
    let up_to = |part| latency(history.latency(part));
    vec![
        passed,
        refused,
        Figure::new(
            "Time to decide",
            format!("p99 {}", up_to(0.99)),
            format!("p50 {}", up_to(0.5)),
            Tone::Neutral,
        ),
        counters(&sample.store),
        rules(sample),
        undecided(sample),
        certificates(sample),
        cluster(sample.cluster.as_ref(), &sample.store),
    ]
}

fn decisions(history: &History, sample: &Sample) -> [Figure; 2] {
    let each = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{} /s", rate(value)));
    let passed = history.growth(|one| one.decisions.ok);
    let refused = history.growth(|one| one.decisions.over_limit);
    let (passes, refusals) = (passed.unwrap_or_default(), refused.unwrap_or_default());
    let part = share(refusals, passes + refusals);
    [
        Figure::new(
            "Passed",
            each(passed),
            format!("{} since the start", whole(sample.decisions.ok)),
            Tone::Neutral,
        ),
        Figure::new(
            "Refused",
            each(refused),
            format!("{part} of all; {} since the start", whole(sample.decisions.over_limit)),
            Tone::Neutral,
        ),
    ]
}

fn latency(latency: Option<Latency>) -> String {
    match latency {
        None => "–".to_owned(),
        Some(Latency::UpTo(bound)) => format!("≤ {}", time(bound)),
        Some(Latency::Above(bound)) => format!("above {}", time(bound)),
    }
}

fn counters(store: &Store) -> Figure {
    let Store { live, bytes, bytes_max, refused_full, .. } = *store;
    let mut note = format!("{} of {}", ByteSize(bytes), ByteSize(bytes_max));
    let mut tone = Tone::Neutral;
    if refused_full > 0 {
        note += &format!("; {} charges refused for lack of memory", whole(refused_full));
        tone = Tone::Warning;
    }
    Figure::new("Counters", whole(live), note, tone)
}

fn rules(sample: &Sample) -> Figure {
    let state = &sample.rules;
    let (rules, domains) = (count(state.rules, "rule"), count(state.domains, "domain"));
    let active = format!("generation {}: {rules} in {domains}", state.generation);
    let (value, note, tone) = match (state.problems.saturating_add(state.overlay_problems), state) {
        (0, state) if state.generation == 0 => {
            ("none".to_owned(), "no rules are loaded yet".to_owned(), Tone::Bad)
        }
        (0, state) if state.warnings > 0 => {
            ("active".to_owned(), format!("{active}; {}", count(state.warnings, "warning")), Tone::Good)
        }
        (0, _) => ("active".to_owned(), active, Tone::Good),
        (problems, _) => {
            (count(problems, "problem"), format!("{active} stay active; see tollgate doctor"), Tone::Bad)
        }
    };
    Figure::new("Rules", value, note, tone)
}

fn undecided(sample: &Sample) -> Figure {
    let requests = &sample.requests;
    let reasons = [
        (requests.no_rules, "no rules"),
        (requests.joining, "joining"),
        (requests.overloaded, "overloaded"),
        (requests.invalid, "invalid"),
    ];
    let all = reasons.iter().fold(0_u64, |all, (number, _)| all.saturating_add(*number));
    let reasons = reasons.iter().filter(|(number, _)| *number > 0);
    let reasons: Vec<_> = reasons.map(|(number, reason)| format!("{} {reason}", whole(*number))).collect();
    let note = if reasons.is_empty() { "none since the start".to_owned() } else { reasons.join(", ") };
    Figure::new("Undecided", whole(all), note, Tone::Neutral)
}

fn certificates(sample: &Sample) -> Figure {
    let left = |one: &Certificate| one.expires_at.duration_since(sample.at);
    let Some(first) = sample.certificates.iter().min_by_key(|one| left(one)) else {
        return Figure::new("Certificates", "none", "the listeners have no TLS", Tone::Neutral);
    };
    let left = left(first).as_secs_f64();
    let note = format!("the first to end: {}, {}", first.listener.0, first.expires_at.strftime("%Y-%m-%d"));
    let (value, tone) = match left {
        _ if left <= 0.0 => ("expired".to_owned(), Tone::Bad),
        _ if left < EXPIRY_SOON_S => (format!("end in {}", time(left)), Tone::Warning),
        _ => (format!("end in {}", time(left)), Tone::Good),
    };
    Figure::new("Certificates", value, note, tone)
}

fn cluster(view: Option<&Cluster>, store: &Store) -> Figure {
    if let Some(shared) = &store.shared {
        let tone = if shared.state.0 == "ready" { Tone::Good } else { Tone::Bad };
        let note = format!("{} in the store", count(shared.replicas, "replica"));
        return Figure::new("Cluster", format!("store {}", shared.state.0), note, tone);
    }
    let Some(view) = view else {
        return Figure::new("Cluster", "single replica", "cluster.listen is off", Tone::Neutral);
    };
    let serving = view.members.iter().filter(|member| member.state.0 == "serving").count();
    let isolated = if view.isolated { "isolated; " } else { "" };
    Figure::new(
        "Cluster",
        format!("{serving} of {} serve", view.members.len()),
        format!("{isolated}this one {}; {} move", view.state.0, count(view.moving, "slot")),
        if view.isolated { Tone::Bad } else { Tone::Neutral },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::top::samples::{cluster, single};

    /// A figure of a server after a change of its sample.
    fn figure(name: &str, sample: Sample) -> (String, String, Tone) {
        let mut history = History::default();
        history.add(sample);
        let figure = figures(&history).into_iter().find(|figure| figure.name == name).unwrap();
        (figure.value, figure.note, figure.tone)
    }

    #[test]
    fn rules_show_problems_before_warnings() {
        let of = |change: fn(&mut Value)| figure("Rules", single(change));
        assert_eq!(of(|_| ()), ("active".into(), "generation 1: 3 rules in 1 domain".into(), Tone::Good));
        let (value, note, tone) = of(|sample| {
            sample["rules"]["problems"] = 1.into();
            sample["rules"]["overlay_problems"] = 1.into();
            sample["rules"]["warnings"] = 2.into();
        });
        assert_eq!((value.as_str(), tone), ("2 problems", Tone::Bad));
        assert!(note.contains("stay active"), "{note}");
        assert!(of(|sample| sample["rules"]["warnings"] = 2.into()).1.ends_with("; 2 warnings"));
        assert_eq!(of(|sample| sample["rules"]["generation"] = 0.into()).0, "none");
    }

    #[test]
    fn first_certificate_to_end_is_shown() {
        let of = |change: fn(&mut Value)| figure("Certificates", cluster(change));
        let (value, note, tone) = of(|_| ());
        assert_eq!((value.as_str(), tone), ("end in 20 days", Tone::Warning));
        assert_eq!(note, "the first to end: grpc, 2026-12-13");
        let (value, note, tone) = of(|sample| {
            let expired = json!({"listener": "http", "expires_at": "2026-11-01T00:00:00Z"});
            sample["certificates"].as_array_mut().unwrap().push(expired);
        });
        assert_eq!((value.as_str(), tone), ("expired", Tone::Bad));
        assert!(note.starts_with("the first to end: http"), "{note}");
        assert_eq!(of(|sample| sample["certificates"] = json!([])).0, "none");
    }

    #[test]
    fn cluster_is_one_line() {
        let note = "this one serving; 0 slots move";
        let of = |change: fn(&mut Value)| figure("Cluster", cluster(change));
        assert_eq!(of(|_| ()), ("2 of 2 serve".into(), note.into(), Tone::Neutral));
        assert_eq!(of(|sample| sample["cluster"]["members"][1]["state"] = "gone".into()).0, "1 of 2 serve");
        assert_eq!(of(|sample| sample["cluster"]["isolated"] = true.into()).2, Tone::Bad);
        let shared = json!({"state": "unavailable", "replicas": 3});
        let (value, _, tone) = figure("Cluster", single(|sample| sample["store"]["shared"] = shared));
        assert_eq!((value.as_str(), tone), ("store unavailable", Tone::Bad));
        assert_eq!(figure("Cluster", single(|_| ())).0, "single replica");
    }

    #[test]
    fn requests_without_decision_have_reasons() {
        let (value, note, _) = figure(
            "Undecided",
            single(|sample| {
                sample["requests"]["invalid"] = 2.into();
                sample["requests"]["overloaded"] = 1_000.into();
            }),
        );
        assert_eq!((value.as_str(), note.as_str()), ("1,002", "1,000 overloaded, 2 invalid"));
    }

    #[test]
    fn full_memory_is_a_warning() {
        let (_, note, tone) = figure("Counters", single(|sample| sample["store"]["refused_full"] = 7.into()));
        assert_eq!(tone, Tone::Warning);
        assert!(note.contains("7 charges refused for lack of memory"), "{note}");
    }
}
