//! `Reserve`, `Settle` and `Cancel`: hits that are held until it is known how many are used.

use std::{borrow::Cow, time::Duration};

use tollgate_counter::{algorithm::Operation, resilience::Caller};
use tollgate_limiter::limiter::{
    self, ActiveView, AnswerOrPlan, HeldAnswer, HoldRequest, Plan, RequestBounds,
};
use tollgate_store::{HOLD_TTL_DEFAULT, HoldId, HoldTerms, OnExpiry};
use tollgate_wire::{
    proto::tollgate::v1::reserve_request,
    protobuf::{FRAME_PREFIX_BYTES, FieldValue, MalformedMessage, number, text, text_field},
};

use crate::api::{
    call::{Call, CallReply, Handled, HoldVerb},
    descriptors::Descriptors,
    error::Error,
    service::Api,
    v1::{
        decide::AnsweredPart,
        decode::{decode_descriptors, duration},
        encode,
    },
};

/// Room for the id and one limit, in bytes.
const RESPONSE_BYTES: usize = 128;

/// A decoded call.
struct HoldCall<'m> {
    descriptors: Descriptors<'m>,
    // Of descriptors that name none. `None`: each descriptor has 0, whatever it names.
    hits: Option<u64>,
    id: Cow<'m, str>,
    hold: HoldRequest,
}

/// A call whose counters are elsewhere.
#[derive(Debug)]
pub(in crate::api) struct PlannedHold {
    verb: HoldVerb,
    id: Box<str>,
    plan: Box<Plan>,
}

impl<'m> HoldCall<'m> {
    fn decode(verb: HoldVerb, message: &'m [u8], bounds: RequestBounds) -> Result<Self, Error> {
        match verb {
            HoldVerb::Reserve => Self::decode_reserve(message, bounds),
            HoldVerb::Settle | HoldVerb::Cancel => Self::decode_end(verb, message, bounds),
        }
    }

    fn decode_reserve(message: &'m [u8], bounds: RequestBounds) -> Result<Self, Error> {
        let mut amount = 0;
        let mut ttl = HOLD_TTL_DEFAULT;
        let mut id = "";
        let mut on_expiry = 0;
        let descriptors = decode_descriptors(message, bounds, |number, value| {
            match (number, value) {
                (3, FieldValue::Varint(hits)) => amount = hits,
                (4, FieldValue::Bytes(given)) => ttl = duration(given).ok_or_else(invalid_ttl)?,
                (5, FieldValue::Bytes(given)) => id = text(given)?,
                (6, FieldValue::Varint(number)) => on_expiry = number as i32,
                (3..=6, _wrong_type) => return Err(MalformedMessage.into()),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
            Ok(())
        })?;
        let on_expiry = on_expiry_of(on_expiry)?;
        let mut each = Vec::new();
        if descriptors.each.iter().any(|view| view.on_expiry.is_some()) {
            let own = descriptors.each.iter().map(|view| view.on_expiry.map(on_expiry_of).transpose());
            each = own.collect::<Result<_, _>>()?;
        }
        let id = match id {
            "" => Cow::Owned(format!("{:032x}", rand::random::<u128>())),
            given => Cow::Borrowed(given),
        };
        let terms = HoldTerms::new(hold_id(&id)?, ttl, on_expiry)?.with_descriptors(each);
        Ok(Self { descriptors, hits: Some(amount.max(1)), id, hold: HoldRequest::Reserve(terms) })
    }

    fn decode_end(verb: HoldVerb, message: &'m [u8], bounds: RequestBounds) -> Result<Self, Error> {
        let mut id = "";
        let mut actual = 0;
        let has_actual = verb == HoldVerb::Settle;
        let descriptors = decode_descriptors(message, bounds, |number, value| {
            match (number, value) {
                (3, FieldValue::Bytes(given)) => id = text(given)?,
                (4, FieldValue::Varint(hits)) if has_actual => actual = hits,
                (3, _wrong_type) => return Err(MalformedMessage.into()),
                (4, _wrong_type) if has_actual => return Err(MalformedMessage.into()),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
            Ok(())
        })?;
        if id.is_empty() {
            return Err(Error::invalid(
                "INVALID_ID",
                "reservation_id: missing; send that of the reservation",
            ));
        }
        let hits = has_actual.then_some(actual);
        let hold = HoldRequest::Settle(hold_id(id)?);
        Ok(Self { descriptors, hits, id: Cow::Borrowed(id), hold })
    }

    /// The request in the form of the limiter, of a caller that waits for `timeout`.
    fn limiter_request(&self, timeout: Option<Duration>) -> Result<limiter::Request<'_>, Error> {
        let request = self.descriptors.limiter_request(timeout, |view| {
            Operation::Charge(self.hits.map_or(0, |hits| view.hits.unwrap_or(hits)))
        });
        // The answer does not wait for the turn.
        Ok(request?.with_any_turn())
    }
}

impl Api {
    /// Makes or ends a reservation, unless its counters are elsewhere.
    // `inline(never)`: keeps the stack frame of other calls small.
    #[inline(never)]
    pub(in crate::api) fn hold(
        &self,
        verb: HoldVerb,
        call: Call<'_>,
        view: &ActiveView<'_>,
        caller: &Caller,
    ) -> Result<Handled<CallReply, PlannedHold>, Error> {
        let decoded = HoldCall::decode(verb, call.message, self.settings.bounds())?;
        let request = decoded.limiter_request(call.timeout())?;
        let HoldCall { id, hold, .. } = &decoded;
        Ok(match view.hold(&request, hold.clone(), caller)? {
            AnswerOrPlan::Answer(held) => Handled::Ready(self.hold_reply(verb, id, &request, view, &held)),
            AnswerOrPlan::Plan(plan) => {
                let id = id.as_ref().into();
                Handled::Waiting(PlannedHold { verb, id, plan })
            }
        })
    }

    fn hold_reply(
        &self,
        verb: HoldVerb,
        id: &str,
        request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        held: &HeldAnswer<'_>,
    ) -> CallReply {
        let mut frame = vec![0; FRAME_PREFIX_BYTES];
        frame.reserve(RESPONSE_BYTES);
        match verb {
            HoldVerb::Reserve => {
                let HeldAnswer { answer, is_held, has_ended, .. } = held;
                let part = AnsweredPart { id: "", descriptors: request.descriptors().len() };
                self.answer(&mut frame, &[part], request, view, answer);
                if *is_held {
                    text_field(&mut frame, 2, id);
                    number(&mut frame, 3, u64::from(*has_ended));
                }
                CallReply { passes: Some(answer.passes), ..CallReply::from_frame(frame) }
            }
            HoldVerb::Settle | HoldVerb::Cancel => {
                encode::settled(&mut frame, held);
                CallReply::from_frame(frame)
            }
        }
    }
}

impl PlannedHold {
    /// The reply, once the counters have answered.
    pub(in crate::api) async fn reply(self, api: &Api, caller: &Caller) -> Result<CallReply, Error> {
        let Self { verb, id, mut plan } = self;
        let outcomes = plan.outcomes(&api.limiter, caller).await?;
        Ok(plan.answer(&api.limiter, &outcomes, |view, request, held| {
            api.hold_reply(verb, &id, request, view, held)
        }))
    }
}

fn hold_id(id: &str) -> Result<HoldId, Error> {
    HoldId::new(id.as_bytes())
        .map_err(|error| Error::invalid("INVALID_ID", error.to_string()).at("reservation_id"))
}

fn invalid_ttl() -> Error {
    Error::invalid("INVALID_TTL", "ttl: not a duration from 1 ms to 24 h")
}

/// What happens at the expiry, by its number.
fn on_expiry_of(number: i32) -> Result<OnExpiry, Error> {
    match reserve_request::OnExpiry::try_from(number) {
        Ok(reserve_request::OnExpiry::Release) => Ok(OnExpiry::Release),
        Ok(reserve_request::OnExpiry::Charge) => Ok(OnExpiry::Charge),
        Err(_) => {
            let why = format!("on_expiry: {number} is unknown; send RELEASE or CHARGE");
            Err(Error::invalid("UNKNOWN_ON_EXPIRY", why))
        }
    }
}
