//! The questions of `CheckStream` and their answers, independent of the transport.

use std::time::Duration;

use prost::Message as _;
use tollgate_counter::{resilience::Caller, time::ClockReading};
use tollgate_wire::protobuf::{
    FRAME_PREFIX_BYTES, FieldValue, MalformedMessage, MessageFields, begin, number,
};

use crate::api::{
    ApiKind,
    call::{CallReply, Handled, Verb},
    error::Error,
    service::Api,
    v1::{decide::PlannedCheck, decode::duration},
};

/// The questions of a stream that may be unanswered at a time.
pub const CREDITS: usize = 64;

/// Room for the number and the credits of an answer, in bytes.
const ANSWER_HEAD_BYTES: usize = 24;

/// A question that waits for another replica or for the shared store.
#[derive(Debug)]
pub struct WaitingQuestion {
    number: u64,
    begun: ClockReading,
    check: PlannedCheck,
}

/// A decoded question.
struct StreamQuestion<'m> {
    number: u64,
    check: &'m [u8],
    timeout: Result<Option<Duration>, Error>,
}

impl<'m> StreamQuestion<'m> {
    fn decode(message: &'m [u8]) -> Result<Self, MalformedMessage> {
        let mut question = Self { number: 0, check: &[], timeout: Ok(None) };
        let mut fields = MessageFields::new(message);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Varint(number)) => question.number = number,
                (2, FieldValue::Bytes(check)) => question.check = check,
                (3, FieldValue::Bytes(timeout)) => {
                    question.timeout = duration(timeout).map(Some).ok_or_else(invalid_timeout);
                }
                (1..=3, _wrong_type) => return Err(MalformedMessage),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
        }
        Ok(question)
    }
}

fn invalid_timeout() -> Error {
    Error::invalid("INVALID_TIMEOUT", "timeout: not a duration of zero or more")
}

/// The first message of a stream.
pub fn first_credits() -> Vec<u8> {
    let mut frame = vec![0; FRAME_PREFIX_BYTES];
    number(&mut frame, 4, CREDITS as u64);
    CallReply::from_frame(frame).frame
}

/// The answer to a question. It gives the credit of the question back.
fn answer(question: u64, field: u8, result: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_PREFIX_BYTES + ANSWER_HEAD_BYTES + result.len());
    frame.resize(FRAME_PREFIX_BYTES, 0);
    number(&mut frame, 1, question);
    number(&mut frame, 4, 1);
    begin(&mut frame, field, result.len());
    frame.extend_from_slice(result);
    CallReply::from_frame(frame).frame
}

impl Api {
    /// Answers a question, unless its counters are elsewhere: with a gRPC frame. `rest` is the time that is left to the
    /// stream. An error ends the stream, because its question has no number.
    pub fn answer_question(
        &self,
        message: &[u8],
        rest: Option<Duration>,
        caller: &Caller,
    ) -> Result<Handled<Vec<u8>, WaitingQuestion>, Error> {
        let question = StreamQuestion::decode(message).map_err(|error| self.counted(error.into()))?;
        let number = question.number;
        let view = self.limiter.view();
        // Its own timeout, at most the rest of the stream.
        let timeout = question.timeout.map(|own| own.into_iter().chain(rest).min());
        let checked =
            timeout.and_then(|timeout| self.check(Verb::Check, question.check, timeout, &view, caller));
        let decided = match checked {
            Ok(Handled::Waiting(check)) => {
                return Ok(Handled::Waiting(WaitingQuestion { number, begun: view.reading(), check }));
            }
            Ok(Handled::Ready(frame)) => Ok(frame),
            Err(error) => Err(error),
        };
        Ok(Handled::Ready(self.answer_of(number, view.age(), decided)))
    }

    fn answer_of(&self, question: u64, took: Duration, decided: Result<Vec<u8>, Error>) -> Vec<u8> {
        self.metrics.answered(ApiKind::TollgateV1, took);
        match decided {
            Ok(frame) => answer(question, 2, &frame[FRAME_PREFIX_BYTES..]),
            Err(error) => answer(question, 3, &self.counted(error).details().encode_to_vec()),
        }
    }

    fn counted(&self, error: Error) -> Error {
        self.metrics.count_unanswered(&error);
        error
    }
}

impl WaitingQuestion {
    /// The gRPC frame with the answer, once the counters have answered.
    pub async fn reply(self, api: &Api, caller: &Caller) -> Vec<u8> {
        let Self { number, begun, check } = self;
        let decided = check.reply(api, caller).await;
        api.answer_of(number, api.limiter.since(&begun), decided)
    }
}
