//! Limits of their own in the simulation, as their callers know them.

use tollgate_counter::{
    algorithm::{Limit, OwnTerms, laws::every_limit},
    descriptor::Key,
    time::SECOND,
};
use tollgate_store::{CounterOperation, OwnLimitChange, OwnLimitOutcome, OwnLimitRefusal};

use crate::sim::{
    keys::{self, LIMIT, LONG},
    record::{Fault, Record, UNSURE_FOR},
};

/// The number of the first key with limits of its own.
const FIRST_KEY: usize = 2_000_000;
/// A change without an answer is applied within this time, or not at all.
const LATE_MAX: u64 = 3 * SECOND;

/// The keys with limits of their own, and what their callers were told.
pub(super) struct OwnLimits {
    pub(super) keys: Vec<OwnKey>,
    /// The first answer that is wrong although no fault explains it.
    pub(super) wrong: Option<String>,
    /// Changes that were acknowledged in these times may be lost.
    pub(super) lost: Vec<(u64, u64)>,
}

/// A key whose limit of its own changes.
pub(super) struct OwnKey {
    pub(super) key: Key,
    /// The limit of the rule.
    pub(super) limit: Limit,
    /// In the order in which they were called. Each displays its index.
    changes: Vec<Change>,
    /// When hits that passed at the counter were called and answered.
    passed: Vec<(u64, u64)>,
}

/// A change of a limit of its own.
#[derive(Clone, Debug)]
struct Change {
    /// `None` for the number of the rule.
    number: Option<u64>,
    called_at: u64,
    state: ChangeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeState {
    Open,
    Acknowledged {
        at: u64,
        version: u64,
    },
    /// The change may apply or not.
    Unknown {
        at: u64,
    },
    Refused,
}

/// A decision on a key with a limit of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnDecision {
    /// What the limit of its own displays that has decided.
    pub(super) displayed: Option<u64>,
    pub(super) passes: bool,
    pub(super) called_at: u64,
    pub(super) answered_at: u64,
}

impl Default for OwnLimits {
    fn default() -> Self {
        let counts_hits =
            |limit: &Limit| matches!(limit, Limit::Classic(_) | Limit::FixedWindow(_) | Limit::SlidingLog(_));
        let limits = every_limit(LIMIT, LONG).into_iter().filter(counts_hits).take(3);
        let own_key = |(number, limit)| OwnKey {
            key: keys::key(FIRST_KEY + number),
            limit,
            changes: Vec::new(),
            passed: Vec::new(),
        };
        Self { keys: limits.enumerate().map(own_key).collect(), wrong: None, lost: Vec::new() }
    }
}

impl OwnLimits {
    /// The index of a key with limits of its own.
    pub(super) fn index(&self, key: Key) -> Option<usize> {
        self.keys.iter().position(|own| own.key == key)
    }

    /// Begins a change of the key with this index. Returns the number of the change, and its operation.
    pub(super) fn begin(&mut self, key: usize, number: Option<u64>, now: u64) -> (usize, CounterOperation) {
        let OwnKey { changes, limit, .. } = &mut self.keys[key];
        changes.push(Change { number, called_at: now, state: ChangeState::Open });
        let change = changes.len() - 1;
        let position = every_limit(LIMIT, LONG).iter().position(|other| other == limit);
        let limit = |number| every_limit(number, LONG).swap_remove(position.expect("it is one of them"));
        let terms = number.map(|number| OwnTerms { limit: limit(number), requests_per_unit: change as u64 });
        let record = Box::default();
        let change_of_limit = OwnLimitChange { terms, expires_after: None, record, replaces: None };
        (change, CounterOperation::SetOwnLimit(Box::new(change_of_limit)))
    }

    /// The answer to a change; `None` if there is none.
    pub(super) fn finish(&mut self, key: usize, change: usize, answer: Option<&OwnLimitOutcome>, now: u64) {
        let version = |outcome: &OwnLimitOutcome| outcome.state.as_ref().map(|state| state.version);
        self.keys[key].changes[change].state = match answer.map(|outcome| (outcome.refusal, version(outcome)))
        {
            Some((None, Some(version))) => ChangeState::Acknowledged { at: now, version },
            Some((Some(OwnLimitRefusal::NoMemory | OwnLimitRefusal::OtherVersion), _)) => {
                ChangeState::Refused
            }
            None | Some((None | Some(OwnLimitRefusal::NotBackedUp), _)) => ChangeState::Unknown { at: now },
        };
    }

    /// Checks a decision of the counter, of which `number` is the number in the faults.
    pub(super) fn decided(
        &mut self,
        key: usize,
        number: usize,
        decision: OwnDecision,
        more: u64,
        record: &Record,
    ) {
        let wrong = self.wrong_decision(key, number, decision, more, record);
        if self.wrong.is_none() {
            self.wrong = wrong.map(|wrong| format!("own limit {key}: {wrong}: {decision:?}"));
        }
        if decision.passes {
            self.keys[key].passed.push((decision.called_at, decision.answered_at));
        }
    }

    /// What is wrong with a decision, if anything is.
    fn wrong_decision(
        &self,
        key: usize,
        number: usize,
        decision: OwnDecision,
        more: u64,
        record: &Record,
    ) -> Option<String> {
        let OwnDecision { displayed, passes, called_at, answered_at } = decision;
        if record.is_apart(called_at, answered_at) {
            return None;
        }
        self.wrong_number(key, number, displayed, called_at, record).or_else(|| {
            let OwnKey { changes, passed, .. } = &self.keys[key];
            let change = displayed.and_then(|change| changes.get(change as usize));
            let most = change.and_then(|change| change.number).unwrap_or(LIMIT) + more;
            let is_counted = |(from, to): &&(u64, u64)| {
                let is_forgotten = |fault: &Fault| {
                    fault.keys.contains(&number)
                        && fault.forgets.is_some_and(|(first, last)| *from <= last && first <= *to)
                };
                *to <= called_at && !record.faults.iter().any(is_forgotten)
            };
            let counted = passed.iter().filter(is_counted).count() as u64;
            (passes && most <= counted)
                .then(|| format!("a hit passes after {counted}, the most is {most}; {changes:?}"))
        })
    }

    /// Whether a limit of its own that decides on calls from `called_at` on has been replaced before.
    pub(super) fn wrong_number(
        &self,
        key: usize,
        number: usize,
        displayed: Option<u64>,
        called_at: u64,
        record: &Record,
    ) -> Option<String> {
        let changes = &self.keys[key].changes;
        let all_lost = |fault: &&Fault| fault.keys.contains(&number);
        let lost_until = record.faults.iter().filter(all_lost).filter_map(|fault| match fault.forgets {
            Some((0, until)) => Some(until),
            Some(_) | None => None,
        });
        let lost_until = lost_until.max().unwrap_or_default();
        let is_lost =
            |at: u64| at <= lost_until || self.lost.iter().any(|(from, to)| (*from..=*to).contains(&at));
        let versions = changes.iter().filter_map(|change| match change.state {
            ChangeState::Acknowledged { at, version } if at <= called_at && !is_lost(at) => {
                Some((version, change.called_at))
            }
            _ => None,
        });
        let newest = versions.max();
        let is_possible = |change: &Change| match change.state {
            ChangeState::Acknowledged { version, .. } => newest.is_none_or(|(newest, _)| newest <= version),
            ChangeState::Open => true,
            ChangeState::Unknown { at } => {
                let arrives_by = record.arrives_by(change.called_at, at).saturating_add(LATE_MAX);
                newest.is_none_or(|(_, later)| later <= arrives_by)
            }
            ChangeState::Refused => false,
        };
        let is_possible = match displayed {
            Some(change) => changes.get(change as usize).is_some_and(is_possible),
            None => {
                newest.is_none()
                    || changes.iter().any(|change| change.number.is_none() && is_possible(change))
            }
        };
        (!is_possible).then(|| format!("{displayed:?} decides in place of a later one: {changes:?}"))
    }
}

impl Record {
    /// When a message of a call at `from` that had no answer until `to` arrives: one across a cut, when that ends.
    fn arrives_by(&self, from: u64, to: u64) -> u64 {
        match &self.cut {
            Some(cut) if from <= cut.healed_at && cut.at <= to.saturating_add(SECOND) => {
                to.max(cut.healed_at)
            }
            Some(_) | None => to,
        }
    }

    /// Whether two sides of a partition may have decided in this time.
    fn is_apart(&self, from: u64, to: u64) -> bool {
        self.cut.as_ref().is_some_and(|cut| {
            cut.at.saturating_sub(SECOND) <= to && from <= cut.healed_at.saturating_add(UNSURE_FOR)
        })
    }
}
