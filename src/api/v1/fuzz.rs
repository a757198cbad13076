//! Fuzz target of the calls of `tollgate.v1`.

use prost::Message;

use crate::api::{
    Error, Settings,
    call::{Call, Method, Reply, Verb},
    fuzz::api,
    handle::Handled,
    proto::tollgate::v1::{Answer, CheckRequest, CheckResponse, Question, QuestionAnswer, answer::Verdict},
    protobuf::FRAME_PREFIX_BYTES,
    rls::ResetPrecision,
    v1::{
        CallError,
        stream::{Answered, CREDITS},
    },
};

/// An encoded call, with each method that takes it, and as the question of a stream: each of its requests has an
/// answer, and what `prost` reads is not malformed.
pub fn v1(message: &[u8]) {
    let decoded = CheckRequest::decode(message);
    for verb in [Verb::Check, Verb::Peek, Verb::Refund] {
        let call =
            Call { method: Method::Decide(verb), message, metadata: None, precision: ResetPrecision::Nanos };
        match api().batch().handle(call) {
            Ok(Handled::Ready(reply)) => check_reply(&reply, message),
            Ok(Handled::Unfinished(_)) => unreachable!("there is no other replica"),
            Err(Error::Call(CallError::Malformed)) => assert!(decoded.is_err()),
            Err(error) => assert!(error.is_caller_error(), "{error}"),
        }
    }
    let question = Question { number: 7, check: decoded.ok(), timeout: None }.encode_to_vec();
    for question in [&question, message] {
        match api().answer_question(question, None) {
            Ok(Answered::Ready(frame)) => {
                let answer =
                    QuestionAnswer::decode(&frame[FRAME_PREFIX_BYTES..]).expect("an answer is valid");
                assert!(answer.credits == 1 && answer.credits as usize <= CREDITS);
                assert_eq!(answer.encode_to_vec().len(), frame.len() - FRAME_PREFIX_BYTES);
            }
            Ok(Answered::Unfinished(_)) => unreachable!("there is no other replica"),
            Err(error) => assert!(error.is_caller_error() && Question::decode(question).is_err(), "{error}"),
        }
    }
}

fn check_reply(reply: &Reply, message: &[u8]) {
    let response = CheckResponse::decode(reply.message()).expect("a reply is valid");
    assert_eq!(response.encode_to_vec(), reply.message(), "as `prost` writes it");
    if let Ok(call) = CheckRequest::decode(message) {
        assert_eq!(response.answers.len(), call.requests.len());
        for (request, answer) in call.requests.iter().zip(&response.answers) {
            // A request that is too large is not read to its id.
            assert!(request.id == answer.id || answer.id.is_empty() && answer.error.is_some());
        }
    }
    let is_consistent = |answer: &Answer| (answer.verdict() == Verdict::Undecided) == answer.error.is_some();
    assert!(response.answers.iter().all(is_consistent));
}
