//! Replays `clients/vectors`. It is a module of the package, because some of them are of its parts.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod middleware;
mod notation;
mod script;
mod scripted;
mod state;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{Client, OnExpiry, OnNoAnswer, Options, PrepaidSlices, Request};
use notation::{Fields, assert_covers, client_options, slice_options, terms_of, vectors};

#[test]
fn each_file_of_vectors_is_replayed() {
    // `tests/it` replays own_limits.json.
    let known = [
        "batches.json",
        "defaults.json",
        "deny_cache.json",
        "ids.json",
        "middleware.json",
        "own_limits.json",
        "own_limits.yaml",
        "reservations.json",
        "retries.json",
        "slices.json",
    ];
    let files = std::fs::read_dir(notation::folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.collect::<BTreeSet<_>>(), known.map(str::to_owned).into());
}

#[tokio::test]
async fn scripts_have_their_results() {
    for vector in ["batches", "ids", "reservations", "retries"].into_iter().flat_map(vectors) {
        script::replay(vector).await;
    }
}

#[tokio::test]
async fn options_have_their_defaults_and_ranges() {
    for mut vector in vectors("defaults") {
        match vector.get::<String>("of") {
            Some(of) => replay_options(&of, vector).await,
            None => script::replay(vector).await,
        }
    }
}

#[test]
fn deny_cache_denies_what_it_should() {
    vectors("deny_cache").for_each(state::replay_cache);
}

#[tokio::test]
async fn slices_have_their_decisions_and_calls() {
    vectors("slices").for_each(state::replay_slices);
}

#[tokio::test]
async fn layer_responds_as_it_should() {
    for vector in vectors("middleware") {
        middleware::replay(vector).await;
    }
}

async fn replay_options(of: &str, mut vector: Fields) {
    let defaults = vector.get("defaults").unwrap_or(json!({}));
    assert_covers(&resolved(of, json!({})).await.unwrap(), &defaults);
    let option: String = vector.get("option").unwrap_or_default();
    for value in vector.list("valid") {
        let options = json!({&option: value});
        assert_covers(&resolved(of, options.clone()).await.unwrap(), &options);
    }
    // The types of options have no negative values.
    for value in vector.list("invalid").into_iter().filter(Value::is_u64) {
        let error = resolved(of, json!({&option: value})).await.unwrap_err();
        assert!(error.contains(option.trim_end_matches("_ms")), "{value}: {error}");
    }
}

/// The options that apply, or the error.
async fn resolved(of: &str, options: Value) -> Result<Value, String> {
    let (options, usual) = (Fields::of(options), Options::default());
    match of {
        "client" => {
            let options = client_options(options, usual.timeout);
            let client = Client::new("127.0.0.1:1", options).map_err(|error| error.to_string())?;
            let options = &client.0.options;
            Ok(json!({
                "timeout_ms": options.timeout.as_millis(),
                "on_no_answer": if options.on_no_answer == OnNoAnswer::Allow { "allow" } else { "deny" },
                "calls_max": options.calls_max,
                "batch_max": options.batch_max,
                "queue_max": options.queue_max,
                "deny_cache_keys": options.deny_cache_keys,
                "deny_cache_max_ms": options.deny_cache_max.as_millis(),
            }))
        }
        "slices" => {
            let (client, options) = (Client::new("127.0.0.1:1", usual).unwrap(), slice_options(options));
            PrepaidSlices::new(client, options).map_err(|error| error.to_string())?;
            let ttl = options.ttl.as_millis();
            Ok(json!({"hits": options.hits, "ttl_ms": ttl, "keys_max": options.keys_max}))
        }
        "terms" => {
            let (client, terms) = (Client::new("127.0.0.1:1", usual).unwrap(), terms_of(options));
            client.close();
            client.reserve(&Request::new("edge", []), terms).await.map_err(|error| error.to_string())?;
            let on_expiry = if terms.on_expiry == OnExpiry::Release { "release" } else { "charge" };
            Ok(json!({"ttl_ms": terms.ttl.as_millis(), "on_expiry": on_expiry}))
        }
        other => panic!("unknown options: {other}"),
    }
}
