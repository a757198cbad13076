//! Searches the smallest limits under which a share of the traffic is never refused.

use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;
use tollgate_counter::{
    algorithm::{Admission, Limit, Window},
    named,
};
use tollgate_rules::{Rule, Rules, Trial, Unit, algorithm_keys};

use crate::simulate::{
    progress::Progress,
    stats::{RuleReport, share},
};

/// The fewest users, or requests, of which a share says something about others.
const SAMPLE_MIN: u64 = 20;

named! {
    /// What the share is a share of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ShareOf {
        /// Users, each refused never or at least once.
        Users = "users",
        /// Requests.
        Requests = "requests",
    }
}

/// What the limits are to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Goal {
    /// The share to be reached, from 0 to 1.
    pub(super) share: f64,
    pub(super) of: ShareOf,
}

/// A limit for one rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Suggestion {
    pub(super) rule: String,
    /// The place of the rule in its file.
    pub(super) at: String,
    /// The key of the limit: `requests_per_unit`, or `refill_amount` of a bucket that refills in steps.
    pub(super) key: &'static str,
    pub(super) limit: u64,
    pub(super) burst: Option<u64>,
    /// The share that is never refused with the suggested limits of all rules.
    pub(super) share_passed: f64,
    /// Whether `share_passed` reaches the share that was asked for.
    pub(super) reaches_goal: bool,
    /// Why the traffic may not be enough for this limit.
    pub(super) warnings: Vec<String>,
}

/// Replays the traffic with a trial and returns the outcome for each of these paths.
pub(super) type ReplayTrial<'r> = dyn FnMut(&Trial, &[String]) -> Result<Vec<RuleReport>, String> + 'r;

/// The search for one rule, by bisection: `low` is too small, `high` is large enough or the largest tried.
#[derive(Debug)]
struct Search {
    path: String,
    at: String,
    key: &'static str,
    has_burst: bool,
    is_queue: bool,
    // The burst of the rule, for queues.
    burst: u64,
    // The time over which the limit counts, if that is constant.
    window: Option<Duration>,
    low: u64,
    high: u64,
    // The limit that was found, while the burst is searched.
    limit: Option<u64>,
}

impl Goal {
    fn passed(self, tried: &RuleReport) -> f64 {
        match self.of {
            ShareOf::Users => 1.0 - share(tried.users_refused, tried.users),
            ShareOf::Requests => 1.0 - share(tried.refused, tried.asked),
        }
    }

    fn is_reached(self, tried: &RuleReport) -> bool {
        // A share is a quotient of counts, so equality needs some slack.
        self.passed(tried) >= self.share - 1e-12
    }

    /// Warns of a sample so small that the share leaves none of it out, or that says little about other traffic.
    fn small_sample(self, tried: &RuleReport) -> Option<String> {
        let sample = match self.of {
            ShareOf::Users => tried.users,
            ShareOf::Requests => tried.asked,
        };
        let left_out = 1.0 - self.share;
        let needed = if left_out > 1e-9 { (1.0 / left_out - 1e-6).ceil() as u64 } else { 0 };
        let needed = needed.max(SAMPLE_MIN);
        let of = self.of.name();
        let percent = self.share * 100.0;
        (sample < needed)
            .then(|| format!("{sample} {of} are few: a share of {percent} % needs at least {needed}"))
    }
}

/// The time over which a limit counts, if that is constant; about that of calendar windows.
fn window(limit: &Limit) -> Option<Duration> {
    let unit = match limit.window() {
        Some(Window::Calendar(calendar)) => Unit::from(calendar.unit()),
        Some(Window::Aligned(_)) | None => return limit.period(),
    };
    Some(Duration::from_secs(unit.seconds().into()))
}

/// Warns of traffic that does not fill a window.
fn short_input(window: Option<Duration>, span: Duration) -> Option<String> {
    let window = window.filter(|window| span < *window)?;
    // To whole seconds, unless it is shorter.
    let shown = |time: Duration| {
        let time = if time.as_secs() > 0 { Duration::from_secs(time.as_secs()) } else { time };
        SignedDuration::try_from(time).map_or_else(|_| format!("{time:?}"), |time| format!("{time:#}"))
    };
    let span = shown(span);
    let window = shown(window);
    Some(format!("the input covers {span}, less than the window of {window}: the limit may be too small"))
}

/// The smallest limits of `rules`. While a limit is searched, no rule refuses: so each is found on its own. Then the
/// smallest burst with that limit is searched for buckets and queues. A last replay with all limits checks them.
/// `None` if it is stopped. `span` is the time that the traffic covers.
pub(super) fn suggest(
    rules: &Rules,
    goal: Goal,
    span: Duration,
    progress: &Progress,
    replay: &mut ReplayTrial<'_>,
) -> Result<Option<Vec<Suggestion>>, String> {
    let mut searches: Vec<_> =
        rules.domains().flat_map(|domain| domain.rules()).filter_map(Search::new).collect();
    let paths = |searches: &[Search]| searches.iter().map(|search| search.path.clone()).collect::<Vec<_>>();
    let shadow = Trial { shadow_mode: true, ..Trial::default() };
    let tried = replay(&shadow, &paths(&searches))?;
    for (search, tried) in searches.iter_mut().zip(&tried) {
        // A limit of all hits refuses none of them.
        search.high = tried.hits;
    }
    searches.retain(|search| search.high > 0);
    bisect(&mut searches, goal, progress, replay)?;
    for search in &mut searches {
        search.limit = Some(search.high);
        (search.low, search.high) = match (search.has_burst, search.is_queue) {
            (false, _) => (0, 0),
            (true, true) => (0, search.burst),
            (true, false) => (0, search.high),
        };
    }
    bisect(&mut searches, goal, progress, replay)?;
    let checked = Trial {
        numbers: searches.iter().map(|search| search.numbers_with(search.high)).collect(),
        shadow_mode: false,
    };
    let tried = replay(&checked, &paths(&searches))?;
    let suggestion = |(search, tried): (&Search, &RuleReport)| {
        let (limit, burst) = search.limit_and_burst(search.high);
        Suggestion {
            rule: search.path.clone(),
            at: search.at.clone(),
            key: search.key,
            limit,
            burst,
            share_passed: goal.passed(tried),
            reaches_goal: goal.is_reached(tried),
            warnings: short_input(search.window, span).into_iter().chain(goal.small_sample(tried)).collect(),
        }
    };
    let suggestions = searches.iter().zip(&tried).map(suggestion).collect();
    Ok((!progress.is_stopped()).then_some(suggestions))
}

/// Halves the range of all searches at once, one replay for each step.
fn bisect(
    searches: &mut [Search],
    goal: Goal,
    progress: &Progress,
    replay: &mut ReplayTrial<'_>,
) -> Result<(), String> {
    let paths: Vec<_> = searches.iter().map(|search| search.path.clone()).collect();
    while !progress.is_stopped() && searches.iter().any(Search::is_open) {
        let middles: Vec<_> = searches.iter().map(Search::middle).collect();
        let numbers = searches.iter().zip(&middles).map(|(search, middle)| search.numbers_with(*middle));
        let trial = Trial { numbers: numbers.collect(), shadow_mode: true };
        let tried = replay(&trial, &paths)?;
        for ((search, middle), tried) in searches.iter_mut().zip(middles).zip(&tried) {
            match (search.is_open(), goal.is_reached(tried)) {
                (false, _) => {}
                (true, true) => search.high = middle,
                (true, false) => search.low = middle,
            }
        }
    }
    Ok(())
}

impl Search {
    /// `None` for rules without a number to search: unlimited ones, and those that count calls under way, of whose ends
    /// the traffic says nothing.
    fn new(rule: &Rule) -> Option<Self> {
        let limit = rule.limit()?;
        let is_queue = match limit.admission() {
            Admission::AtOnce => false,
            Admission::Delayed => true,
            Admission::InFlight => return None,
        };
        let keys = algorithm_keys(limit);
        let has = |name| keys.iter().any(|(key, _)| *key == name);
        Some(Self {
            path: rule.path.to_string(),
            at: rule.location.to_string(),
            key: if has("refill_amount") { "refill_amount" } else { "requests_per_unit" },
            has_burst: has("burst"),
            is_queue,
            window: window(limit),
            // A full queue holds one that leaves at once.
            burst: limit.allowance().saturating_sub(1),
            low: 0,
            high: 0,
            limit: None,
        })
    }

    fn is_open(&self) -> bool {
        self.high.saturating_sub(self.low) > 1
    }

    fn middle(&self) -> u64 {
        if self.is_open() { self.low + (self.high - self.low) / 2 } else { self.high }
    }

    /// The limit and the burst with this number, which is that of the limit, or of the burst once the limit is found.
    fn limit_and_burst(&self, number: u64) -> (u64, Option<u64>) {
        match (self.limit, self.has_burst, self.is_queue) {
            (Some(limit), true, _) => (limit, Some(number)),
            (Some(limit), false, _) => (limit, None),
            // A bucket of one unit's worth.
            (None, true, false) => (number, Some(number)),
            (None, true, true) | (None, false, _) => (number, None),
        }
    }

    fn numbers_with(&self, number: u64) -> (String, Vec<(&'static str, u64)>) {
        let (limit, burst) = self.limit_and_burst(number);
        let burst = burst.map(|burst| ("burst", burst));
        (self.path.clone(), [(self.key, limit)].into_iter().chain(burst).collect())
    }
}

impl Suggestion {
    /// The keys to replace in the `rate_limit` of the rule.
    pub(super) fn yaml(&self, goal: Goal) -> String {
        let percent = self.share_passed * 100.0;
        let reached = if self.reaches_goal { "" } else { ", less than asked for" };
        let of = goal.of.name();
        let mut text =
            format!("# {} at {}: {percent:.3} % of {of} never refused{reached}\n", self.rule, self.at);
        text.extend(self.warnings.iter().map(|warning| format!("# {warning}\n")));
        text.push_str(&format!("{}: {}\n", self.key, self.limit));
        if let Some(burst) = self.burst {
            text.push_str(&format!("burst: {burst}\n"));
        }
        text
    }
}
