//! The variables of the reference, and what they mean here: settings, and where the counters are.

use tollgate_shared_store::Passwords;

use crate::settings::{reference::values::switch, value_type::StoreKind};

/// The variables of a process.
#[derive(Clone, Copy)]
pub(super) struct Variables<'e>(pub(super) &'e [(String, String)]);

impl<'e> Variables<'e> {
    /// The value of a variable; `None` if it is empty, as the reference's own defaults are.
    pub(super) fn value(self, variable: &str) -> Option<&'e str> {
        let found = self.0.iter().find(|(name, _)| name == variable);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub(super) fn is_on(self, variable: &str) -> bool {
        self.value(variable).and_then(switch).unwrap_or(false)
    }

    /// The problem of a switch whose value is no boolean.
    pub(super) fn wrong_switch(self, variable: &str) -> Option<String> {
        let wrong = self.value(variable).filter(|value| switch(value).is_none())?;
        Some(format!("{variable}: `{wrong}` is not allowed; true and false are"))
    }
}

/// What the settings of the other sources say that decides how variables are read.
#[derive(Clone, Copy, Debug)]
pub(in crate::settings) struct Own {
    /// The store that an operator has set.
    pub(in crate::settings) store: Option<StoreKind>,
    /// The replica is part of a cluster.
    pub(in crate::settings) has_cluster: bool,
    /// A file has the password for the servers.
    pub(in crate::settings) has_password_file: bool,
    /// A file has the password for the sentinels.
    pub(in crate::settings) has_sentinel_password_file: bool,
}

/// A value for a setting, and the variable that it comes from.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::settings) struct Given {
    pub(in crate::settings) setting: &'static str,
    pub(in crate::settings) value: String,
    pub(in crate::settings) variable: String,
}

/// What the environment means here.
#[derive(Debug, Default)]
pub(in crate::settings) struct Translation {
    pub(in crate::settings) settings: Vec<Given>,
    /// Passwords for the shared store. No setting has one, so that none is displayed.
    pub(in crate::settings) passwords: Passwords,
    /// Variables that have no effect, each with the reason.
    pub(in crate::settings) without_effect: Vec<String>,
    /// Values that are not allowed.
    pub(in crate::settings) problems: Vec<String>,
    /// Where the counters are; `None` if the variables name no store that can be used.
    pub(in crate::settings) choice: Option<BackendChoice>,
}

impl Translation {
    pub(super) fn give(&mut self, setting: &'static str, value: impl Into<String>, variable: &str) {
        let value = value.into();
        let variable = variable.to_owned();
        self.settings.push(Given { setting, value, variable });
    }
}

/// Where the counters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The memory of this replica.
    Memory,
    /// The memory of all replicas of a cluster.
    Cluster,
    /// Servers that replicas share.
    Redis,
}

/// Where the counters are, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendChoice {
    /// Where they are.
    pub backend: Backend,
    /// Why they are there.
    pub reason: &'static str,
}

impl Backend {
    /// The name of the backend in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cluster => "cluster",
            Self::Redis => "redis",
        }
    }
}

impl BackendChoice {
    /// Why each replica counts by itself; `None` if replicas share their counters.
    pub fn alone(&self) -> Option<&'static str> {
        (self.backend == Backend::Memory).then_some(self.reason)
    }

    /// A variable of counters in Redis, which has no effect.
    pub(super) fn unused(&self, variable: &str) -> String {
        format!("{variable} (counters are in memory: {})", self.reason)
    }
}
