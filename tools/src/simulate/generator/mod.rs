//! Generated traffic: arrivals of a shape, keys by a law, an attacker, and clients that retry.

use std::{borrow::Cow, cmp::Reverse, collections::BinaryHeap, time::Duration};

use tollgate_counter::time::Timestamp;
use tollgate_wire::descriptor_template::{DescriptorTemplate, Fields};

use crate::{
    bench::{keys::Keys, schedule::Schedule},
    simulate::{
        event::{Event, GeneratedOrigin, READ_AHEAD, Skipped, Source},
        shape::Shape,
    },
};

/// The maximum number of pending retries; further ones are dropped.
const RETRIES_MAX: usize = 1_000_000;

/// What refused clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryPolicy {
    /// The maximum number of retries of a request.
    pub(super) max: u32,
    /// How long a client waits before it retries; `None` if as long as the refusal says, without a retry if the request
    /// would never pass.
    pub(super) wait: Option<Duration>,
}

/// The requests of a generator.
#[derive(Clone, Debug)]
pub(super) struct GeneratorTerms {
    pub(super) start: Timestamp,
    pub(super) domain: String,
    pub(super) template: DescriptorTemplate,
    pub(super) arrivals: Schedule,
    pub(super) shape: Shape,
    pub(super) keys: Keys,
    /// The arrivals of requests with the key `attacker`.
    pub(super) attack: Option<Schedule>,
    pub(super) retry: Option<RetryPolicy>,
}

/// The state of a generator.
#[derive(Debug)]
pub(super) struct Generated {
    terms: GeneratorTerms,
    next_user: Option<Timestamp>,
    next_attack: Option<Timestamp>,
    retries: BinaryHeap<Reverse<(Timestamp, GeneratedOrigin)>>,
    dropped_retries: u64,
    key: String,
}

/// The field of the key.
struct KeyField<'k>(&'k str);

impl Fields for KeyField<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        (name == GeneratorTerms::FIELD).then_some(Cow::Borrowed(self.0.as_bytes()))
    }
}

impl Generated {
    pub(super) fn new(mut terms: GeneratorTerms) -> Self {
        let next_user = terms.next_user();
        let next_attack = terms.next_attack();
        let retries = BinaryHeap::new();
        Self { terms, next_user, next_attack, retries, dropped_retries: 0, key: String::new() }
    }

    /// The next request in time; of several at one instant, retries first.
    fn take(&mut self) -> Option<(Timestamp, GeneratedOrigin)> {
        let fresh = [self.next_user, self.next_attack].into_iter().flatten().min();
        if let Some(Reverse((at, _))) = self.retries.peek()
            && fresh.is_none_or(|fresh| *at <= fresh)
        {
            return self.retries.pop().map(|Reverse(retry)| retry);
        }
        let at = fresh?;
        if self.next_user == Some(at) {
            self.next_user = self.terms.next_user();
            Some((at, GeneratedOrigin { key: Some(self.terms.keys.next()), attempt: 0 }))
        } else {
            self.next_attack = self.terms.next_attack();
            Some((at, GeneratedOrigin { key: None, attempt: 0 }))
        }
    }
}

impl GeneratorTerms {
    /// The only field of generated requests.
    pub(super) const FIELD: &str = "key";

    fn next_user(&mut self) -> Option<Timestamp> {
        self.arrivals.next().map(|instant| self.start.after(self.shape.warp(instant)))
    }

    fn next_attack(&mut self) -> Option<Timestamp> {
        self.attack.as_mut()?.next().map(|instant| self.start.after(instant))
    }
}

impl Source for Generated {
    fn next(&mut self, event: &mut Event) -> Result<bool, String> {
        let Some((at, origin)) = self.take() else { return Ok(false) };
        self.key.clear();
        match origin.key {
            Some(key) => {
                use std::fmt::Write as _;
                write!(self.key, "user-{key}").map_err(|error| error.to_string())?;
            }
            None => self.key.push_str("attacker"),
        }
        event.begin(at, &self.terms.domain, 1);
        event.origin = origin;
        event.fill(&self.terms.template, &KeyField(&self.key));
        Ok(true)
    }

    fn read_ahead(&self) -> usize {
        // A retry may be the very next request.
        if self.terms.retry.is_some() { 1 } else { READ_AHEAD }
    }

    fn refused(&mut self, event: &Event, retry_after: Option<Duration>) {
        let Some(retry) = self.terms.retry.filter(|retry| event.origin.attempt < retry.max) else { return };
        let Some(wait) = retry.wait.or(retry_after) else { return };
        if self.retries.len() >= RETRIES_MAX {
            self.dropped_retries += 1;
            return;
        }
        let origin = GeneratedOrigin { attempt: event.origin.attempt + 1, ..event.origin };
        self.retries.push(Reverse((event.at.after(wait), origin)));
    }

    fn skipped(&self) -> Skipped {
        Skipped { dropped_retries: self.dropped_retries, ..Skipped::default() }
    }
}

#[cfg(test)]
mod tests;
