//! Our own API, `tollgate.v1`: from the bytes of a call to the bytes of its reply.
//!
//! Requests of a call that are decided each by itself are decoded, decided and encoded one after the other. Those with
//! counters elsewhere follow together, once all others are decided.

mod decide;
mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod reservations;
mod reset;
mod reset_access;
pub mod stream;

use tollgate_counter::resilience::Caller;
use tollgate_limiter::limiter::ActiveView;

pub(super) use decide::PartialDecision;
pub(super) use reset_access::ResetAccess;

use crate::api::{
    Api, Error,
    call::{Call, CallReply, SingleMethod},
};

impl Api {
    /// Answers a call of a method with one request.
    pub(super) async fn single_v1(
        &self,
        method: SingleMethod,
        call: Call<'_>,
        view: &ActiveView<'_>,
        connection: &Caller,
    ) -> Result<CallReply, Error> {
        match method {
            SingleMethod::Hold(verb) => self.hold(verb, call, view, connection).await,
            SingleMethod::Reset => self.reset(call, view).await,
        }
    }
}
