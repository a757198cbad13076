//! Protocol adapters. Each translates requests for the limiter and its answers, and decides nothing.

pub mod admin;
pub mod call;
pub(crate) mod cross_site;
pub mod denial_body;
pub(crate) mod denial_log;
mod descriptors;
pub(crate) mod error;
mod failed_calls;
pub(crate) mod format;
pub mod forward_auth;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod handle;
pub mod headers;
pub mod http;
pub mod json;
pub(crate) mod metrics;
pub mod reader;
pub mod recorder;
pub(crate) mod reset_access;
pub mod rls;
pub(crate) mod service;
mod span;
pub(crate) mod token;
pub mod v1;

pub use call::{ApiKind, Call, CallReply, Handled, Method, ResetPrecision};
pub use cross_site::Hosts;
pub use error::Error;
pub use handle::{ReadBatch, WaitingCall};
pub use metrics::ApiMetrics;

pub use service::{Api, ApiSettings};
