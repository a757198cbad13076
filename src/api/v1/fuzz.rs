//! Fuzz target of the calls of `tollgate.v1`.

use futures_util::FutureExt as _;
use prost::Message;
use tollgate_counter::resilience::Caller;
use tollgate_limiter::limiter::HoldError;
use tollgate_wire::{
    proto::tollgate::v1::{
        Answer, CancelRequest, CheckRequest, CheckResponse, Question, QuestionAnswer, ReserveRequest,
        ReserveResponse, SettleRequest, SettleResponse, answer::Verdict,
    },
    protobuf::FRAME_PREFIX_BYTES,
};

use crate::api::{
    call::{ApiKind, Call, CallReply, Handled, HoldVerb, Method, ResetPrecision, Verb},
    error::Error,
    fuzz::api,
    service::Api,
    v1::stream::CREDITS,
};

/// An encoded call, with each method that takes it, and as the question of a stream: each of its requests has an
/// answer, and what `prost` reads is not malformed.
pub fn v1(message: &[u8]) {
    let decoded = CheckRequest::decode(message);
    for verb in [Verb::Check, Verb::Peek, Verb::Refund] {
        let call = Call {
            method: Method::Decide(verb),
            message,
            metadata: None,
            precision: ResetPrecision::Nanos,
            api: ApiKind::TollgateV1,
        };
        match at_once(api().handle(call, &Caller::default())) {
            Ok(reply) => check_reply(&reply, message),
            Err(error) if error.reason == "MALFORMED" => assert!(decoded.is_err()),
            Err(error) => assert!(error.is_caller_error(), "{error}"),
        }
    }
    let question = Question { number: 7, check: decoded.ok(), timeout: None }.encode_to_vec();
    for question in [&question, message] {
        let api = api();
        match api.answer_question(question, None, &Caller::default()) {
            Ok(Handled::Ready(frame)) => {
                let answer =
                    QuestionAnswer::decode(&frame[FRAME_PREFIX_BYTES..]).expect("an answer is valid");
                assert!(answer.credits == 1 && answer.credits as usize <= CREDITS);
                assert_eq!(answer.encode_to_vec().len(), frame.len() - FRAME_PREFIX_BYTES);
            }
            Ok(Handled::Waiting(_)) => unreachable!("there is no other replica"),
            Err(error) => assert!(error.is_caller_error() && Question::decode(question).is_err(), "{error}"),
        }
    }
    hold(message);
}

/// A call for a reservation, with each method: what is held is settled and canceled by the same descriptors.
fn hold(message: &[u8]) {
    let api = api();
    let is_malformed = [
        ReserveRequest::decode(message).is_err(),
        SettleRequest::decode(message).is_err(),
        CancelRequest::decode(message).is_err(),
    ];
    for (verb, is_malformed) in
        [HoldVerb::Reserve, HoldVerb::Settle, HoldVerb::Cancel].into_iter().zip(is_malformed)
    {
        match call_hold(&api, verb, message) {
            Ok(reply) => check_hold_reply(verb, &reply),
            Err(error) if error.reason == "MALFORMED" => assert!(is_malformed),
            Err(error) => assert!(error.is_caller_error() || error == HoldError::Exhausted.into(), "{error}"),
        }
    }
    let Ok(ReserveRequest { domain, descriptors, .. }) = ReserveRequest::decode(message) else { return };
    let Ok(held) = call_hold(&api, HoldVerb::Reserve, message) else { return };
    let held = ReserveResponse::decode(held.message()).expect("a reply is valid");
    if held.reservation_id.is_empty() {
        return;
    }
    let reservation_id = held.reservation_id;
    let settle = SettleRequest { domain, descriptors, reservation_id, actual: 1 };
    let settled = call_hold(&api, HoldVerb::Settle, &settle.encode_to_vec()).expect("it was reserved");
    let settled = SettleResponse::decode(settled.message()).expect("a reply is valid");
    let limits = held.answer.map(|answer| answer.limits).unwrap_or_default();
    assert_eq!(settled.limits.len(), limits.len());
    assert!(!settled.unknown, "it was reserved at the same instant");
    let SettleRequest { domain, descriptors, reservation_id, .. } = settle;
    let cancel = CancelRequest { domain, descriptors, reservation_id };
    let canceled = call_hold(&api, HoldVerb::Cancel, &cancel.encode_to_vec()).expect("it was reserved");
    assert_eq!(SettleResponse::decode(canceled.message()), Ok(settled), "it was settled before");
}

fn call_hold(api: &Api, verb: HoldVerb, message: &[u8]) -> Result<CallReply, Error> {
    let call = Call {
        method: Method::Hold(verb),
        message,
        metadata: None,
        precision: ResetPrecision::Nanos,
        api: ApiKind::TollgateV1,
    };
    at_once(api.handle(call, &Caller::default()))
}

/// The result of what waits for nothing, as there is no other replica.
fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("there is no other replica")
}

fn check_hold_reply(verb: HoldVerb, reply: &CallReply) {
    let again = match verb {
        HoldVerb::Reserve => {
            ReserveResponse::decode(reply.message()).map(|response| response.encode_to_vec())
        }
        // That of `Cancel` has the same fields.
        HoldVerb::Settle | HoldVerb::Cancel => {
            SettleResponse::decode(reply.message()).map(|response| response.encode_to_vec())
        }
    };
    assert_eq!(again.expect("a reply is valid"), reply.message(), "as `prost` writes it");
}

fn check_reply(reply: &CallReply, message: &[u8]) {
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
