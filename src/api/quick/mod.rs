//! The usual question, answered from its bytes into bytes: the same question and the same answer as in `envoy`,
//! without the messages in between.
//!
//! Nothing is refused here. Whatever is broken, unusual or asks for more than plain answers goes the general way,
//! untouched.

use std::time::Duration;

use axum::http::HeaderMap;
use smallvec::SmallVec;

use crate::{
    api::{Api, envoy, frame, patience},
    cluster::OpenForwards,
    limiter::{self, ActiveView, Answer, Bounds, LimiterError, Override},
};

mod read;
mod write;

use read::Asked;

/// An answer, and when it may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// A frame of gRPC around the answer.
    pub frame: Vec<u8>,
    /// How long the caller has to be kept waiting for it: see [`Api::wait`].
    pub delay: Duration,
}

/// What becomes of a call that may be usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framed {
    /// It is answered.
    Answered(Reply),
    /// It is for [`Api::answer_framed_afar`]: other replicas hold its counters. Nothing has happened.
    Afar,
    /// It is not whole, not usual, or has no answer: it is for the gRPC service, which takes or refuses it. Nothing has
    /// happened.
    Unusual,
}

impl Api {
    /// Whether any question may be answered by [`Turn::answer_framed`].
    pub fn is_quick(&self) -> bool {
        // Both tell of the request at length.
        !self.settings.dynamic_metadata && self.traces.is_none()
    }

    /// Begins to answer calls that have come together.
    pub fn turn(&self) -> Turn<'_> {
        Turn { api: self, snapshot: None, answered: 0 }
    }

    /// The same as [`Turn::answer_framed`] for a request whose counters other replicas hold.
    pub async fn answer_framed_afar(
        &self,
        bytes: &[u8],
        headers: &HeaderMap,
        connection: &OpenForwards,
    ) -> Option<Reply> {
        let asked = Asked::of(bytes, self.settings.bounds())?;
        let descriptors = asked.descriptors()?;
        let request = asked.request(&descriptors, headers);
        let snapshot = self.limiter.view();
        let answer = snapshot.decide_remote(&request, connection).await.ok()?;
        self.metrics.duration.record(snapshot.age());
        Some(self.reply(&request, &snapshot, &answer))
    }

    fn reply(&self, request: &limiter::Request<'_>, snapshot: &ActiveView<'_>, answer: &Answer<'_>) -> Reply {
        if let Some(denials) = &self.denials {
            denials.log(request, answer, snapshot.now());
        }
        let headers = self.headers.of(answer, self.limiter.modes());
        Reply { frame: write::framed(answer, &headers, self.resets()), delay: answer.delay }
    }
}

/// Calls that have come together: answered by the same rules at the same instant.
#[derive(Debug)]
pub struct Turn<'a> {
    api: &'a Api,
    // Taken for the first of them.
    snapshot: Option<ActiveView<'a>>,
    answered: u32,
}

impl Turn<'_> {
    /// Answers the request that `bytes` frame, of a call with these headers, if its counters are here.
    pub fn answer_framed(&mut self, bytes: &[u8], headers: &HeaderMap) -> Framed {
        let bounds = self.api.settings.bounds();
        let Some(asked) = Asked::of(bytes, bounds) else { return Framed::Unusual };
        let Some(descriptors) = asked.descriptors() else { return Framed::Unusual };
        let request = asked.request(&descriptors, headers);
        let snapshot = self.snapshot.get_or_insert_with(|| self.api.limiter.view());
        match snapshot.decide(&request) {
            Ok(answer) => {
                self.answered += 1;
                Framed::Answered(self.api.reply(&request, snapshot, &answer))
            }
            Err(LimiterError::Remote) => Framed::Afar,
            Err(
                LimiterError::EmptyDomain
                | LimiterError::NoDescriptors
                | LimiterError::NoRules
                | LimiterError::Joining
                | LimiterError::Overloaded,
            ) => Framed::Unusual,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(snapshot) = &self.snapshot {
            self.api.metrics.duration.record_mean(snapshot.age(), self.answered);
        }
    }
}

impl<'b> Asked<'b> {
    /// What `bytes` frame, if it is usual.
    fn of(bytes: &'b [u8], bounds: Bounds) -> Option<Self> {
        let mut asked = Self::default();
        asked.read(frame::message_in(bytes)?, bounds)?;
        Some(asked)
    }

    /// Its descriptors in the limiter's words; `None` where they cannot say it.
    fn descriptors(&self) -> Option<SmallVec<[limiter::Descriptor<'_>; 2]>> {
        let mut descriptors = SmallVec::new();
        let mut begin = 0;
        for described in &self.descriptors {
            let limit = match described.limit {
                None => None,
                Some(limit) => {
                    let unit = envoy::unit(limit.unit)?;
                    Some(Override { requests_per_unit: limit.requests_per_unit, unit })
                }
            };
            let entries = &self.entries[begin..described.end];
            let ask = described.hits.ask(self.hits_addend);
            descriptors.push(limiter::Descriptor { entries, operation: ask, limit });
            begin = described.end;
        }
        Some(descriptors)
    }

    fn request<'r>(
        &'r self,
        descriptors: &'r [limiter::Descriptor<'r>],
        headers: &HeaderMap,
    ) -> limiter::Request<'r> {
        limiter::Request { domain: self.domain, descriptors, timeout: patience::of(headers) }
    }
}

#[cfg(test)]
mod tests;
