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
    limiter::{self, Answer, Override},
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

impl Api {
    /// Whether any question may be answered by [`Api::answer_framed`].
    pub fn is_quick(&self) -> bool {
        // Both tell of the request at length.
        !self.settings.dynamic_metadata && self.traces.is_none()
    }

    /// Answers the request that `bytes` frame, of a call with these headers. `None`, and nothing has happened, where
    /// it is not whole, not usual, or has no answer: then it is for the gRPC service, which takes or refuses it.
    pub fn answer_framed(&self, bytes: &[u8], headers: &HeaderMap) -> Option<Reply> {
        let mut asked = Asked::default();
        asked.read(frame::message_in(bytes)?)?;
        let snapshot = self.limiter.snapshot();
        asked.put(patience::of(headers), |request| {
            let answer = snapshot.decide(request).ok()?;
            if let Some(denials) = &self.denials {
                denials.log(request, &answer, snapshot.now());
            }
            let reply = self.reply(&answer);
            self.metrics.duration.record(snapshot.age());
            Some(reply)
        })
    }

    fn reply(&self, answer: &Answer<'_>) -> Reply {
        let headers = self.headers.of(answer, self.limiter.modes());
        Reply { frame: write::framed(answer, &headers, self.resets()), delay: answer.delay }
    }
}

impl Asked<'_> {
    /// Puts the question to `answer` in the limiter's words; `None` where they cannot say it.
    fn put<T>(
        &self,
        patience: Option<Duration>,
        answer: impl FnOnce(&limiter::Request<'_>) -> Option<T>,
    ) -> Option<T> {
        let mut descriptors: SmallVec<[limiter::Descriptor<'_>; 2]> = SmallVec::new();
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
            descriptors.push(limiter::Descriptor { entries, ask, limit });
            begin = described.end;
        }
        answer(&limiter::Request { domain: self.domain, descriptors: &descriptors, patience })
    }
}

#[cfg(test)]
mod tests;
