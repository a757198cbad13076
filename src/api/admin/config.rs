//! `/config`: the effective settings.

use axum::{Json, extract::State};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::admin::AdminState;

/// The effective value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// The section and name.
    pub name: &'static str,
    /// The value; a secret is not shown.
    pub value: String,
    /// The origin of the value.
    pub from: Origin,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The default.
    Default,
    /// A variable of envoyproxy/ratelimit.
    Reference,
    /// The settings file.
    File,
    /// An environment variable.
    Environment,
    /// A command-line flag.
    Flag,
}

/// `settings`: names and values; `from`: the origin of each.
pub(super) async fn get(State(state): State<AdminState>) -> Json<Value> {
    let values: Map<_, _> = state
        .settings
        .iter()
        .map(|setting| (setting.name.to_owned(), setting.value.clone().into()))
        .collect();
    let origins: Map<_, _> =
        state.settings.iter().map(|setting| (setting.name.to_owned(), json!(setting.from))).collect();
    Json(json!({"settings": values, "from": origins}))
}
