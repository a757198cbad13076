use std::fs;

use tollgate_counter::time::{SECOND, Timestamp};

use super::{
    engine::{Refusals, Replay, RuleTable, Side},
    event::{Event, Source},
    progress::Progress,
    report::SimulationReport,
    suggest::{Goal, ShareOf, Suggestion, suggest},
    *,
};

const MEMORY: u64 = 64 << 20;

/// Requests of one entry: milliseconds, key and value, hits.
#[derive(Clone, Default)]
struct Requests(Vec<(u64, &'static str, String, u64)>, usize);

impl Source for Requests {
    fn next(&mut self, event: &mut Event) -> Result<bool, String> {
        let Some((at, key, value, hits)) = self.0.get(self.1) else { return Ok(false) };
        self.1 += 1;
        event.begin(Timestamp::from_nanos(at * SECOND / 1_000), "shop", *hits);
        event.entry(key.as_bytes(), value.as_bytes());
        event.end_descriptor();
        Ok(true)
    }
}

fn requests(all: impl IntoIterator<Item = (u64, &'static str, &'static str, u64)>) -> Requests {
    Requests(all.into_iter().map(|(at, key, value, hits)| (at, key, value.to_owned(), hits)).collect(), 0)
}

fn rule(key: &str, limit: &str) -> String {
    format!("- {{key: {key}, rate_limit: {{{limit}}}}}\n")
}

fn rules(rules: &str) -> Rules {
    Rules::parse("rules.yaml", &format!("domain: shop\ndescriptors:\n{rules}")).unwrap()
}

fn replayed(first: Rules, second: Option<Rules>, source: &mut dyn Source) -> SimulationReport {
    let arguments = ["simulate", "rules.yaml", "test", "--top", "3"];
    let compare = second.is_some().then_some(["--compare", "other.yaml"]).into_iter().flatten();
    let matches = flags::command().get_matches_from(arguments.into_iter().chain(compare));
    let flags = flags::read(&matches, &first).unwrap();
    let mut table = RuleTable::default();
    let first = Side::new(first, &mut table, MEMORY, Refusals::Answered);
    let second = second.map(|rules| Side::new(rules, &mut table, MEMORY, Refusals::Answered));
    let mut replay = Replay::new(table, first, second, 1_000);
    replay.run(source, &Progress::default()).unwrap();
    let files = [Some(&flags.rules), flags.compare.as_ref()];
    SimulationReport::new(&replay, files, flags.top, "test".to_owned(), source.skipped(), Vec::new())
}

#[test]
fn rules_are_reported_with_their_use() {
    // A bucket of 4 that refills by one a second: at second 0 four of five pass, at second 2 two of three.
    let bucket = rule("user", "unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 4");
    let unlimited = rule("plan", "unlimited: true");
    let burst =
        [(0, 5), (2_000, 3)].into_iter().flat_map(|(at, number)| vec![(at, "user", "ann", 1); number]);
    let others = [(2_500, "user", "bob", 1), (2_600, "plan", "pro", 1), (2_700, "other", "x", 1)];
    let report = replayed(rules(&(bucket + &unlimited)), None, &mut requests(burst.chain(others)));
    assert_eq!((report.requests, report.passed, report.refused), (11, 9, 2));
    assert_eq!(report.descriptors_without_rule, 1);
    let [user, plan] = &*report.by_rule else { panic!("{report:?}") };
    assert_eq!((&*user.rule, user.asked, user.passed, user.refused), ("shop.user", 9, 7, 2));
    assert_eq!((user.users, user.users_refused, user.highest_use), (2, 1, Some(1.0)));
    assert_eq!((plan.asked, plan.refused, plan.highest_use), (1, 0, None));
    let [most] = &*report.refused_most else { panic!("{report:?}") };
    assert_eq!((&*most.descriptor, most.refused), ("shop user=ann", 2));
    let bins: Vec<_> = report.timeline.bins.iter().map(|bin| (bin.passed, bin.refused)).collect();
    assert_eq!(bins, [(4, 1), (0, 0), (5, 1)]);
}

#[test]
fn queue_is_reported_with_its_longest_wait() {
    let queue = rule("user", "unit: second, requests_per_unit: 2, algorithm: leaky_queue, burst: 3");
    let report = replayed(rules(&queue), None, &mut requests(vec![(0, "user", "ann", 1); 5]));
    assert_eq!((report.by_rule[0].passed, report.by_rule[0].longest_wait_ms), (4, 1_500));
}

#[test]
fn time_does_not_go_back() {
    let window = rule("user", "unit: second, requests_per_unit: 1, algorithm: fixed_window");
    let mut source =
        requests([(5_000, "user", "ann", 1), (3_000, "user", "ann", 1), (6_000, "user", "ann", 1)]);
    let report = replayed(rules(&window), None, &mut source);
    assert_eq!((report.passed, report.refused, report.out_of_order), (2, 1, 1));
}

#[test]
fn shadow_rule_refuses_nothing_and_says_what_it_would() {
    let shadow = "- {key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1, algorithm: fixed_window}}\n";
    let report = replayed(rules(shadow), None, &mut requests(vec![(0, "user", "ann", 1); 3]));
    assert_eq!((report.passed, report.by_rule[0].refused, report.by_rule[0].refused_in_shadow), (3, 0, 2));
}

#[test]
fn comparison_tells_which_requests_and_users_only_one_side_refuses() {
    let of = |user: u32, plan: u32| {
        let window = |limit| format!("unit: day, requests_per_unit: {limit}, algorithm: fixed_window");
        rules(&(rule("user", &window(user)) + &rule("plan", &window(plan))))
    };
    let all = [
        ("user", "ann"),
        ("user", "ann"),
        ("user", "bob"),
        ("plan", "pro"),
        ("plan", "pro"),
        ("plan", "pro"),
    ];
    let mut source = requests(all.map(|(key, value)| (0, key, value, 1)));
    let report = replayed(of(1, 3), Some(of(2, 1)), &mut source);
    let comparison = report.comparison.unwrap();
    assert_eq!((report.refused, comparison.refused), (1, 2));
    let [user, plan] = &*comparison.by_rule else { panic!("{comparison:?}") };
    assert_eq!((user.refused_only_by_first, user.refused_only_by_other), (1, 0));
    assert_eq!((plan.refused_only_by_first, plan.refused_only_by_other), (0, 2));
    assert_eq!((user.users_refused_only_by_first, plan.users_refused_only_by_other), (1, 1));
    assert_eq!(comparison.users_refused_only_by_first[0].descriptor, "shop user=ann");
    assert_eq!(comparison.users_refused_only_by_other[0].refused, 2);
}

fn suggested(text: &str, source: &Requests, goal: Goal) -> Vec<Suggestion> {
    let text = format!("domain: shop\ndescriptors:\n{text}");
    let rules = || Rules::parse("rules.yaml", &text).unwrap();
    let progress = Progress::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, &text).unwrap();
    let mut replay = |trial: &tollgate_rules::Trial, paths: &[String]| {
        let mut table = RuleTable::default();
        let rules = tollgate_rules::load_trial(&path, trial).map_err(|problems| problems.to_string())?;
        let side = Side::new(rules, &mut table, MEMORY, Refusals::WithShadow);
        let mut replay = Replay::new(table, side, None, 1_000);
        replay.run(&mut source.clone(), &progress)?;
        Ok(report::rules_at(&replay, paths))
    };
    let at = |request: Option<&(u64, _, _, _)>| request.map_or(0, |(at, ..)| *at);
    let span = Duration::from_millis(at(source.0.last()) - at(source.0.first()));
    suggest(&rules(), goal, span, &progress, &mut replay).unwrap().unwrap()
}

#[test]
fn suggested_window_is_the_smallest_that_reaches_the_goal() {
    // Of ten users, user number n asks n + 1 times within a minute.
    let all =
        (0..10_u64).flat_map(|user| (0..=user).map(move |at| (at * 1_000, "user", format!("u{user}"), 1)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|request| request.0);
    let source = Requests(all, 0);
    let window = rule("user", "unit: minute, requests_per_unit: 3, algorithm: fixed_window");
    for (share, of, limit) in [
        (1.0, ShareOf::Users, 10),
        (0.8, ShareOf::Users, 8),
        // Of 55 requests, a limit of 6 refuses 4 + 3 + 2 + 1, and a limit of 5 five more.
        (0.8, ShareOf::Requests, 6),
    ] {
        let suggestions = suggested(&window, &source, Goal { share, of });
        let [suggestion] = &*suggestions else { panic!("{suggestions:?}") };
        assert_eq!((suggestion.limit, suggestion.burst), (limit, None), "{share} of {of:?}");
        assert!(suggestion.reaches_goal && suggestion.share_passed >= share);
    }
}

#[test]
fn suggested_bucket_cannot_be_smaller() {
    // Three at once every ten seconds, for ten minutes: 18 a minute, in bursts of three.
    let all = || requests((0..60_u64).flat_map(|at| vec![(at * 10_000, "user", "ann", 1); 3]));
    let smooth = |limit: u64, burst: u64| {
        format!("unit: minute, requests_per_unit: {limit}, algorithm: token_bucket, burst: {burst}")
    };
    let stepped = |limit: u64, burst: u64| {
        format!("refill_interval: 10s, refill_amount: {limit}, algorithm: token_bucket, burst: {burst}")
    };
    let goal = Goal { share: 1.0, of: ShareOf::Users };
    for (key, bucket) in
        [("requests_per_unit", &smooth as &dyn Fn(u64, u64) -> String), ("refill_amount", &stepped)]
    {
        let suggestions = suggested(&rule("user", &bucket(100, 50)), &all(), goal);
        let [suggestion] = &*suggestions else { panic!("{suggestions:?}") };
        assert!(suggestion.reaches_goal, "{suggestion:?}");
        let passes = |limit, burst| {
            replayed(rules(&rule("user", &bucket(limit, burst))), None, &mut all()).refused == 0
        };
        let limit = suggestion.limit;
        let burst = suggestion.burst.unwrap();
        assert!(passes(limit, burst) && !passes(limit, burst - 1) && !passes(limit - 1, limit - 1));
        let yaml = suggestion.yaml(goal);
        assert!(yaml.ends_with(&format!("{key}: {limit}\nburst: {burst}\n")), "{yaml}");
    }
}

#[test]
fn concurrency_limit_is_left_out_of_the_search() {
    let rules = [
        rule("user", "unit: minute, requests_per_unit: 1, algorithm: fixed_window"),
        rule("call", "algorithm: concurrency, max_in_flight: 2"),
    ];
    let asked = requests(["user", "call", "call"].map(|key| (0, key, "ann", 1)));
    let suggestions = suggested(&rules.concat(), &asked, Goal { share: 1.0, of: ShareOf::Users });
    let paths: Vec<_> = suggestions.iter().map(|suggestion| &*suggestion.rule).collect();
    assert_eq!(paths, ["shop.user"]);
}

#[test]
fn suggestion_says_if_it_does_not_reach_the_goal() {
    // A queue without places refuses the second of two at one instant, whatever its limit.
    let queue = rule("user", "unit: second, requests_per_unit: 5, algorithm: leaky_queue, burst: 0");
    let goal = Goal { share: 1.0, of: ShareOf::Users };
    let suggestions = suggested(&queue, &requests(vec![(0, "user", "ann", 1); 2]), goal);
    assert!(!suggestions[0].reaches_goal, "{suggestions:?}");
}

#[test]
fn suggestion_warns_of_short_traffic_and_few_users() {
    let of = |users: u64, minutes: u64| {
        let asked = (0..users)
            .map(move |user| (user * minutes * 60_000 / (users - 1), "user", format!("u{user}"), 1));
        Requests(asked.collect(), 0)
    };
    let window = rule("user", "unit: hour, requests_per_unit: 3, algorithm: fixed_window");
    let calendar = rule("user", "unit: day, requests_per_unit: 3, calendar: {timezone: UTC}");
    let short = "the input covers 59m, less than the window of 1h: the limit may be too small";
    let day = "the input covers 1h 40m, less than the window of 24h: the limit may be too small";
    for (rule, users, minutes, share, expected) in [
        (&window, 100, 60, 0.99, vec![]),
        (&window, 100, 59, 0.99, vec![short]),
        (&window, 99, 60, 0.99, vec!["99 users are few: a share of 99 % needs at least 100"]),
        (&window, 19, 60, 1.0, vec!["19 users are few: a share of 100 % needs at least 20"]),
        (&calendar, 20, 100, 1.0, vec![day]),
    ] {
        let goal = Goal { share, of: ShareOf::Users };
        let suggestions = suggested(rule, &of(users, minutes), goal);
        assert_eq!(suggestions[0].warnings, expected);
        let yaml = suggestions[0].yaml(goal);
        assert!(expected.iter().all(|warning| yaml.contains(&format!("\n# {warning}\n"))), "{yaml}");
    }
}
