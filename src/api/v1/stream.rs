//! The questions of `CheckStream` and their answers, independent of the transport.

use std::time::Duration;

use prost::Message as _;
use tollgate_counter::resilience::Caller;
use tollgate_wire::protobuf::{
    FRAME_PREFIX_BYTES, FieldValue, MalformedMessage, MessageFields, begin, frame_prefix, number,
};

use crate::api::{
    Api, ApiKind, Error,
    call::Verb,
    error::CallError,
    v1::{PartialDecision, decode::duration},
};

/// The questions of a stream that may be unanswered at a time.
pub const CREDITS: usize = 64;

/// Room for the number and the credits of an answer, in bytes.
const ANSWER_HEAD_BYTES: usize = 24;

/// Result of [`Api::answer_question`].
#[derive(Debug)]
pub enum AnsweredQuestion {
    /// A gRPC frame with the answer.
    Ready(Vec<u8>),
    /// The question must wait: use [`Api::finish_question`].
    Unfinished(UnfinishedAnswer),
}

/// A question that waits for another replica or for the shared store.
#[derive(Debug)]
pub struct UnfinishedAnswer(Option<PartialDecision>);

/// A decoded question.
struct StreamQuestion<'m> {
    number: u64,
    check: &'m [u8],
    timeout: Result<Option<Duration>, CallError>,
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
                    question.timeout = duration(timeout).map(Some).ok_or(CallError::Timeout);
                }
                (1..=3, _wrong_type) => return Err(MalformedMessage),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
        }
        Ok(question)
    }

    /// The time that the caller waits: its own timeout, at most the `rest` of the stream.
    fn timeout(&self, rest: Option<Duration>) -> Result<Option<Duration>, CallError> {
        let own = self.timeout?;
        Ok(own.into_iter().chain(rest).min())
    }
}

/// The first message of a stream.
pub fn first_credits() -> Vec<u8> {
    let mut frame = vec![0; FRAME_PREFIX_BYTES];
    number(&mut frame, 4, CREDITS as u64);
    framed(frame)
}

/// The answer to a question. It gives the credit of the question back.
fn answer(question: u64, field: u8, result: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_PREFIX_BYTES + ANSWER_HEAD_BYTES + result.len());
    frame.resize(FRAME_PREFIX_BYTES, 0);
    number(&mut frame, 1, question);
    number(&mut frame, 4, 1);
    begin(&mut frame, field, result.len());
    frame.extend_from_slice(result);
    framed(frame)
}

fn framed(mut frame: Vec<u8>) -> Vec<u8> {
    let prefix = frame_prefix(frame.len() - FRAME_PREFIX_BYTES);
    frame[..FRAME_PREFIX_BYTES].copy_from_slice(&prefix);
    frame
}

impl Api {
    /// Answers a question if its counters are local. `rest` is the time that is left to the stream. An error ends the
    /// stream, because its question has no number.
    pub fn answer_question(&self, message: &[u8], rest: Option<Duration>) -> Result<AnsweredQuestion, Error> {
        let mut partial = None;
        if self.limiter.has_no_counters() {
            return Ok(AnsweredQuestion::Unfinished(UnfinishedAnswer(partial)));
        }
        match Error::unless_elsewhere(self.question(message, rest, None, &mut partial)) {
            Some(answer) => answer.map(AnsweredQuestion::Ready),
            None => Ok(AnsweredQuestion::Unfinished(UnfinishedAnswer(partial))),
        }
    }

    /// Continues [`AnsweredQuestion::Unfinished`].
    pub async fn finish_question(
        &self,
        message: &[u8],
        rest: Option<Duration>,
        UnfinishedAnswer(mut partial): UnfinishedAnswer,
        connection: &Caller,
    ) -> Result<Vec<u8>, Error> {
        self.question(message, rest, Some(connection), &mut partial).await
    }

    async fn question(
        &self,
        message: &[u8],
        rest: Option<Duration>,
        elsewhere: Option<&Caller>,
        partial: &mut Option<PartialDecision>,
    ) -> Result<Vec<u8>, Error> {
        let question =
            StreamQuestion::decode(message).map_err(|error| self.counted(CallError::from(error).into()))?;
        let view = self.limiter.view();
        let decided = match question.timeout(rest) {
            Ok(timeout) => {
                self.decide_v1(Verb::Check, question.check, timeout, &view, elsewhere, partial).await
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = decided
            && error.is_elsewhere()
        {
            return Err(error);
        }
        self.metrics.answered(ApiKind::TollgateV1, view.age());
        Ok(self.answer_of(question.number, decided))
    }

    fn answer_of(&self, question: u64, decided: Result<Vec<u8>, Error>) -> Vec<u8> {
        match decided {
            Ok(frame) => answer(question, 2, &frame[FRAME_PREFIX_BYTES..]),
            Err(error) => answer(question, 3, &self.counted(error).details().encode_to_vec()),
        }
    }

    fn counted(&self, error: Error) -> Error {
        self.metrics.unanswered(error);
        error
    }
}
