//! Runs the deny cache, and the state machine of slices, at the instants of the vectors.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::notation::{
    Fields, PATIENCE, answer_of, assert_covers, client_options, describe, request_of, slice_options,
};
use crate::{
    Client, Code, Decision, InvalidRequest, NoAnswer, Options, Request, Reservation, Settlement, Source,
    deny_cache::DenyCache,
    request::{CounterKey, KeyHasher},
    slice_table::{Actions, End, SliceTable},
};

pub(super) fn replay_cache(mut vector: Fields) {
    let options = client_options(vector.options(), PATIENCE);
    let cache = DenyCache::new(options.deny_cache_keys, options.deny_cache_max);
    let (hasher, start, mut ends) = (KeyHasher::default(), Instant::now(), VecDeque::new());
    for value in vector.list("steps") {
        println!("{value}");
        let mut step = Fields::of(value);
        let now = start + step.time("at").unwrap();
        if step.get("clear") == Some(true) {
            cache.clear(now);
            continue;
        }
        let mut request = |name| step.get(name).map(request_of);
        if let Some(request) = request("check") {
            let denied = cache.denied(hasher.key_of(&request), &request.hits_of_each(), now);
            match step.get("denied").unwrap() {
                Value::Bool(expected) => assert_eq!(denied.is_some(), expected),
                expected => assert_covers(&describe(&denied.unwrap()), &expected),
            }
        } else if let Some(request) = request("refuse") {
            let sent = start + step.time("sent").unwrap();
            let wait: Option<u64> = step.get("retry_after_ms");
            let reset = step.get("reset_after_ms").or(wait);
            let limit = json!({"refused": true, "reset_after_ms": reset, "retry_after_ms": wait});
            let answer = json!({"verdict": "denied", "retry_after_ms": wait, "limits": [limit]});
            let decision = Decision::from_answer(answer_of(answer)).unwrap();
            cache.begin(hasher.key_of(&request)).refuse(request.hits_of_each(), &decision, sent);
        } else if let Some(request) = request("refund") {
            cache.refund(hasher.key_of(&request), now);
        } else if let Some(request) = request("begin") {
            ends.push_back(cache.begin(hasher.key_of(&request)));
        } else {
            request("end").expect("a known step");
            drop(ends.pop_front().unwrap());
        }
    }
}

struct SliceRun {
    table: SliceTable,
    /// That of the reservations. It makes no call.
    client: Client,
    /// The instant of the last step.
    last: Instant,
    /// Those under way, of each key.
    ends: HashMap<CounterKey, VecDeque<Arc<End>>>,
}

pub(super) fn replay_slices(mut vector: Fields) {
    let client = Client::new("127.0.0.1:1", Options::default()).unwrap();
    let (table, start) = (SliceTable::new(slice_options(vector.options())), Instant::now());
    let mut run = SliceRun { table, client, last: start, ends: HashMap::new() };
    for value in vector.list("steps") {
        println!("{value}");
        run.step(Fields::of(value), start);
    }
}

impl SliceRun {
    fn step(&mut self, mut step: Fields, start: Instant) {
        let now = start + step.time("at").unwrap();
        let checked = step.get("check").map(request_of);
        let key = step.get("key").unwrap_or(json!("red"));
        let request = checked.clone().unwrap_or_else(|| request_of(key));
        let key = self.client.0.hasher.key_of(&request);
        let Actions { ends, reserve, lost } = if checked.is_some() {
            self.check(&mut step, &request, key, now)
        } else {
            self.event(&mut step, &request, key, now)
        };
        let end = |end: &Arc<End>| end.spent.map_or("cancel".to_owned(), |spent| format!("settle {spent}"));
        let mut begun: Vec<_> = ends.iter().map(end).collect();
        begun.extend(reserve.map(|_| "reserve".to_owned()));
        begun.extend((lost > 0).then(|| format!("lost {lost}")));
        assert_eq!(begun, step.list("calls"));
        self.ends.entry(key).or_default().extend(ends);
        self.last = now;
    }

    fn check(&mut self, step: &mut Fields, request: &Request, key: CounterKey, now: Instant) -> Actions {
        let serves = self.table.serves(request);
        let (decision, actions) =
            if serves { self.table.check(key, request, now) } else { (None, Actions::default()) };
        let limit = decision.as_ref().map(|decision| &decision.limits[0]);
        assert_eq!(limit.map(|limit| limit.remaining), step.get("remaining"));
        assert!(decision.as_ref().is_none_or(|decision| decision.source == Source::Prepaid));
        if let Some(reset) = step.time("reset_after_ms") {
            assert_eq!(limit.unwrap().reset_after, reset);
        }
        actions
    }

    fn event(&mut self, step: &mut Fields, request: &Request, key: CounterKey, now: Instant) -> Actions {
        if let Some(answer) = step.get("reserved") {
            let reservation = self.reservation(answer, step.get("held").unwrap_or(true), request);
            return self.table.reserved(key, reservation, now);
        }
        if let Some(answer) = step.get::<String>("ended") {
            let end = self.ends.get_mut(&key).and_then(VecDeque::pop_front).unwrap();
            let result = match answer.as_str() {
                "ok" => Ok(Settlement::default()),
                "no_answer" => Err(no_answer().into()),
                "invalid" => Err(InvalidRequest(String::new()).into()),
                other => panic!("unknown answer: {other}"),
            };
            return self.table.ended(key, &end, &result, now);
        }
        if step.get("close") == Some(true) {
            let closed = self.table.close(now).into_iter().find(|(each, _)| *each == key);
            return closed.map(|(_, actions)| actions).unwrap_or_default();
        }
        assert_eq!(step.get("due"), Some(true), "an unknown step");
        assert_eq!(self.table.next_due(key, self.last), Some(now));
        self.table.due(key, now)
    }

    /// What the client makes of an answer to a reservation.
    fn reservation(
        &self,
        answer: Value,
        held: bool,
        request: &Request,
    ) -> Result<Reservation, InvalidRequest> {
        let (decision, id) = match answer.as_str() {
            Some("invalid") => return Err(InvalidRequest(String::new())),
            Some("no_answer") => (Decision::default_of(true, no_answer()), "chosen"),
            _ => {
                let decision = Decision::from_answer(answer_of(answer)).unwrap();
                let id = if decision.allowed && held { "held" } else { "" };
                (decision, id)
            }
        };
        let (client, request) = (self.client.clone(), request.clone());
        Ok(Reservation { decision, client, request, id: id.to_owned(), ended: false })
    }
}

fn no_answer() -> NoAnswer {
    NoAnswer { code: Code::Unavailable, message: String::new() }
}
