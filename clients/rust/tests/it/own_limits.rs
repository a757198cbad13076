//! Limits of their own by the real server, as `clients/behaviour.md` says.

use std::{collections::BTreeMap, fs, time::Duration};

use serde_json::{Value, json};
use tollgate_client::{
    Client, Code, Descriptor, Error, LimitResult, Options, Request, Unit,
    v1::{self, OwnLimit, SetLimit},
};

use crate::harness::{HOUR, Server, check, client, options};

fn vectors(file: &str) -> String {
    fs::read_to_string(format!("{}/../vectors/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[tokio::test]
async fn own_limits_have_the_results_of_the_vectors() {
    for vector in serde_json::from_str::<Vec<Value>>(&vectors("own_limits.json")).unwrap() {
        println!("{}", vector["name"]);
        let token = vector.get("token").map_or(Some("secret"), Value::as_str);
        let options = Options { admin_token: token.map(str::to_owned), ..options() };
        if let Some(option) = vector["invalid"].as_str() {
            let error = Client::new("127.0.0.1:1", options).err().unwrap().to_string();
            assert!(error.contains(option), "{error}");
            continue;
        }
        let server = Server::start(&vectors("own_limits.yaml")).await;
        let mut run = Run { client: client(server.target(), options), versions: BTreeMap::new() };
        for step in vector["steps"].as_array().unwrap() {
            println!("{step}");
            run.step(step).await;
        }
    }
}

/// A client, and the versions of its limits by the names of variables.
struct Run {
    client: Client,
    versions: BTreeMap<String, u64>,
}

impl Run {
    async fn step(&mut self, step: &Value) {
        if let Some(asked) = step.get("check") {
            let user = asked["user"].as_str().or(asked.as_str()).unwrap();
            let request = Request::new("edge", [Descriptor::new([("user", user)])]);
            let decision = check(&self.client, &request.hits(asked["hits"].as_u64().unwrap_or(1))).await;
            let limit = decision.limits.first();
            let found = json!({
                "allowed": decision.allowed,
                "requests_per_unit": limit.map(|limit| limit.requests_per_unit),
                "remaining": limit.map(|limit| limit.remaining),
            });
            return assert_covers(&found, &step["result"]);
        }
        match self.results(step).await {
            Ok(results) => self.compare(step, &results),
            Err(Error::InvalidRequest(_)) => assert_eq!(step["error"], json!(["invalid_request"])),
            Err(Error::NoAnswer(reason)) => {
                assert_eq!(step["error"], json!(["no_answer", code_name(reason.code)]), "{reason}");
            }
        }
    }

    async fn results(&self, step: &Value) -> Result<Vec<LimitResult>, Error> {
        let list = |name: &str| step.get(name).map(|list| list.as_array().unwrap());
        let keys =
            |list: &Vec<Value>| list.iter().map(|key| Descriptor::new(entries_of(key))).collect::<Vec<_>>();
        let domain = step["domain"].as_str().unwrap_or("edge");
        if let Some(limits) = list("set") {
            let limits = limits.iter().flat_map(|limit| self.limits_of(limit)).collect();
            let dry_run = step["dry_run"] == true;
            self.client.set_limits(v1::SetLimitsRequest { limits, dry_run }).await
        } else if let Some(list) = list("get") {
            self.client.get_limits(domain, &keys(list)).await
        } else if let Some(list) = list("clear") {
            self.client.clear_limits(domain, &keys(list)).await
        } else {
            let prefix = entries_of(&step["list"]);
            let prefix: Vec<_> = prefix.iter().map(|(key, value)| (&**key, &**value)).collect();
            let (mut limits, mut results) = (self.client.list_limits(domain, &prefix), Vec::new());
            while let Some(limit) = limits.next().await? {
                results.push(LimitResult { limit: Some(limit), rule: String::new(), error: None });
            }
            Ok(results)
        }
    }

    /// One limit, or one for each of its users.
    fn limits_of(&self, limit: &Value) -> Vec<SetLimit> {
        let text = |name: &str| limit[name].as_str().unwrap_or_default().to_owned();
        let replaces_version = match &limit["replaces_version"] {
            Value::String(name) => Some(self.versions[name]),
            version => version.as_u64(),
        };
        let expires_after = limit["expires_after_h"].as_u64().map(|hours| HOUR * hours as u32);
        let message = |further: Option<(String, String)>| {
            let entries = entries_of(&limit["key"]).into_iter().chain(further);
            let entries = entries.map(|(key, value)| v1::Entry { key, value }).collect();
            let own = OwnLimit {
                domain: "edge".to_owned(),
                key: Some(v1::Descriptor { entries, ..v1::Descriptor::default() }),
                requests_per_unit: limit["requests_per_unit"].as_u64(),
                unit: Unit::from_str_name(&text("unit").to_uppercase()).unwrap_or_default().into(),
                unlimited: limit["unlimited"] == true,
                expires_after: expires_after.map(|time| time.try_into().unwrap()),
                note: text("note"),
                set_by: text("set_by"),
                ..OwnLimit::default()
            };
            SetLimit { limit: Some(own), replaces_version }
        };
        match limit["users"].as_u64() {
            None => vec![message(None)],
            Some(users) => {
                (0..users).map(|user| message(Some(("user".to_owned(), user.to_string())))).collect()
            }
        }
    }

    fn compare(&mut self, step: &Value, results: &[LimitResult]) {
        assert_eq!(step.get("error"), None);
        if let Some(users) = step["users"].as_u64() {
            let user = |result: &LimitResult| {
                let entries = &result.limit.as_ref().unwrap().key.as_ref().unwrap().entries;
                entries.last().unwrap().value.parse::<u64>().unwrap()
            };
            let mut found: Vec<_> = results.iter().map(user).collect();
            found.sort_unstable();
            assert_eq!(found, (0..users).collect::<Vec<_>>());
        } else if let Some(expected) = step["results"].as_array() {
            assert_eq!(results.len(), expected.len());
            for (result, expected) in results.iter().zip(expected) {
                let mut expected = expected.clone();
                if let Some(name) = expected["version"].as_str() {
                    let version = self.version_of(name, result);
                    expected["version"] = json!(version);
                }
                assert_covers(&describe(result), &expected);
            }
        } else {
            assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
        }
    }

    /// A variable is bound to the first version that is received.
    fn version_of(&mut self, name: &str, result: &LimitResult) -> u64 {
        if !self.versions.contains_key(name) {
            let version = result.limit.as_ref().unwrap().version;
            assert!(self.versions.values().all(|other| version > *other));
            self.versions.insert(name.to_owned(), version);
        }
        self.versions[name]
    }
}

/// A text is the value of the entry `user`.
fn entries_of(key: &Value) -> Vec<(String, String)> {
    match key {
        Value::String(user) => vec![("user".to_owned(), user.clone())],
        entries => serde_json::from_value(entries.clone()).unwrap(),
    }
}

fn describe(result: &LimitResult) -> Value {
    let error = result.error.as_ref().map(|error| (code_name(error.code), &error.reason));
    let Some(limit) = &result.limit else { return json!({"rule": result.rule, "error": error}) };
    let unit = Some(limit.unit()).filter(|unit| *unit != Unit::Unknown);
    let expires_after = limit.expires_after.map(|time| Duration::try_from(time).unwrap());
    let entries = limit.key.as_ref().unwrap().entries.iter();
    json!({
        "rule": result.rule,
        "error": error,
        "key": entries.map(|entry| (&entry.key, &entry.value)).collect::<Vec<_>>(),
        "requests_per_unit": limit.requests_per_unit,
        "unit": unit.map(|unit| unit.as_str_name().to_lowercase()),
        "unlimited": limit.unlimited,
        "note": limit.note,
        "set_by": limit.set_by,
        "set_by_is_claimed": limit.set_by_is_claimed,
        "version": limit.version,
        "expires_after_h": expires_after.map(|time| time.as_millis().div_ceil(HOUR.as_millis())),
    })
}

/// Compares the fields that are expected.
fn assert_covers(found: &Value, expected: &Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(found[name], *value, "{name} of {found}");
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::NotFound => "NOT_FOUND",
        Code::Aborted => "ABORTED",
        Code::Unauthenticated => "UNAUTHENTICATED",
        other => panic!("unexpected code: {other:?}"),
    }
}
