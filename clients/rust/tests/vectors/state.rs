//! Runs the deny cache, and the state machine of slices, at the instants of the vectors.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::notation::{
    Answer, Asked, ClientFields, SliceFields, assert_covers, describe, millis, wire_duration,
};
use crate::{
    Client, Code, Decision, InvalidRequest, NoAnswer, Options, Request, Reservation, Settlement, Source,
    deny_cache::DenyCache,
    request::{CounterKey, KeyHasher},
    slice_table::{Actions, End, SliceTable},
    v1::{self, LimitStatus, answer::Verdict},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheVector {
    name: String,
    #[serde(default)]
    options: ClientFields,
    steps: Vec<CacheStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheStep {
    at: u64,
    check: Option<Asked>,
    denied: Option<Value>,
    refuse: Option<Asked>,
    sent: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    refund: Option<Asked>,
    begin: Option<Asked>,
    end: Option<Asked>,
}

pub(super) fn replay_cache(vector: CacheVector) {
    println!("{}", vector.name);
    let options = vector.options.options();
    let cache = DenyCache::new(options.deny_cache_keys, options.deny_cache_max);
    let (hasher, start, mut ends) = (KeyHasher::default(), Instant::now(), VecDeque::new());
    let key_of = |asked: &Asked| hasher.key_of(&asked.request);
    for step in vector.steps {
        let now = start + millis(step.at);
        if let Some(asked) = &step.refuse {
            let (wait, sent) = (step.retry_after_ms, start + millis(step.sent.unwrap()));
            let refusal = refusal(wait, step.reset_after_ms.or(wait));
            cache.begin(key_of(asked)).refuse(asked.request.hits_of_each(), &refusal, sent);
        }
        if let Some(asked) = &step.refund {
            cache.refund(key_of(asked), now);
        }
        if let Some(asked) = &step.begin {
            ends.push_back(cache.begin(key_of(asked)));
        }
        if step.end.is_some() {
            drop(ends.pop_front().unwrap());
        }
        if let Some(asked) = &step.check {
            let denied = cache.denied(key_of(asked), &asked.request.hits_of_each(), now);
            match step.denied.unwrap() {
                Value::Bool(expected) => assert_eq!(denied.is_some(), expected, "at {}", step.at),
                expected => {
                    let decision = describe(&denied.unwrap());
                    assert_eq!(decision["source"], "deny_cache");
                    assert_covers(&decision, &expected);
                }
            }
        }
    }
}

/// A refusal by one limit.
fn refusal(retry_after_ms: Option<u64>, reset_after_ms: Option<u64>) -> Decision {
    let (retry_after, reset_after) = (wire_duration(retry_after_ms), wire_duration(reset_after_ms));
    let limit = LimitStatus { refused: true, reset_after, retry_after, ..LimitStatus::default() };
    let verdict = Verdict::Denied.into();
    Decision::of_answer(v1::Answer { verdict, retry_after, limits: vec![limit], ..v1::Answer::default() })
        .unwrap()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SliceVector {
    name: String,
    #[serde(default)]
    options: SliceFields,
    steps: Vec<SliceStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SliceStep {
    at: u64,
    check: Option<Asked>,
    remaining: Option<u64>,
    reset_after_ms: Option<u64>,
    reserved: Option<Value>,
    #[serde(default = "yes")]
    held: bool,
    ended: Option<String>,
    #[serde(default)]
    due: bool,
    #[serde(default)]
    close: bool,
    #[serde(default = "red")]
    key: Asked,
    #[serde(default)]
    calls: Vec<String>,
}

const fn yes() -> bool {
    true
}

fn red() -> Asked {
    serde_json::from_value("red".into()).unwrap()
}

struct SliceRun {
    table: SliceTable,
    client: Client,
    start: Instant,
    /// The instant of the last step.
    last: Instant,
    /// Those under way, of each key.
    ends: HashMap<CounterKey, VecDeque<Arc<End>>>,
}

/// Reservations belong to a client, which makes no call.
pub(super) fn replay_slices(vector: SliceVector) {
    println!("{}", vector.name);
    let client = Client::new("127.0.0.1:1", Options::default()).unwrap();
    let (table, start) = (SliceTable::new(vector.options.options()), Instant::now());
    let mut run = SliceRun { table, client, start, last: start, ends: HashMap::new() };
    for step in vector.steps {
        run.step(&step);
    }
}

impl SliceRun {
    fn step(&mut self, step: &SliceStep) {
        let asked = step.check.as_ref().unwrap_or(&step.key);
        let (key, now) = (self.client.0.hasher.key_of(&asked.request), self.start + millis(step.at));
        let Actions { ends, reserve, lost } = self.actions(step, &asked.request, key, now);
        let end = |end: &Arc<End>| end.spent.map_or("cancel".to_owned(), |spent| format!("settle {spent}"));
        let mut begun: Vec<_> = ends.iter().map(end).collect();
        begun.extend(reserve.map(|_| "reserve".to_owned()));
        begun.extend((lost > 0).then(|| format!("lost {lost}")));
        assert_eq!(begun, step.calls, "at {}", step.at);
        self.ends.entry(key).or_default().extend(ends);
        self.last = now;
    }

    fn actions(&mut self, step: &SliceStep, request: &Request, key: CounterKey, now: Instant) -> Actions {
        if step.check.is_some() {
            let serves = self.table.serves(request);
            let (decision, actions) =
                if serves { self.table.check(key, request, now) } else { (None, Actions::default()) };
            let limit = decision.as_ref().map(|decision| &decision.limits[0]);
            assert_eq!(limit.map(|limit| limit.remaining), step.remaining, "at {}", step.at);
            assert!(decision.as_ref().is_none_or(|decision| decision.source == Source::Prepaid));
            if let Some(reset) = step.reset_after_ms {
                assert_eq!(limit.unwrap().reset_after, millis(reset), "at {}", step.at);
            }
            return actions;
        }
        if let Some(answer) = &step.reserved {
            let result = self.reservation(answer, step.held, request);
            return self.table.reserved(key, result, now);
        }
        if let Some(answer) = &step.ended {
            let end = self.ends.get_mut(&key).and_then(VecDeque::pop_front).unwrap();
            let result = match answer.as_str() {
                "ok" => Ok(Settlement::default()),
                "no_answer" => Err(no_answer().into()),
                "invalid" => Err(InvalidRequest(String::new()).into()),
                other => panic!("unknown answer: {other}"),
            };
            return self.table.ended(key, &end, &result, now);
        }
        if step.close {
            let all = self.table.close(now).into_iter().find(|(each, _)| *each == key);
            return all.map(|(_, actions)| actions).unwrap_or_default();
        }
        assert!(step.due, "unknown step");
        assert_eq!(self.table.next_due(key, self.last), Some(now), "at {}", step.at);
        self.table.due(key, now)
    }

    /// What the client makes of an answer to a reservation.
    fn reservation(
        &self,
        answer: &Value,
        held: bool,
        request: &Request,
    ) -> Result<Reservation, InvalidRequest> {
        let (decision, id) = match answer.as_str() {
            Some("invalid") => return Err(InvalidRequest(String::new())),
            Some("no_answer") => (Decision::default_of(true, no_answer()), "chosen"),
            _ => {
                let answer: Answer = serde_json::from_value(answer.clone()).unwrap();
                let decision = Decision::of_answer(answer.0).unwrap();
                let id = if decision.allowed && held { "held" } else { "" };
                (decision, id)
            }
        };
        let (client, request) = (self.client.clone(), request.clone());
        Ok(Reservation { decision, client, request, id: id.to_owned() })
    }
}

fn no_answer() -> NoAnswer {
    NoAnswer { code: Code::Unavailable, message: String::new() }
}
