//! Decides the requests of a source with the limiter of the service, under the time of the requests.

use std::{
    hash::{Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_counter::{
    algorithm::Operation,
    descriptor::{self, Entry, Secret},
    metrics::{TopKey, TopKeys},
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter::{AnswerOrPlan, Descriptor, Limiter, LimiterMetrics, Request};
use tollgate_rules::{ActiveRules, Rule, Rules};
use tollgate_store::{Memory, OnFull};

use crate::simulate::{
    decisions::{Decided, DecisionsFile, RuleOutcome},
    event::{Event, Source},
    progress::Progress,
    stats::{RuleUse, Timeline, Users},
};

/// The number of users refused most often that are kept.
const TOP_USERS: usize = 1_000;

/// What is counted as a refusal by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusals {
    /// The refusals that callers see.
    Answered,
    /// The refusals that callers see and those by rules in shadow mode.
    WithShadow,
}

/// The rules of all sides by their paths, in file order.
#[derive(Debug, Default)]
pub(super) struct RuleTable {
    pub(super) rules: Vec<RuleEntry>,
    by_path: FxHashMap<String, usize>,
}

/// A rule of any side.
#[derive(Debug)]
pub(super) struct RuleEntry {
    pub(super) path: String,
    pub(super) location: String,
}

impl RuleTable {
    /// The index of the rule with this path.
    pub(super) fn find(&self, path: &str) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    fn index(&mut self, rule: &Rule) -> usize {
        if let Some(index) = self.by_path.get(&*rule.path) {
            return *index;
        }
        let index = self.rules.len();
        self.by_path.insert(rule.path.to_string(), index);
        self.rules.push(RuleEntry { path: rule.path.to_string(), location: rule.location.to_string() });
        index
    }
}

/// One set of rules with its own counters and its own time.
pub(super) struct Side {
    limiter: Limiter,
    clock: Clock,
    metrics: Arc<LimiterMetrics>,
    refusals: Refusals,
    // The index of each rule in the table, by the address of the rule, which is constant: the rules are not replaced.
    indices: FxHashMap<usize, usize>,
    // Those of the table; `None` if this side does not have the rule.
    rules: Vec<Option<RuleUse>>,
    /// Descriptors that match no rule.
    pub(super) unmatched: u64,
    pub(super) timeline: Timeline,
    last: Decided,
}

impl Side {
    /// Decides by `rules` with new counters in at most `memory_limit` bytes.
    pub(super) fn new(rules: Rules, table: &mut RuleTable, memory_limit: u64, refusals: Refusals) -> Self {
        let clock = Clock::manual(Timestamp::EPOCH);
        let active_rules = Arc::new(ActiveRules::default());
        // A constant secret, so that a run can be repeated exactly.
        active_rules.set_secret(Secret::from_bytes([0; 16]));
        active_rules.replace(rules, clock.now());
        let mut indices = FxHashMap::default();
        let mut rules = Vec::new();
        let current = active_rules.current();
        for rule in current.rules().into_iter().flat_map(Rules::domains).flat_map(|domain| domain.rules()) {
            let index = table.index(rule);
            indices.insert(address(rule), index);
            rules.resize(rules.len().max(index + 1), None);
            rules[index] = Some(RuleUse { limit: rule.limit().cloned(), ..RuleUse::default() });
        }
        drop(current);
        let metrics = Arc::new(LimiterMetrics::new(TOP_USERS));
        let memory = Arc::new(Memory::new(memory_limit, OnFull::Deny));
        let limiter = Limiter::new(active_rules, memory, clock.clone()).with_metrics(metrics.clone());
        Self {
            limiter,
            clock,
            metrics,
            refusals,
            indices,
            rules,
            unmatched: 0,
            timeline: Timeline::default(),
            last: Decided::default(),
        }
    }

    /// Decides a request at `now`, which never decreases.
    pub(super) fn decide(&mut self, event: &Event, now: Timestamp) -> Result<&Decided, String> {
        self.clock.set(now);
        let entries: SmallVec<[Entry<'_>; 8]> = event.entries().collect();
        let descriptors = event.descriptors().map(|(range, hits)| Descriptor {
            entries: &entries[range],
            operation: Operation::Charge(hits),
            limit: None,
        });
        let request = Request::new(event.domain(), descriptors, None).map_err(|error| error.to_string())?;
        let view = self.limiter.view();
        let answer =
            view.decide(&request).and_then(AnswerOrPlan::answer).map_err(|error| error.to_string())?;
        self.timeline.add(now, answer.passes);
        self.last.passes = answer.passes;
        self.last.retry_after = answer.retry_after(self.limiter.modes(), &request);
        self.last.delay = answer.delay;
        self.last.outcomes.clear();
        for (status, (_, hits)) in answer.statuses.iter().zip(event.descriptors()) {
            let is_refused =
                !status.passes || (self.refusals == Refusals::WithShadow && status.refused_in_shadow);
            let rule = status.rule.and_then(|rule| self.indices.get(&address(rule))).copied();
            match rule.and_then(|index| self.rules[index].as_mut()) {
                Some(rule) => rule.add(hits, is_refused, status, answer.delay),
                None => self.unmatched += 1,
            }
            let rule = rule.filter(|index| self.rule(*index).is_some_and(|rule| rule.limit.is_some()));
            self.last.outcomes.push(RuleOutcome { rule, is_refused, remaining: status.remaining });
        }
        Ok(&self.last)
    }

    /// Whether a descriptor has matched a rule.
    fn has_decided(&self) -> bool {
        self.rules.iter().flatten().any(|rule| rule.asked > 0)
    }

    /// The use of the rule with this index; `None` if this side does not have it.
    pub(super) fn rule(&self, index: usize) -> Option<&RuleUse> {
        self.rules.get(index)?.as_ref()
    }

    /// Descriptors as text, with the number of their refusals, the most frequent first.
    pub(super) fn refused_most(&self, max: usize) -> Vec<TopKey> {
        self.metrics.denied.entries(max)
    }
}

fn address(rule: &Rule) -> usize {
    std::ptr::from_ref(rule).addr()
}

/// One or two sides that decide the same traffic.
pub(super) struct Replay {
    pub(super) table: RuleTable,
    pub(super) first: Side,
    pub(super) second: Option<Side>,
    pub(super) users: Users,
    /// For each rule, the requests that only the first side, and only the second side refuses.
    pub(super) refused_only: Vec<[u64; 2]>,
    users_refused_only: [TopKeys; 2],
    /// The file into which the decisions of the first side are written.
    pub(super) decisions: Option<DecisionsFile>,
    pub(super) traffic: Traffic,
}

/// The traffic that was replayed.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    pub(super) requests: u64,
    /// The instants of the first and the last request, in the order of the source.
    pub(super) first: Option<Timestamp>,
    pub(super) last: Timestamp,
    /// Requests that are earlier than one before them; they are decided at the time of that one.
    pub(super) out_of_order: u64,
    /// The time that the source took, and that decisions and statistics took.
    pub(super) reading: Duration,
    pub(super) deciding: Duration,
    /// Whether the traffic ended before the end of the source.
    pub(super) is_interrupted: bool,
}

impl Traffic {
    /// The time between the first and the last request.
    pub(super) fn span(&self) -> Duration {
        let nanos = self.first.map_or(0, |first| self.last.as_nanos().saturating_sub(first.as_nanos()));
        Duration::from_nanos(nanos)
    }

    /// The instant at which a request is decided: time does not go back.
    fn arrive(&mut self, at: Timestamp) -> Timestamp {
        self.requests += 1;
        self.first.get_or_insert(at);
        if at < self.last {
            self.out_of_order += 1;
        }
        self.last = self.last.max(at);
        self.last
    }
}

impl Replay {
    pub(super) fn new(table: RuleTable, first: Side, second: Option<Side>, users_max: usize) -> Self {
        let users_refused_only = [(); 2].map(|()| TopKeys::new(TOP_USERS));
        let refused_only = vec![[0; 2]; table.rules.len()];
        let traffic = Traffic::default();
        let users = Users::new(users_max);
        Self { table, first, second, users, refused_only, users_refused_only, decisions: None, traffic }
    }

    /// Whether a descriptor has matched a rule of a side.
    pub(super) fn has_decided(&self) -> bool {
        self.first.has_decided() || self.second.as_ref().is_some_and(Side::has_decided)
    }

    /// The descriptors that one side refuses and the other does not, with the number of these requests.
    pub(super) fn users_refused_only(&self, max: usize) -> [Vec<TopKey>; 2] {
        self.users_refused_only.each_ref().map(|users| users.entries(max))
    }

    /// Decides all requests of `source`, or those before the stop.
    pub(super) fn run(&mut self, source: &mut dyn Source, progress: &Progress) -> Result<(), String> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let start = Instant::now();
            let ahead = source.read_ahead();
            events.resize_with(ahead, Event::default);
            let mut number = 0;
            while number < ahead && source.next(&mut events[number])? {
                number += 1;
            }
            let read = Instant::now();
            for event in &events[..number] {
                let now = self.traffic.arrive(event.at);
                self.decide(event, now, source)?;
            }
            self.traffic.reading += read - start;
            self.traffic.deciding += read.elapsed();
            progress.add_requests(number as u64);
            self.traffic.is_interrupted = number == ahead && progress.is_stopped();
            if number < ahead || self.traffic.is_interrupted {
                return self.decisions.as_mut().map_or(Ok(()), DecisionsFile::finish);
            }
        }
    }

    fn decide(&mut self, event: &Event, now: Timestamp, source: &mut dyn Source) -> Result<(), String> {
        let first = self.first.decide(event, now)?;
        if let Some(decisions) = &mut self.decisions {
            decisions.write(now, first)?;
        }
        if !first.passes {
            source.refused(event, first.retry_after);
        }
        let second = self.second.as_mut().map(|side| side.decide(event, now)).transpose()?;
        let mut entries = event.entries();
        for (index, (range, _)) in event.descriptors().enumerate() {
            let of_first = first.outcomes[index];
            let of_second = second.map(|second| second.outcomes[index]);
            let mut hasher = FxHasher::default();
            for entry in entries.by_ref().take(range.len()) {
                (entry.key, entry.value).hash(&mut hasher);
            }
            let Some(rule) = of_first.rule.or(of_second.and_then(|outcome| outcome.rule)) else { continue };
            let user = hasher.finish();
            let is_refused = [of_first.is_refused, of_second.is_some_and(|outcome| outcome.is_refused)];
            self.users.add(rule, user, is_refused);
            let only = match (is_refused, second) {
                ([true, false], Some(_)) => 0,
                ([false, true], Some(_)) => 1,
                ([true, true] | [false, false], _) | (_, None) => continue,
            };
            self.refused_only[rule][only] += 1;
            self.users_refused_only[only].add(u128::from(user) << 64 | rule as u128, 1, || {
                let entries = event.entries().skip(range.start).take(range.len());
                let entries = descriptor::format(entries.map(|entry| (entry.key, entry.value)));
                format!("{} {entries}", event.domain())
            });
        }
        Ok(())
    }
}
