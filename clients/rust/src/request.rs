//! What a caller asks.

use std::{
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use prost::Message;

use crate::{OnExpiry, v1};

/// A message has at most 4 MiB, of which the request takes all but its tag and length.
const REQUEST_BYTES_MAX: usize = (4 << 20) - 16;

/// Names what is limited. Its descriptors are decided together: it is denied if one of them is over its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The set of rules that applies.
    pub domain: String,
    /// The descriptors that are decided together, at least one.
    pub descriptors: Vec<Descriptor>,
    /// Hits of each descriptor without hits of its own; 0 means 1.
    pub hits: u64,
    /// Makes a check or a refund count once: a repeated one of the same descriptors with this id is answered as the first
    /// one, for `api.request_id_window` of the server. At most 63 bytes; empty is none. Other calls leave it out.
    pub request_id: String,
}

/// Leads to one rule, and to one counter of this rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys and values in the order of the levels of the rules.
    pub entries: Vec<(String, String)>,
    /// Replaces the limit of the rules.
    pub limit: Option<Limit>,
    /// Replaces the hits of the request for this descriptor; 0 charges nothing.
    pub hits: Option<u64>,
    /// Replaces [`Terms::on_expiry`](crate::Terms::on_expiry) of a reservation for this descriptor. Other calls ignore
    /// it.
    pub on_expiry: Option<OnExpiry>,
}

/// A limit that the caller sends instead of the one in the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Hits that pass in one unit; 0 lets none pass.
    pub requests_per_unit: u32,
    /// The window of the limit.
    pub unit: Unit,
}

/// The window of a limit.
pub use v1::limit::Unit;

/// The request cannot be decided, now or later: the program that sent it is to be corrected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid request: {0}")]
pub struct InvalidRequest(pub String);

impl Request {
    /// A request of one hit.
    pub fn new(domain: impl Into<String>, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self { domain: domain.into(), descriptors: descriptors.into(), hits: 1, request_id: String::new() }
    }

    /// The request with this number of hits for each descriptor without hits of its own; 0 means 1.
    pub fn hits(mut self, hits: u64) -> Self {
        self.hits = hits;
        self
    }

    /// The request with this id of at most 63 bytes, so that a repeated check or refund counts once.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = id.into();
        self
    }

    /// The message of a check or a refund.
    pub(crate) fn counted_message(&self) -> Result<v1::Request, InvalidRequest> {
        let request_id = self.request_id.clone();
        sized(v1::Request { request_id, ..self.message_with(self.hits, |descriptor| descriptor.hits) })
    }

    /// The message of a peek, which has no hits.
    pub(crate) fn peek_message(&self) -> Result<v1::Request, InvalidRequest> {
        sized(self.message_with(0, |_| None))
    }

    fn message_with(&self, hits: u64, hits_of: impl Fn(&Descriptor) -> Option<u64>) -> v1::Request {
        let descriptors = self.descriptors.iter().map(|each| each.message(hits_of(each))).collect();
        v1::Request { domain: self.domain.clone(), descriptors, hits, ..Default::default() }
    }

    /// The hits of each descriptor.
    pub(crate) fn hits_of_each(&self) -> Box<[u64]> {
        self.descriptors.iter().map(|each| each.hits.unwrap_or(self.hits.max(1))).collect()
    }
}

fn sized(message: v1::Request) -> Result<v1::Request, InvalidRequest> {
    check_size(&message)?;
    Ok(message)
}

/// The server would refuse a larger request as it refuses an overload, which would lead to the default decision.
pub(crate) fn check_size(message: &impl Message) -> Result<(), InvalidRequest> {
    let bytes = message.encoded_len();
    if bytes > REQUEST_BYTES_MAX {
        return Err(InvalidRequest(format!("the request has {bytes} bytes, of at most {REQUEST_BYTES_MAX}")));
    }
    Ok(())
}

impl Descriptor {
    /// A descriptor of these keys and values.
    pub fn new<K: Into<String>, V: Into<String>>(entries: impl IntoIterator<Item = (K, V)>) -> Self {
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Self { entries, ..Self::default() }
    }

    /// The descriptor with this limit instead of that of the rules.
    pub fn limit(mut self, requests_per_unit: u32, unit: Unit) -> Self {
        self.limit = Some(Limit { requests_per_unit, unit });
        self
    }

    /// The descriptor with hits of its own; 0 charges nothing.
    pub fn hits(mut self, hits: u64) -> Self {
        self.hits = Some(hits);
        self
    }

    /// The descriptor with this end of a reservation that expires, instead of that of the terms.
    pub fn on_expiry(mut self, on_expiry: OnExpiry) -> Self {
        self.on_expiry = Some(on_expiry);
        self
    }

    /// The message of the descriptor, with these hits.
    pub(crate) fn message(&self, hits: Option<u64>) -> v1::Descriptor {
        let entry = |(key, value): &(String, String)| v1::Entry { key: key.clone(), value: value.clone() };
        let limit = self
            .limit
            .map(|limit| v1::Limit { requests_per_unit: limit.requests_per_unit, unit: limit.unit.into() });
        let (entries, on_expiry) = (self.entries.iter().map(entry).collect(), self.on_expiry.map(i32::from));
        v1::Descriptor { entries, limit, hits, on_expiry }
    }
}

/// Stands for the counters of a request, in a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CounterKey([u64; 2]);

/// Hashes with 128 secret bits each, so that callers cannot construct collisions.
#[derive(Default)]
pub(crate) struct KeyHasher {
    states: [RandomState; 2],
    ids: AtomicU64,
}

impl KeyHasher {
    /// An id that no other client has: 32 characters.
    pub(crate) fn unique_id(&self) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        let [a, b] = self.states.each_ref().map(|state| state.hash_one(number));
        format!("{a:016x}{b:016x}")
    }

    /// Equal for requests that differ in their hits and ids only.
    pub(crate) fn key_of(&self, request: &Request) -> CounterKey {
        CounterKey(self.states.each_ref().map(|state| {
            let mut hasher = state.build_hasher();
            request.domain.hash(&mut hasher);
            hasher.write_usize(request.descriptors.len());
            for descriptor in &request.descriptors {
                descriptor.entries.hash(&mut hasher);
                descriptor.limit.hash(&mut hasher);
            }
            hasher.finish()
        }))
    }
}
