//! Asks a Tollgate server whether requests may pass.
//!
//! Make one [`Client`] for the process. It balances calls over all addresses of the server's name, sends concurrent
//! checks together, and answers for keys that are known to be refused. If the server gives no answer in time,
//! [`Options::on_no_answer`] decides.
//!
//! [`RateLimitLayer`] limits the requests of HTTP and gRPC servers. [`PrepaidSlices`] spends slices of a limit without calls.

mod batcher;
mod cause;
mod checker;
mod client;
mod connections;
mod decision;
mod deny_cache;
mod endpoint;
mod headers;
mod layer;
mod metrics;
mod options;
mod own_limits;
mod prepaid;
mod request;
mod reservation;
mod slice_table;
#[cfg(test)]
#[path = "../tests/vectors/mod.rs"]
mod vectors;

pub use tonic::{
    Code,
    transport::{Certificate, ClientTlsConfig, Identity},
};

pub use checker::Checker;
pub use client::{Client, Error};
pub use decision::{Decision, LimitStatus, NoAnswer, Source};
pub use layer::{LimitedBody, RateLimitLayer, RateLimitService};
pub use metrics::{Metrics, Outcome};
pub use options::{InvalidOptions, OnNoAnswer, Options, OutOfRange};
pub use own_limits::{LimitError, LimitResult, OwnLimits};
pub use prepaid::{PrepaidSlices, SliceOptions};
pub use proto::tollgate::v1;
pub use request::{Descriptor, InvalidRequest, Limit, Request, Unit};
pub use reservation::{OnExpiry, Reservation, SettledLimit, SettledOutcome, Settlement, Terms};

#[expect(missing_docs, reason = "comments of the protocol file are its documentation")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));
}
