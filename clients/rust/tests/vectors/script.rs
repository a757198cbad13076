//! Runs a client against a scripted server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    task::{JoinHandle, yield_now},
    time::timeout,
};

use super::{
    notation::{Answer, Asked, ClientFields, ErrorForm, TermsFields, assert_covers, code_name, describe},
    scripted::{Received, Reply, Scripted},
};
use crate::{Client, Error, Metrics, Options, Outcome, Reservation};

/// Bounds each script. Long, so that a busy machine does not look like a fault.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    name: String,
    needs: Option<String>,
    #[serde(default)]
    options: ClientFields,
    steps: Vec<Step>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Step {
    call: Option<String>,
    request: Option<Asked>,
    terms: TermsFields,
    of: Option<String>,
    actual: Option<u64>,
    queue: Vec<Asked>,
    waiting: Option<usize>,
    receive: Option<Vec<Asked>>,
    receive_terms: Option<TermsFields>,
    reservation_id: Option<String>,
    answers: Option<Vec<Answer>>,
    fails: Option<ErrorForm>,
    held_as: Option<String>,
    reply: Option<usize>,
    cancel: Option<String>,
    close: bool,
    result: Option<Value>,
    results: BTreeMap<String, Value>,
    metrics: Option<Value>,
}

/// What a client has counted.
#[derive(Default)]
struct Counts(Mutex<(BTreeMap<&'static str, usize>, Vec<usize>)>);

impl Metrics for Counts {
    fn checked(&self, outcome: Outcome, _: Duration) {
        *self.0.lock().unwrap().0.entry(outcome.name()).or_default() += 1;
    }

    fn sent(&self, batch: usize) {
        self.0.lock().unwrap().1.push(batch);
    }

    fn lost(&self, _: u64) {}
}

struct Run {
    server: Scripted,
    client: Client,
    counts: Arc<Counts>,
    calls: HashMap<String, JoinHandle<Value>>,
    reservations: Arc<Mutex<HashMap<String, Reservation>>>,
    /// Those without a reply yet.
    received: Vec<Option<Received>>,
    ids: HashMap<String, String>,
}

pub(super) async fn replay(script: Script) {
    println!("{}", script.name);
    assert!(script.needs.is_none_or(|needs| ["cancel", "close"].contains(&needs.as_str())));
    let (server, counts) = (Scripted::start(), Arc::new(Counts::default()));
    let options = Options { metrics: counts.clone(), ..script.options.options() };
    let timeout_ms = script.options.timeout_ms;
    let options = Options { timeout: timeout_ms.map_or(PATIENCE, |_| options.timeout), ..options };
    let client = Client::new(&server.target, options).unwrap();
    let (calls, reservations, ids) = (HashMap::new(), Arc::default(), HashMap::new());
    let mut run = Run { server, client, counts, calls, reservations, received: Vec::new(), ids };
    let steps = async {
        for step in script.steps {
            run.step(step).await;
        }
    };
    timeout(PATIENCE, steps).await.expect("the script ends");
    assert!(run.server.calls.try_recv().is_err(), "a further call");
}

impl Run {
    async fn step(&mut self, step: Step) {
        let name = step.of.clone().or(step.request.as_ref().map(|asked| asked.name.clone()));
        if step.call.is_some() {
            self.begin(name.clone().unwrap(), step.clone());
        }
        for asked in &step.queue {
            let waiting = self.client.0.batcher.waiting() + 1;
            let check =
                Step { call: Some("check".to_owned()), request: Some(asked.clone()), ..Step::default() };
            self.begin(asked.name.clone(), check);
            self.until_waiting(waiting).await;
        }
        if let Some(waiting) = step.waiting {
            self.until_waiting(waiting).await;
        }
        if let Some(requests) = &step.receive {
            self.receive(&step, requests).await;
        }
        if let Some(number) = step.reply {
            reply(self.received[number - 1].take().unwrap(), &step);
        }
        if let Some(name) = &step.cancel {
            self.calls[name].abort();
        }
        if step.close {
            self.client.close();
        }
        for (name, expected) in step.results.into_iter().chain(name.zip(step.result)) {
            let expected = match expected.as_str() {
                Some("allowed") => json!({"allowed": true, "source": "server"}),
                Some("denied") => json!({"allowed": false, "source": "server"}),
                Some("settled") => json!({"settled": true}),
                Some(other) => panic!("unknown result: {other}"),
                None => expected,
            };
            let result = self.calls.remove(&name).unwrap().await.unwrap_or_else(|ended| {
                assert!(ended.is_cancelled());
                json!({"error": ["canceled"]})
            });
            println!("{name}: {result}, expected: {expected}");
            assert_covers(&result, &expected);
        }
        if let Some(expected) = step.metrics {
            let (outcomes, sent) = &*self.counts.0.lock().unwrap();
            assert_eq!(json!({"outcomes": outcomes, "sent": sent}), expected);
        }
    }

    fn begin(&mut self, name: String, step: Step) {
        let (client, reservations) = (self.client.clone(), self.reservations.clone());
        let call = call(client, reservations, name.clone(), step);
        let described = async { call.await.unwrap_or_else(|error| describe_error(&error)) };
        self.calls.insert(name, tokio::spawn(described));
    }

    /// The test has one thread, so all that can go on does.
    async fn until_waiting(&self, checks: usize) {
        while self.client.0.batcher.waiting() != checks {
            yield_now().await;
        }
    }

    async fn receive(&mut self, step: &Step, requests: &[Asked]) {
        let received = self.server.calls.recv().await.unwrap();
        let method = step.call.as_deref().unwrap_or("check");
        assert_eq!(received.method, method);
        let mut expected: Vec<_> = requests.iter().map(|asked| asked.request.clone()).collect();
        match method {
            "settle" => expected[0].hits = step.actual.unwrap(),
            "cancel" => expected[0].hits = 0,
            _ => {}
        }
        assert!(received.requests == expected, "other requests");
        if let Some(terms) = &step.receive_terms {
            assert_eq!(received.terms, Some(terms.terms()));
        }
        if let Some(id) = &step.reservation_id {
            assert_eq!(received.reservation_id, self.id_of(id, &received.reservation_id));
        }
        let is_end = ["settle", "cancel"].contains(&method);
        if step.answers.is_some() || step.fails.is_some() || is_end {
            reply(received, step);
            self.received.push(None);
        } else {
            self.received.push(Some(received));
        }
    }

    /// A variable is bound to the first id that is received.
    fn id_of(&mut self, expected: &str, received: &str) -> String {
        if !expected.starts_with('$') {
            return expected.to_owned();
        }
        if !self.ids.contains_key(expected) {
            let is_digit = |character: char| matches!(character, '0'..='9' | 'a'..='f');
            assert!(received.len() == 32 && received.chars().all(is_digit), "{received}");
            assert!(self.ids.values().all(|id| id != received), "the id of another reservation");
            self.ids.insert(expected.to_owned(), received.to_owned());
        }
        self.ids[expected].clone()
    }
}

fn reply(received: Received, step: &Step) {
    let answers = step.answers.iter().flatten().map(|answer| answer.0.clone()).collect();
    let id = step.held_as.clone().unwrap_or(received.reservation_id);
    let reply: Reply = step.fails.as_ref().map_or(Ok((answers, id)), |error| Err(error.status()));
    // An error says that the call has ended.
    let _ = received.reply.send(reply);
}

/// Makes the call of a step.
async fn call(
    client: Client,
    reservations: Arc<Mutex<HashMap<String, Reservation>>>,
    name: String,
    Step { call, request, terms, actual, .. }: Step,
) -> Result<Value, Error> {
    let reserved = || reservations.lock().unwrap()[&name].clone();
    let settled = json!({"settled": true});
    let request = request.map(|asked| asked.request);
    let decision = match (call.as_deref().unwrap(), request) {
        ("check", Some(request)) => client.check(&request).await?,
        ("peek", Some(request)) => client.peek(&request).await?,
        ("refund", Some(request)) => client.refund(&request).await?,
        ("reserve", Some(request)) => {
            let reservation = client.reserve(&request, terms.terms()).await?;
            let decision = reservation.decision.clone();
            reservations.lock().unwrap().insert(name, reservation);
            decision
        }
        ("settle", None) => return reserved().settle(actual.unwrap()).await.map(|_| settled),
        ("cancel", None) => return reserved().cancel().await.map(|_| settled),
        (other, _) => panic!("unknown call: {other}"),
    };
    Ok(describe(&decision))
}

fn describe_error(error: &Error) -> Value {
    match error {
        Error::InvalidRequest(invalid) => json!({"error": ["invalid_request", invalid.0]}),
        Error::NoAnswer(reason) => json!({"error": ["no_answer", code_name(reason.code), reason.message]}),
    }
}
