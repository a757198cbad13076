//! Runs a client against a scripted server.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::timeout,
};

use super::{
    notation::{
        Fields, PATIENCE, answer_of, assert_covers, client_options, code_name, describe, request_of,
        status_of, terms_of, user_of,
    },
    scripted::{self, Replied, Reply, Scripted},
};
use crate::{Client, Error, Metrics, Options, Outcome, Request, Reservation, Terms};

/// The outcomes of checks, and the sizes of batches.
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
    /// By the order in which calls were received: their server, and None if the call has its reply.
    served: Vec<(usize, Option<oneshot::Sender<Reply>>)>,
    ids: HashMap<String, String>,
}

/// The arguments of a call.
#[derive(Default)]
struct Arguments {
    request: Value,
    terms: Terms,
    actual: Option<u64>,
    hits: BTreeMap<usize, u64>,
}

pub(super) async fn replay(mut vector: Fields) {
    let needs: Option<String> = vector.get("needs");
    assert!(needs.is_none_or(|needs| ["cancel", "close"].contains(&needs.as_str())));
    let addresses = vector.get("addresses").unwrap_or_else(|| vec!["server".to_owned()]);
    let (server, counts) = (scripted::start(&addresses), Arc::new(Counts::default()));
    let options = Options { metrics: counts.clone(), ..client_options(vector.options(), PATIENCE) };
    let client = Client::new(&server.target, options).unwrap();
    let (calls, reservations, served, ids) = Default::default();
    let mut run = Run { server, client, counts, calls, reservations, served, ids };
    timeout(PATIENCE, run.connect()).await.expect("the client connects");
    for step in vector.list("steps") {
        timeout(PATIENCE, run.step(Fields::of(step))).await.expect("the step ends");
    }
    assert!(run.server.calls.try_recv().is_err(), "a further call");
}

impl Run {
    /// Waits until the client is connected to all servers, if there are several.
    async fn connect(&mut self) {
        let mut seen = BTreeSet::new();
        while self.server.servers > 1 && seen.len() < self.server.servers {
            let client = self.client.clone();
            let peek = tokio::spawn(async move { client.peek(&request_of(json!("ann"))).await });
            let call = self.server.calls.recv().await.unwrap();
            seen.insert(call.server);
            let answers = vec![answer_of(json!("allowed"))];
            let _ = call.reply.send(Ok(Replied { answers, ..Replied::default() }));
            // Without an answer, another peek follows.
            let _ = peek.await;
        }
    }

    async fn step(&mut self, mut step: Fields) {
        let method: Option<String> = step.get("call");
        let request: Value = step.get("request").unwrap_or_default();
        let name = step.get("of").or_else(|| user_of(&request));
        let actual: Option<u64> = step.get("actual");
        if let (Some(method), Some(name)) = (&method, &name) {
            let terms = terms_of(Fields::of(step.get("terms").unwrap_or(json!({}))));
            let hits = step.get("hits").unwrap_or_default();
            self.begin(name, method.clone(), Arguments { request, terms, actual, hits });
        }
        for request in step.list("queue") {
            let waiting = self.client.0.batcher.waiting() + 1;
            let name = user_of(&request).unwrap();
            self.begin(&name, "check".to_owned(), Arguments { request, ..Arguments::default() });
            self.until_waiting(waiting).await;
        }
        if let Some(waiting) = step.get("waiting") {
            self.until_waiting(waiting).await;
        }
        let mut reply = reply_of(&mut step);
        if step.contains("receive") {
            self.receive(&mut step, method.as_deref().unwrap_or("check"), actual).await;
            if matches!(method.as_deref(), Some("settle" | "cancel")) {
                reply = reply.or(Some(Ok(Replied::default())));
            }
        }
        let number = step.get("reply").unwrap_or(self.served.len());
        if let Some(reply) = reply {
            self.reply(number, reply);
        }
        if let Some(name) = step.get::<String>("cancel") {
            self.calls[&name].abort();
        }
        if step.get("close") == Some(true) {
            self.client.close();
        }
        let results: BTreeMap<String, Value> = step.get("results").unwrap_or_default();
        for (name, expected) in results.into_iter().chain(name.zip(step.get("result"))) {
            self.assert_result(&name, expected).await;
        }
        if let Some(expected) = step.get::<Value>("metrics") {
            let (outcomes, sent) = &*self.counts.0.lock().unwrap();
            assert_eq!(json!({"outcomes": outcomes, "sent": sent}), expected);
        }
    }

    fn begin(&mut self, name: &str, method: String, arguments: Arguments) {
        let (client, reservations) = (self.client.clone(), self.reservations.clone());
        let call = call(client, reservations, name.to_owned(), method, arguments);
        let described = async { call.await.unwrap_or_else(|error| describe_error(&error)) };
        self.calls.insert(name.to_owned(), tokio::spawn(described));
    }

    /// The test has one thread, so all other tasks go on meanwhile.
    async fn until_waiting(&self, checks: usize) {
        while self.client.0.batcher.waiting() != checks {
            yield_now().await;
        }
    }

    fn reply(&mut self, number: usize, reply: Reply) {
        // An error says that the call has ended.
        let _ = self.served[number - 1].1.take().unwrap().send(reply);
    }

    /// Takes a call, and its repetition if the first attempt fails.
    async fn receive(&mut self, step: &mut Fields, method: &str, actual: Option<u64>) {
        let mut requests: Vec<_> = step.list("receive").into_iter().map(request_of).collect();
        if ["settle", "cancel"].contains(&method) {
            requests[0].hits = actual.unwrap_or(0);
        }
        let terms = step.get("receive_terms").map(|terms| terms_of(Fields::of(terms)));
        let id: Option<String> = step.get("reservation_id");
        let mut elsewhere: Option<usize> = step.get("elsewhere");
        self.receive_one(method, &requests, terms, id.clone()).await;
        if let Some(error) = step.get("first_fails") {
            self.reply(self.served.len(), Err(status_of(error)));
            elsewhere = Some(self.served.len());
            self.receive_one(method, &requests, terms, id).await;
        }
        if let Some(other) = elsewhere {
            assert_ne!(self.served[other - 1].0, self.served.last().unwrap().0, "at the same address");
        }
    }

    async fn receive_one(
        &mut self,
        method: &str,
        requests: &[Request],
        terms: Option<Terms>,
        id: Option<String>,
    ) {
        let received = self.server.calls.recv().await.unwrap();
        assert_eq!(received.method, method);
        let (received_requests, received_terms, received_id) = received.content;
        assert!(received_requests == requests, "other requests");
        assert!(terms.is_none() || received_terms == terms, "{received_terms:?}");
        if let Some(expected) = id {
            assert_eq!(received_id, self.id_of(expected, &received_id));
        }
        self.served.push((received.server, Some(received.reply)));
    }

    /// A variable is bound to the first id that is received.
    fn id_of(&mut self, expected: String, received: &str) -> String {
        if !expected.starts_with('$') || self.ids.contains_key(&expected) {
            return self.ids.get(&expected).cloned().unwrap_or(expected);
        }
        let is_digit = |letter: char| letter.is_ascii_hexdigit() && !letter.is_uppercase();
        assert!(received.len() == 32 && received.chars().all(is_digit), "{received}");
        assert!(self.ids.values().all(|id| id != received), "the id of another reservation");
        self.ids.insert(expected, received.to_owned());
        received.to_owned()
    }

    async fn assert_result(&mut self, name: &str, expected: Value) {
        let expected = match expected.as_str() {
            Some("allowed") => json!({"allowed": true, "source": "server"}),
            Some("denied") => json!({"allowed": false, "source": "server"}),
            Some(other) => json!({other: true}),
            None => expected,
        };
        let result = self.calls.remove(name).unwrap().await.unwrap_or_else(|ended| {
            assert!(ended.is_cancelled());
            json!({"error": ["canceled"]})
        });
        println!("{name}: {result}, expected: {expected}");
        assert_covers(&result, &expected);
    }
}

fn reply_of(step: &mut Fields) -> Option<Reply> {
    let (held_as, ended) = (step.get("held_as"), step.get("ended").unwrap_or_default());
    if let Some(error) = step.get("fails") {
        return Some(Err(status_of(error)));
    }
    let answers: Vec<Value> = step.get("answers")?;
    Some(Ok(Replied { answers: answers.into_iter().map(answer_of).collect(), held_as, ended }))
}

async fn call(
    client: Client,
    reservations: Arc<Mutex<HashMap<String, Reservation>>>,
    name: String,
    method: String,
    Arguments { request, terms, actual, hits }: Arguments,
) -> Result<Value, Error> {
    let reserved = || reservations.lock().unwrap()[&name].clone();
    let settled = json!({"settled": true});
    let decision = match method.as_str() {
        "check" => client.check(&request_of(request)).await?,
        "peek" => client.peek(&request_of(request)).await?,
        "refund" => client.refund(&request_of(request)).await?,
        "reserve" => {
            let reservation = client.reserve(&request_of(request), terms).await?;
            let mut described = describe(&reservation.decision);
            described["ended"] = json!(reservation.ended);
            reservations.lock().unwrap().insert(name, reservation);
            return Ok(described);
        }
        "settle" => return reserved().settle_each(actual.unwrap(), hits).await.map(|_| settled),
        "cancel" => return reserved().cancel().await.map(|_| settled),
        other => panic!("unknown call: {other}"),
    };
    Ok(describe(&decision))
}

fn describe_error(error: &Error) -> Value {
    match error {
        Error::InvalidRequest(invalid) => json!({"error": ["invalid_request", invalid.0]}),
        Error::NoAnswer(reason) => json!({"error": ["no_answer", code_name(reason.code), reason.message]}),
    }
}
