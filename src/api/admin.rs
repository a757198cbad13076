//! What operators see, on a listener of its own.

use std::sync::Arc;

use axum::{Json, Router, extract::State, routing::get};
use serde_json::{Value, json};

use crate::{rules::Book, time::Timestamp};

/// `/rules`: what is in force.
pub fn router(book: Arc<Book>) -> Router {
    Router::new().route("/rules", get(rules)).with_state(book)
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
