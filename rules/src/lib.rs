//! Rules: which descriptors are limited, and how. Read from files or from a control plane, and replaced as a whole
//! at run time.

#![cfg_attr(not(feature = "watch"), allow(dead_code, unused_imports, reason = "the feature uses the rest"))]

mod active_rules;
#[cfg(feature = "watch")]
mod background;
mod compile;
mod contents;
mod denial_body;
mod descriptor_ref;
mod diagnostics;
mod dialect;
mod file;
#[cfg(feature = "watch")]
pub mod file_watch;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod group;
mod key_values;
mod keyed_rules;
mod keys;
mod limit;
#[cfg(feature = "watch")]
mod loader;
mod network;
mod network_keys;
mod network_table;
mod overlay;
mod own;
mod pattern;
mod prefix_tree;
mod quotas;
mod reader;
mod rule;
mod rule_set;
pub mod rule_text;
mod schema;
mod source;
mod spelling;
mod stats;
mod trace;
mod unit;
pub mod yaml;

pub use ipnet::IpNet;

pub use active_rules::{ActiveRules, LoadError, RulesStatus};
#[cfg(feature = "watch")]
pub use background::{BackgroundPriority, set_idle_priority};
pub use compile::compile;
pub use contents::{Contents, Documents, ReadDocuments, RuleInput, Unknown, hash_of};
pub use denial_body::{DenialBody, DenialTemplate, DenialValues, Variable};
pub use descriptor_ref::DescriptorRef;
pub use diagnostics::{Location, Problem, Problems, ResourceLocation, RuleOrigin};
pub use group::{GroupedKey, NetworkGroup};
pub use keyed_rules::{KeyedDomain, KeyedRules, Match, MatchPosition, OpenMatch};
pub use keys::{OnDenied, OnOwnerUnavailable, nearest};
pub use limit::algorithm_keys;
#[cfg(feature = "watch")]
pub use loader::RuleLoader;
pub use network::{NetworkError, address, network_of};
pub use overlay::Overlay;
pub use own::{OwnBounds, OwnNumbers, StoredLimit, StoredTerms};
pub use prefix_tree::{MatchKind, TreeNode, composite};
pub use rule::{Allowance, ForwardPolicy, Quota, Rule, RuleOptions};
pub use rule_set::{DESCRIPTORS_MAX, Domain, Rules, Trial};
pub use schema::json_schema;
#[cfg(feature = "watch")]
pub use source::{FileSettings, OverlayFile, OverlayReceiver, Watcher};
pub use source::{load, load_trial};
pub use stats::{DecisionStats, DecisionTotals, RuleEvent, RuleStats, Series};
pub use trace::{LevelTrace, NODES_MAX};
pub use unit::{DisplayedLimit, Unit};

#[cfg(test)]
mod tests;
