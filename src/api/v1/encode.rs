//! Encodes answers into the buffer of a reply.

use std::time::Duration;

use prost::Message as _;
use tollgate_limiter::limiter::{Answer, Descriptor, HeldAnswer, Status};
use tollgate_store::{SettleOutcome, Settled};
use tollgate_wire::{
    proto::tollgate::v1::{answer::Verdict, settled_limit::Outcome},
    protobuf::{begin, nested, number, text_field},
};

use crate::api::{denial_body::When, descriptors::unit_number, error::Error};

/// Appends the answer to the request with this id, which has these descriptors of those that were decided together.
#[inline]
pub(super) fn decided(
    out: &mut Vec<u8>,
    id: &str,
    descriptors: &[Descriptor<'_>],
    statuses: &[Status<'_>],
    answer: &Answer<'_>,
    when: When<'_>,
) {
    nested(out, 1, |out| {
        text_field(out, 1, id);
        let verdict = if answer.passes { Verdict::Allowed } else { Verdict::Denied };
        number(out, 2, verdict as u64);
        if !answer.delay.is_zero() {
            duration(out, 3, answer.delay);
        }
        if let Some(after) = when.retry_after {
            duration(out, 4, after);
        }
        for (index, (status, descriptor)) in statuses.iter().zip(descriptors).enumerate() {
            limit_status(out, index as u64, status, descriptor);
        }
        number(out, 6, statuses.iter().any(|status| status.degraded).into());
        text_field(out, 8, when.never_because.unwrap_or_default());
    });
}

/// Appends the answer to a request that was not decided.
pub(super) fn undecided(out: &mut Vec<u8>, id: &str, error: &Error) {
    let error = error.details();
    nested(out, 1, |out| {
        text_field(out, 1, id);
        begin(out, 7, error.encoded_len());
        // Infallible: a vector grows as needed.
        error.encode_raw(out);
    });
}

fn limit_status(out: &mut Vec<u8>, index: u64, status: &Status<'_>, descriptor: &Descriptor<'_>) {
    let Some(limit) = &status.limit else { return };
    nested(out, 5, |out| {
        number(out, 1, index);
        text_field(out, 2, rule(status));
        number(out, 3, limit.requests_per_unit);
        number(out, 4, unit_number(limit.unit) as u64);
        number(out, 5, status.remaining);
        if let Some(after) = status.reset_after.filter(|_| status.most_hits(descriptor).is_none()) {
            duration(out, 6, after);
        }
        if let Some(after) = status.retry_after {
            duration(out, 7, after);
        }
        number(out, 8, (!status.passes).into());
        number(out, 9, status.refused_in_shadow.into());
        number(out, 10, status.candidate_refuses.into());
        number(out, 11, status.degraded.into());
    });
}

/// Appends the answer to a reservation that has ended.
pub(super) fn settled(out: &mut Vec<u8>, HeldAnswer { answer, settled, .. }: &HeldAnswer<'_>) {
    let each = || settled.iter().enumerate().filter_map(|(index, settled)| Some((index, (*settled)?)));
    for (index, settled) in each() {
        settled_limit(out, index as u64, &answer.statuses[index], &settled);
    }
    number(out, 2, each().any(|(_, settled)| settled.outcome == SettleOutcome::Unknown).into());
}

fn settled_limit(out: &mut Vec<u8>, index: u64, status: &Status<'_>, settled: &Settled) {
    let outcome = match settled.outcome {
        SettleOutcome::Open => Outcome::Open,
        SettleOutcome::Charged => Outcome::Charged,
        SettleOutcome::Released => Outcome::Released,
        SettleOutcome::Unknown => Outcome::Unknown,
    };
    nested(out, 1, |out| {
        number(out, 1, index);
        text_field(out, 2, rule(status));
        number(out, 3, outcome as u64);
        number(out, 4, settled.reserved);
        number(out, 5, settled.uncharged);
        number(out, 6, settled.remaining);
        duration(out, 7, settled.reset_after);
    });
}

/// The name of the rule, or its path; empty for an override.
fn rule<'s>(status: &Status<'s>) -> &'s str {
    status.rule.map_or("", |rule| rule.name())
}

/// Encodes a `google.protobuf.Duration`. Its numbers are signed, and those of [`Duration`] are not.
fn duration(out: &mut Vec<u8>, field: u8, duration: Duration) {
    nested(out, field, |out| {
        number(out, 1, duration.as_secs().min(i64::MAX as u64));
        number(out, 2, duration.subsec_nanos().into());
    });
}
