//! A request, and the reasons for which it is refused for its content.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Classic, Limit, Operation},
    descriptor::Entry,
};
use tollgate_rules::Unit;

/// One request: descriptors of one domain, decided together. Its content is valid.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub(super) domain: &'a str,
    // Invariant: at least one.
    pub(super) descriptors: SmallVec<[Descriptor<'a>; 2]>,
    pub(super) timeout: Option<Duration>,
    // The time within which a turn in a queue must come.
    pub(super) turn_timeout: Option<Duration>,
    pub(super) charging: Charging,
}

/// A request that does not borrow its message.
#[derive(Debug)]
pub struct OwnedRequest {
    domain: Box<str>,
    // The key and the value of each entry of all descriptors, one after the other, and their lengths.
    text: Box<[u8]>,
    entries: SmallVec<[(usize, usize); 2]>,
    // Of each descriptor the number of its entries, its operation and its override.
    descriptors: SmallVec<[(usize, Operation, Option<Override>); 1]>,
    /// The time that the caller waits.
    pub(super) timeout: Option<Duration>,
    turn_timeout: Option<Duration>,
    charging: Charging,
}

/// What a refused request charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Charging {
    /// A refused request charges what its rules say.
    #[default]
    AsRules,
    /// A refused request charges nothing.
    AllOrNothing,
}

/// One descriptor of a request. The unit of its override is a `Result` before the request is checked.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a, U = Unit> {
    /// The entries; each matches one level of the rules.
    pub entries: &'a [Entry<'a>],
    /// The operation on the counter.
    pub operation: Operation,
    /// A limit that replaces the configured one.
    pub limit: Option<Override<U>>,
}

/// A limit in the request itself. Its algorithm is classic, whatever the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override<U = Unit> {
    /// Hits that pass in one unit; 0 lets none pass.
    pub requests_per_unit: u32,
    /// The window.
    pub unit: U,
}

/// The number of a unit that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownUnit(pub i32);

/// Why a request is refused for its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request names no domain.
    #[error("the domain of the request is empty")]
    EmptyDomain,
    /// The request has no descriptors.
    #[error("the request has no descriptors")]
    NoDescriptors,
    /// Requests that are decided together have different domains.
    #[error("requests that are decided together have one domain")]
    SeveralDomains,
    /// A limit override with an unknown unit.
    #[error(
        "descriptors[{descriptor}].limit.unit: {number} is not a unit; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
    )]
    Unit {
        /// The index of the descriptor.
        descriptor: usize,
        /// The unit that was sent.
        number: i32,
    },
}

impl Override {
    /// The limit.
    pub(super) fn limit(self) -> Limit {
        Limit::Classic(Classic::new(self.requests_per_unit.into(), self.unit.window()))
    }
}

impl<'a> Request<'a> {
    /// A request of a caller that waits for `timeout`, or for any time. Every API passes here; only what a decoder
    /// cannot read, or must not build because of its size, is refused earlier.
    #[inline]
    pub fn new(
        domain: &'a str,
        descriptors: impl IntoIterator<Item = Descriptor<'a, Result<Unit, UnknownUnit>>>,
        timeout: Option<Duration>,
    ) -> Result<Self, RequestError> {
        let descriptors_of_call = descriptors;
        let descriptors = SmallVec::new();
        let turn_timeout = timeout;
        let charging = Charging::AsRules;
        let mut request = Self { domain, descriptors, timeout, turn_timeout, charging };
        for (index, Descriptor { entries, operation, limit }) in descriptors_of_call.into_iter().enumerate() {
            let limit = match limit {
                None => None,
                Some(Override { requests_per_unit, unit: Ok(unit) }) => {
                    Some(Override { requests_per_unit, unit })
                }
                Some(Override { unit: Err(UnknownUnit(number)), .. }) => {
                    return Err(RequestError::Unit { descriptor: index, number });
                }
            };
            request.descriptors.push(Descriptor { entries, operation, limit });
        }
        if domain.is_empty() {
            return Err(RequestError::EmptyDomain);
        }
        if request.descriptors.is_empty() {
            return Err(RequestError::NoDescriptors);
        }
        Ok(request)
    }

    /// The request of a caller that is answered at once, and waits for its turn in a queue itself: the timeout does not
    /// bound the turn.
    pub fn with_any_turn(self) -> Self {
        Self { turn_timeout: None, ..self }
    }

    /// One request of all descriptors of `requests`, which have one domain. If it is refused, it charges nothing,
    /// whatever the rules say. An error has the index of a request.
    pub fn together(requests: &[Self]) -> Result<Self, (usize, RequestError)> {
        let [first, ..] = requests else { return Err((0, RequestError::NoDescriptors)) };
        if let Some(index) = requests.iter().position(|request| request.domain != first.domain) {
            return Err((index, RequestError::SeveralDomains));
        }
        let descriptors = requests.iter().flat_map(|request| request.descriptors.iter().copied()).collect();
        let Self { domain, timeout, turn_timeout, .. } = *first;
        Ok(Self { domain, descriptors, timeout, turn_timeout, charging: Charging::AllOrNothing })
    }

    /// The domain of the rules.
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// The descriptors, at least one.
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }

    /// Whether the request refunds hits: the owner may have reported the counter as exhausted to other replicas.
    pub(super) fn has_refund(&self) -> bool {
        self.descriptors.iter().any(|descriptor| matches!(descriptor.operation, Operation::Refund(_)))
    }

    /// A copy that does not borrow the message.
    pub fn to_owned(&self) -> OwnedRequest {
        let entries = || self.descriptors.iter().flat_map(|descriptor| descriptor.entries);
        let mut text = Vec::with_capacity(entries().map(|entry| entry.key.len() + entry.value.len()).sum());
        entries().for_each(|entry| {
            text.extend_from_slice(entry.key);
            text.extend_from_slice(entry.value);
        });
        let descriptor = |descriptor: &Descriptor<'_>| {
            let Descriptor { entries, operation, limit } = *descriptor;
            (entries.len(), operation, limit)
        };
        OwnedRequest {
            domain: self.domain.into(),
            text: text.into(),
            entries: entries().map(|entry| (entry.key.len(), entry.value.len())).collect(),
            descriptors: self.descriptors.iter().map(descriptor).collect(),
            timeout: self.timeout,
            turn_timeout: self.turn_timeout,
            charging: self.charging,
        }
    }
}

impl OwnedRequest {
    /// Passes the request to `take`.
    pub fn with<R>(&self, take: impl FnOnce(&Request<'_>) -> R) -> R {
        let mut text = &*self.text;
        let mut part = |length: usize| {
            let (part, rest) = text.split_at(length);
            text = rest;
            part
        };
        let entry = |(key, value): &(usize, usize)| Entry { key: part(*key), value: part(*value) };
        let entries: SmallVec<[Entry<'_>; 4]> = self.entries.iter().map(entry).collect();
        let mut rest = &*entries;
        let descriptors = self.descriptors.iter().map(|&(number, operation, limit)| {
            let (entries, others) = rest.split_at(number);
            rest = others;
            Descriptor { entries, operation, limit }
        });
        let descriptors = descriptors.collect();
        let Self { ref domain, timeout, turn_timeout, charging, .. } = *self;
        take(&Request { domain, descriptors, timeout, turn_timeout, charging })
    }
}
