//! `/config`: the effective settings.

use axum::{Json, extract::State};
use serde_json::{Map, Value, json};

use crate::api::admin::AdminState;

/// `settings`: names and values; `from`: the origin of each.
pub(super) async fn get(State(state): State<AdminState>) -> Json<Value> {
    let values: Map<_, _> = state
        .settings
        .iter()
        .map(|setting| (setting.name.to_owned(), setting.value.clone().into()))
        .collect();
    let origins: Map<_, _> =
        state.settings.iter().map(|setting| (setting.name.to_owned(), setting.from.name().into())).collect();
    Json(json!({"settings": values, "from": origins}))
}
