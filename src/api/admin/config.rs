//! `/config`: the settings in force.

use axum::{Json, extract::State};
use serde_json::{Map, Value, json};

use crate::api::admin::AdminState;

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// Its section and name.
    pub name: &'static str,
    /// What it is set to; a secret is not shown.
    pub value: String,
    /// What set it.
    pub from: Origin,
}

/// What sets a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing did.
    Default,
    /// The settings file.
    File,
    /// A variable of the environment.
    Environment,
    /// A flag.
    Flag,
}

impl Origin {
    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
            Self::Flag => "flag",
        }
    }
}

/// `settings` as names and values, and `from`: what set each.
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
