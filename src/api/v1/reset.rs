//! `Reset`: replaces counters by unused ones, with the admin token. Its texts are escaped, as operators see them.

use std::borrow::Cow;

use axum::http::HeaderMap;
use tollgate_counter::{
    algorithm::Operation,
    descriptor::{self, Entry},
    resilience::{Caller, CallerAccess},
};
use tollgate_telemetry::logs::UNLIMITED;
use tollgate_wire::protobuf::{FRAME_PREFIX_BYTES, nested, number, text_field};
use tonic::Code;
use tracing::info;

use crate::api::{
    call::{CallReply, OperatorVerb},
    error::{AccessError, Error},
    service::Api,
    v1::decode::decode_descriptors,
};

const NOT_ESCAPED: &str =
    "a key or a value is not escaped: a backslash is `\\\\`, a byte that is not UTF-8 is as `\\xE9`";

impl Api {
    /// Answers a call of an operator, if the metadata have the admin token or the caller may do it without.
    pub(in crate::api) async fn operate(
        &self,
        verb: OperatorVerb,
        message: &[u8],
        metadata: Option<&HeaderMap>,
        caller: &Caller,
    ) -> Result<CallReply, Error> {
        if verb == OperatorVerb::Reset || caller.access() != CallerAccess::Limits {
            let access = self.reset_access.as_ref().ok_or(AccessError::NoToken)?;
            access.check(metadata).await?;
        }
        match verb {
            OperatorVerb::Reset => self.reset(message).await,
            OperatorVerb::SetLimits => self.set_limits(message, caller).await,
            OperatorVerb::GetLimits => self.get_limits(message).await,
            OperatorVerb::ClearLimits => self.clear_limits(message, caller).await,
            OperatorVerb::ListLimits => self.list_limits(message).await,
        }
    }

    /// Resets counters. If a descriptor has no counter, nothing is reset.
    async fn reset(&self, message: &[u8]) -> Result<CallReply, Error> {
        // After the token, which may wait for a file.
        let view = self.limiter.view();
        let bounds = self.settings.bounds();
        let place = |index: usize| format!("descriptors[{index}]");
        let descriptors = decode_descriptors(message, bounds, |_unknown, _| Ok(()))?;
        let domain = descriptors.domain;
        if let Some(index) =
            descriptors.each.iter().position(|view| view.limit.is_some() || view.hits.is_some())
        {
            let why = "this call takes neither limits nor hits";
            return Err(Error::new(Code::InvalidArgument, "LIMIT_OR_HITS", why).at(place(index)));
        }
        let request = descriptors.limiter_request(None, |_| Operation::Peek)?;
        let mut counters = Vec::new();
        for (index, descriptor) in request.descriptors().iter().enumerate() {
            let parts = unescaped(descriptor.entries).ok_or_else(|| {
                Error::new(Code::InvalidArgument, "NOT_ESCAPED", NOT_ESCAPED).at(place(index))
            })?;
            let entries: Vec<_> = parts.iter().map(|(key, value)| Entry::new(key, value)).collect();
            let counter = view.counter_ref(domain, &entries).await;
            counters.push(counter.map_err(|error| Error::from(error).at(place(index)))?);
        }
        let mut frame = vec![0; FRAME_PREFIX_BYTES];
        for (index, counter) in counters.iter().enumerate() {
            let states = view.replace(counter, 0).await;
            let states = states.map_err(|error| Error::from(error).at(place(index)))?;
            let [before, after] = states.map(|state| state.peek.remaining);
            info!(
                name: UNLIMITED,
                domain,
                rule = &*counter.rule.label(),
                remaining_before = before,
                remaining_after = after,
                "reset a counter"
            );
            nested(&mut frame, 1, |out| {
                text_field(out, 1, counter.rule.name());
                number(out, 2, before);
                number(out, 3, after);
            });
        }
        Ok(CallReply::from_frame(frame))
    }
}

/// A key and a value in which escapes are the bytes that they stand for.
type UnescapedEntry<'m> = (Cow<'m, [u8]>, Cow<'m, [u8]>);

/// The keys and values of these entries. Texts are escaped; what is not UTF-8 stands for itself. `None` if a backslash
/// begins no escape.
pub(super) fn unescaped<'m>(entries: &[Entry<'m>]) -> Option<Vec<UnescapedEntry<'m>>> {
    let part = |part: &'m [u8]| match str::from_utf8(part) {
        Ok(text) => descriptor::unescaped(text).ok(),
        Err(_) => Some(Cow::Borrowed(part)),
    };
    entries.iter().map(|entry| Some((part(entry.key)?, part(entry.value)?))).collect()
}
