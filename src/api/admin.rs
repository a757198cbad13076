//! What operators see, on a listener of its own.

use std::sync::Arc;

use axum::{Json, Router, extract::State, routing::get};
use serde_json::{Value, json};

use crate::{rules::Book, store::Memory, time::Timestamp};

/// `/rules`: what is in force. `/store`: how many counters there are.
pub fn router(book: Arc<Book>, memory: Arc<Memory>) -> Router {
    let rules = Router::new().route("/rules", get(rules)).with_state(book);
    rules.merge(Router::new().route("/store", get(store)).with_state(memory))
}

async fn store(State(memory): State<Arc<Memory>>) -> Json<Value> {
    let figures = memory.figures();
    Json(json!({
        "live": figures.live,
        "bytes": figures.bytes,
        "evicted_idle": figures.evicted_idle,
        "evicted_unexpired": figures.evicted_unexpired,
        "refused_full": figures.refused_full,
    }))
}

async fn rules(State(book): State<Arc<Book>>) -> Json<Value> {
    let status = book.status();
    Json(json!({
        "generation": status.generation,
        "hash": status.hash,
        "load_errors": status.load_errors,
        "loaded_at": status.loaded_at.map(in_words),
        "last_error": status.last_error.map(|error| json!({
            "at": in_words(error.at),
            "problems": error.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })),
    }))
}

/// An instant as in RFC 3339.
fn in_words(instant: Timestamp) -> String {
    let nanos = i128::from(instant.as_nanos());
    jiff::Timestamp::from_nanosecond(nanos).unwrap_or(jiff::Timestamp::MAX).to_string()
}
