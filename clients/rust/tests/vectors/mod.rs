//! Replays `clients/vectors`. It is a module of the package, because some of them are of its parts.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod middleware;
mod notation;
mod script;
mod scripted;
mod state;

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{Client, OnExpiry, OnNoAnswer, PrepaidSlices, Request};
use notation::{ClientFields, SliceFields, TermsFields, assert_covers, vectors};

const FILES: [&str; 7] = ["batches", "defaults", "deny_cache", "ids", "middleware", "retries", "slices"];

#[test]
fn files_of_vectors_are_those_that_are_replayed() {
    let files = std::fs::read_dir(notation::folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let expected = FILES.map(|name| format!("{name}.json"));
    assert_eq!(names.collect::<BTreeSet<_>>(), BTreeSet::from(expected));
}

#[tokio::test]
async fn client_follows_scripts() {
    for file in ["batches", "ids", "retries"] {
        for script in vectors(file) {
            script::replay(script).await;
        }
    }
}

#[tokio::test]
async fn client_follows_defaults() {
    for vector in vectors::<Value>("defaults") {
        if vector.get("of").is_some() {
            serde_json::from_value::<OptionsVector>(vector).unwrap().replay().await;
        } else {
            script::replay(serde_json::from_value(vector).unwrap()).await;
        }
    }
}

#[test]
fn deny_cache_follows_vectors() {
    vectors("deny_cache").into_iter().for_each(state::replay_cache);
}

#[tokio::test]
async fn slices_follow_vectors() {
    vectors("slices").into_iter().for_each(state::replay_slices);
}

#[tokio::test]
async fn layer_follows_vectors() {
    for vector in vectors("middleware") {
        middleware::replay(vector).await;
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OptionsVector {
    name: String,
    of: String,
    #[serde(default)]
    defaults: Map<String, Value>,
    #[serde(default)]
    option: String,
    #[serde(default)]
    valid: Vec<i64>,
    #[serde(default)]
    invalid: Vec<i64>,
}

impl OptionsVector {
    async fn replay(self) {
        println!("{}", self.name);
        assert_covers(&resolved(&self.of, json!({})).await.unwrap(), &self.defaults.into());
        for value in self.valid {
            let options = json!({&self.option: value});
            assert_covers(&resolved(&self.of, options.clone()).await.unwrap(), &options);
        }
        // The types of options have no negative values.
        for value in self.invalid.into_iter().filter(|value| *value >= 0) {
            let error = resolved(&self.of, json!({&self.option: value})).await.unwrap_err();
            assert!(error.contains(self.option.trim_end_matches("_ms")), "{value}: {error}");
        }
    }
}

/// The options that apply, or the error.
async fn resolved(of: &str, fields: Value) -> Result<Value, String> {
    let client = |fields: ClientFields| Client::new("127.0.0.1:1", fields.options());
    if of == "client" {
        let client = client(serde_json::from_value(fields).unwrap()).map_err(|error| error.to_string())?;
        let options = &client.0.options;
        return Ok(json!({
            "timeout_ms": options.timeout.as_millis(),
            "on_no_answer": if options.on_no_answer == OnNoAnswer::Allow { "allow" } else { "deny" },
            "calls_max": options.calls_max,
            "batch_max": options.batch_max,
            "queue_max": options.queue_max,
            "deny_cache_keys": options.deny_cache_keys,
            "deny_cache_max_ms": options.deny_cache_max.as_millis(),
        }));
    }
    let client = client(ClientFields::default()).unwrap();
    match of {
        "slices" => {
            let options = serde_json::from_value::<SliceFields>(fields).unwrap().options();
            PrepaidSlices::new(client, options).map_err(|error| error.to_string())?;
            let ttl = options.ttl.as_millis();
            Ok(json!({"hits": options.hits, "ttl_ms": ttl, "keys_max": options.keys_max}))
        }
        "terms" => {
            let terms = serde_json::from_value::<TermsFields>(fields).unwrap().terms();
            client.close();
            client.reserve(&Request::new("edge", []), terms).await.map_err(|error| error.to_string())?;
            let on_expiry = if terms.on_expiry == OnExpiry::Release { "release" } else { "charge" };
            Ok(json!({"ttl_ms": terms.ttl.as_millis(), "on_expiry": on_expiry}))
        }
        other => panic!("unknown options: {other}"),
    }
}
