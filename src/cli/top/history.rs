//! What the samples so far tell: rates of the last seconds, and the last five minutes.

use std::collections::{HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::cli::top::sample::{Counted, EachRule, Past, Requests, Sample, Text, Top, Totals};

/// The time that charts show.
pub(super) const KEPT: SignedDuration = SignedDuration::from_mins(5);
/// Rates are means of this time.
pub(super) const RATE: SignedDuration = SignedDuration::from_secs(10);
/// A sample that follows the last one sooner is left out, which bounds the number of samples that are kept.
const APART_MIN: SignedDuration = SignedDuration::from_millis(100);
/// The maximum number of points up to which the past of a server is added.
const POINTS_MAX: usize = 4_000;
/// The number of rules from which on those without recent decisions are dropped.
const RULES_MAX: usize = 5_000;
/// The maximum number of rules, and of keys, that are taken from a sample.
const TAKEN_MAX: usize = 1_000;

/// What is known of one server: the points that it kept, and what its samples tell.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Those of the time of a rate, and the one before it.
    samples: VecDeque<Sample>,
    // Invariant: instants increase.
    points: VecDeque<Point>,
    /// What the next point is counted from.
    counted: Option<Counted>,
    rules_hash: Text,
    rules: HashMap<usize, Rule>,
    keys: HashMap<Text, Seen<u64>>,
}

/// Decisions each second from one sample to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub from: Timestamp,
    pub at: Timestamp,
    pub passed: f64,
    pub refused: f64,
}

/// The time to decide up to which a part of the requests was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Latency {
    /// In seconds.
    UpTo(f64),
    /// Above the last bound, in seconds.
    Above(f64),
}

/// A rule or a key: a count since the start, and what it grew by each second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Activity {
    pub name: String,
    /// Decisions of a rule, denials of a key.
    pub total: u64,
    pub rate: f64,
    /// Refusals each second.
    pub refused: f64,
}

#[derive(Debug, Default)]
struct Rule {
    name: Option<Text>,
    seen: Seen<Totals>,
}

/// The values of one figure in the time of a rate, and the one before it.
#[derive(Debug)]
struct Seen<T>(VecDeque<(Timestamp, T)>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Copy> Seen<T> {
    fn push(&mut self, at: Timestamp, value: T) {
        self.0.push_back((at, value));
        trim(&mut self.0, at, RATE, |(at, _)| *at);
    }

    fn last(&self) -> Option<(Timestamp, T)> {
        self.0.back().copied()
    }

    /// The growth of `figure` each second, until `now`.
    fn rate(&self, now: Timestamp, figure: impl Fn(T) -> u64) -> f64 {
        // The value at the begin of the time: that of the last entry before it.
        let first = self.0.iter().rfind(|(at, _)| now.duration_since(*at) >= RATE).or_else(|| self.0.front());
        let (Some((from, first)), Some((_, last))) = (first, self.0.back()) else { return 0.0 };
        let time = seconds(now, *from).clamp(1.0, RATE.as_secs_f64());
        growth(figure(*first), figure(*last)) / time
    }
}

impl History {
    /// Adds the points that the server kept, as far as no sample told them: those from before the first sample, and from
    /// while there was no stream.
    pub(super) fn add_past(&mut self, past: &Past) {
        let Some(newest) = past.points.last() else { return };
        if self.counted.is_some_and(|last| last.at <= newest.at && is_reset(&last, newest)) {
            *self = Self::default();
        }
        let (first, last) =
            (self.points.front().map(|point| point.at), self.points.back().map(|point| point.at));
        let is_new = |point: &Point| {
            first.is_none_or(|first| point.at < first) || last.is_none_or(|last| last < point.at)
        };
        let points = past.points.windows(2).filter_map(|pair| Point::between(&pair[0], &pair[1]));
        let room = POINTS_MAX.saturating_sub(self.points.len());
        self.points.extend(points.filter(is_new).take(room));
        self.points.make_contiguous().sort_by_key(|point| point.at);
        if self.counted.is_none_or(|last| last.at < newest.at) {
            self.counted = Some(*newest);
        }
    }

    /// Adds a sample. One of a process that was started again, or whose clock was put right, forgets all before it.
    pub(super) fn add(&mut self, mut sample: Sample) {
        let counted = sample.counted();
        if self.counted.is_some_and(|last| is_reset(&last, &counted)) {
            *self = Self::default();
        }
        let at = sample.at;
        if self.latest().is_some_and(|last| at.duration_since(last.at) < APART_MIN) {
            return;
        }
        let before = self.counted.replace(counted);
        self.points.extend(before.and_then(|before| Point::between(&before, &counted)));
        trim(&mut self.points, at, KEPT, |point| point.at);
        if let Some(each) = sample.each_rule.take() {
            self.add_rules(each, at);
        }
        self.add_keys(std::mem::take(&mut sample.top), at);
        self.samples.push_back(sample);
        trim(&mut self.samples, at, RATE, |sample| sample.at);
    }

    pub(super) fn latest(&self) -> Option<&Sample> {
        self.samples.back()
    }

    pub(super) fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter()
    }

    /// The growth of a figure each second; `None` with one sample.
    pub(super) fn growth(&self, figure: impl Fn(&Sample) -> u64) -> Option<f64> {
        let (first, last) = self.span()?;
        Some(growth(figure(first), figure(last)) / seconds(last.at, first.at))
    }

    /// The time to decide of a part of the requests; `None` if there were none.
    pub(super) fn latency(&self, part: f64) -> Option<Latency> {
        let (first, last) = self.span()?;
        quantile(&first.requests, &last.requests, part)
    }

    /// The rules with decisions, as far as they were seen.
    pub(super) fn rules(&self) -> Vec<Activity> {
        let Some(now) = self.latest().map(|sample| sample.at) else { return Vec::new() };
        let named = self.rules.values().filter_map(|rule| Some((rule.name.as_ref()?, &rule.seen)));
        let activity = named.filter_map(|(name, seen)| {
            Some(Activity {
                name: name.0.clone(),
                total: seen.last()?.1.decided,
                rate: seen.rate(now, |totals| totals.decided),
                refused: seen.rate(now, |totals| totals.refused),
            })
        });
        activity.collect()
    }

    /// The keys that were denied most often since the start.
    pub(super) fn keys(&self) -> Vec<Activity> {
        let Some(now) = self.latest().map(|sample| sample.at) else { return Vec::new() };
        let activity = self.keys.iter().filter_map(|(key, seen)| {
            let rate = seen.rate(now, |count| count);
            Some(Activity { name: key.0.clone(), total: seen.last()?.1, rate, refused: rate })
        });
        activity.collect()
    }

    fn span(&self) -> Option<(&Sample, &Sample)> {
        if self.samples.len() < 2 {
            return None;
        }
        Some((self.samples.front()?, self.samples.back()?))
    }

    fn add_rules(&mut self, each: EachRule, at: Timestamp) {
        if each.hash != self.rules_hash {
            self.rules.clear();
            self.rules_hash = each.hash;
        }
        for (index, totals) in each.changed.into_iter().take(TAKEN_MAX) {
            self.rules.entry(index).or_default().seen.push(at, totals);
        }
        for (index, name) in each.busiest.into_iter().take(TAKEN_MAX) {
            if let Some(rule) = self.rules.get_mut(&index) {
                rule.name = Some(name);
            }
        }
        if self.rules.len() > RULES_MAX {
            self.rules
                .retain(|_, rule| rule.seen.last().is_some_and(|(last, _)| at.duration_since(last) < RATE));
        }
    }

    fn add_keys(&mut self, top: Top, at: Timestamp) {
        let mut before = std::mem::take(&mut self.keys);
        for denied in top.denied.into_iter().take(TAKEN_MAX) {
            let mut seen = before.remove(&denied.key).unwrap_or_default();
            seen.push(at, denied.count);
            self.keys.insert(denied.key, seen);
        }
    }
}

impl Point {
    /// `None` if no time is between them.
    fn between(before: &Counted, now: &Counted) -> Option<Self> {
        let time = seconds(now.at, before.at);
        (time > 0.0).then(|| Self {
            from: before.at,
            at: now.at,
            passed: growth(before.decisions.ok, now.decisions.ok) / time,
            refused: growth(before.decisions.over_limit, now.decisions.over_limit) / time,
        })
    }
}

/// Whether the process was started again, or its clock was put back.
fn is_reset(before: &Counted, now: &Counted) -> bool {
    now.at < before.at || now.requests.count < before.requests.count
}

/// Drops what is older than `span`, but for one entry, which is the base of the rate.
fn trim<T>(entries: &mut VecDeque<T>, now: Timestamp, span: SignedDuration, at: impl Fn(&T) -> Timestamp) {
    while entries.get(1).is_some_and(|second| now.duration_since(at(second)) >= span) {
        entries.pop_front();
    }
}

/// The duration of a part of the requests between two samples, from their cumulative buckets.
fn quantile(before: &Requests, now: &Requests, part: f64) -> Option<Latency> {
    let count = growth(before.count, now.count);
    if count <= 0.0 {
        return None;
    }
    let mut up_to = now.up_to.iter().zip(&before.up_to);
    let found = up_to.find(|((_, now), (_, before))| growth(*before, *now) >= part * count);
    Some(match found {
        Some(((bound, _), _)) => Latency::UpTo(*bound),
        None => Latency::Above(now.up_to.last().map_or(0.0, |(bound, _)| *bound)),
    })
}

fn growth(before: u64, now: u64) -> f64 {
    now.saturating_sub(before) as f64
}

fn seconds(now: Timestamp, before: Timestamp) -> f64 {
    now.duration_since(before).as_secs_f64()
}

#[cfg(test)]
mod tests;
