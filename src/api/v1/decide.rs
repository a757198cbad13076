//! Decides the requests of a call, each by itself or all together.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate_counter::resilience::Caller;
use tollgate_limiter::limiter::{self, ActiveView, Answer, TooLarge};
use tollgate_wire::{proto::tollgate::v1::check_request::Mode, protobuf::FRAME_PREFIX_BYTES};

use crate::api::{
    Api, Error,
    call::Verb,
    error::CallError,
    v1::{
        decode::{DecodedRequest, EncodedRequests},
        encode::{self, DecidedRequest},
    },
};

/// Room for an answer with one limit, in bytes.
const ANSWER_BYTES: usize = 80;

/// What is decided of a call whose other counters are elsewhere.
#[derive(Debug)]
pub(in crate::api) struct PartialDecision {
    answers: EncodedAnswers,
    missing: Vec<Missing>,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
struct Missing {
    /// The index of the request in the call.
    request: usize,
    /// Where the answer of the request belongs in the response.
    at: usize,
}

/// How the requests of a call are decided, and where: here, or after that elsewhere.
#[derive(Clone, Copy)]
struct DecisionContext<'c> {
    verb: Verb,
    timeout: Option<Duration>,
    view: &'c ActiveView<'c>,
    elsewhere: Option<&'c Caller>,
}

/// Encoded answers.
#[derive(Debug, Default)]
struct EncodedAnswers {
    frame: Vec<u8>,
    // Whether an answer has a verdict, or an error that is the caller's.
    any_final: bool,
    errors: Vec<Error>,
}

impl PartialDecision {
    /// Nothing is decided of a call with this many requests.
    fn undecided(requests: usize) -> Self {
        let missing = |request| Missing { request, at: FRAME_PREFIX_BYTES };
        Self { answers: EncodedAnswers::for_call(requests), missing: (0..requests).map(missing).collect() }
    }
}

impl EncodedAnswers {
    fn for_call(requests: usize) -> Self {
        let mut frame = Vec::with_capacity(FRAME_PREFIX_BYTES + requests * ANSWER_BYTES);
        frame.resize(FRAME_PREFIX_BYTES, 0);
        Self { frame, any_final: false, errors: Vec::new() }
    }

    #[inline]
    fn decided(&mut self, request: &DecidedRequest<'_, '_>) {
        self.any_final = true;
        encode::decided(&mut self.frame, request);
    }

    #[cold]
    fn undecided(&mut self, id: &str, error: Error) {
        self.any_final |= error.is_caller_error();
        self.errors.push(error);
        encode::undecided(&mut self.frame, id, error);
    }

    /// The error of the call as a whole, if no request was decided and this is not the caller's fault. A caller repeats
    /// the call elsewhere if it has charged nothing, so an error of a request that may be charged comes first.
    fn failure(&self) -> Option<Error> {
        let charged = self.errors.iter().find(|error| !error.has_charged_nothing());
        charged.or(self.errors.first()).filter(|_| !self.any_final).copied()
    }

    /// Inserts the answers to `missing` requests, which are in the order of the call.
    fn insert(&mut self, missing: &[Missing], answers: Vec<Self>) {
        let mut rest = self.frame.split_off(missing.first().map_or(self.frame.len(), |first| first.at));
        let mut begin = self.frame.len();
        for (Missing { at, .. }, answer) in missing.iter().zip(answers) {
            let after = rest.split_off(at - begin);
            self.frame.append(&mut rest);
            (rest, begin) = (after, *at);
            self.frame.extend(answer.frame);
            self.any_final |= answer.any_final;
            self.errors.extend(answer.errors);
        }
        self.frame.append(&mut rest);
    }
}

impl Api {
    /// Decides the requests of a call whose counters are here. If others remain, the error is [`Error::ELSEWHERE`], and
    /// the call is continued `elsewhere` with the same `partial`.
    #[inline]
    pub(in crate::api) async fn decide_v1(
        &self,
        verb: Verb,
        message: &[u8],
        timeout: Option<Duration>,
        view: &ActiveView<'_>,
        elsewhere: Option<&Caller>,
        partial: &mut Option<PartialDecision>,
    ) -> Result<Vec<u8>, Error> {
        let requests = EncodedRequests::decode(verb, message, self.settings.bounds())?;
        let context = DecisionContext { verb, timeout, view, elsewhere };
        match requests.mode {
            Mode::Each => self.decide_each(&requests.each, context, partial).await,
            Mode::Together => self.decide_together(&requests.each, context).await,
        }
    }

    /// Decides requests, each by itself: here one after the other, elsewhere all at once.
    #[inline]
    async fn decide_each(
        &self,
        requests: &[&[u8]],
        context: DecisionContext<'_>,
        partial: &mut Option<PartialDecision>,
    ) -> Result<Vec<u8>, Error> {
        if context.elsewhere.is_some() {
            let PartialDecision { mut answers, missing } =
                partial.take().unwrap_or_else(|| PartialDecision::undecided(requests.len()));
            let each = missing.iter().map(async |missing| {
                let mut answers = EncodedAnswers::default();
                self.decide_request(requests[missing.request], context, &mut answers).await;
                answers
            });
            answers.insert(&missing, join_all(each).await);
            return self.whole(answers);
        }
        let mut answers = EncodedAnswers::for_call(requests.len());
        let mut missing = Vec::new();
        for (request, message) in requests.iter().enumerate() {
            if !self.decide_request(message, context, &mut answers).await {
                missing.push(Missing { request, at: answers.frame.len() });
            }
        }
        if missing.is_empty() {
            return self.whole(answers);
        }
        *partial = Some(PartialDecision { answers, missing });
        Err(Error::ELSEWHERE)
    }

    /// Decides one request. False if it has no answer, because its counters are elsewhere.
    #[inline]
    async fn decide_request(
        &self,
        message: &[u8],
        context: DecisionContext<'_>,
        answers: &mut EncodedAnswers,
    ) -> bool {
        let mut request = DecodedRequest::default();
        if let Err(fault) = request.read(message, self.settings.bounds()) {
            answers.undecided("", fault.into());
            return true;
        }
        let asked = match request.limiter_request(context.verb, context.timeout) {
            Ok(asked) => asked,
            Err(fault) => {
                answers.undecided(request.id, fault.into());
                return true;
            }
        };
        let DecisionContext { verb, view, elsewhere, .. } = context;
        let decided = match (request.once(verb, self.settings.request_id_window), elsewhere) {
            (Ok(None), _) => view.decide(&asked, elsewhere).await.map_err(Error::from),
            // A reservation and its settlement, or a refund, which may wait.
            (Ok(Some(_)), None) => Err(Error::ELSEWHERE),
            (Ok(Some(terms)), Some(connection)) => match verb {
                Verb::Refund => Box::pin(view.refund_once(&asked, &terms, connection)).await,
                Verb::Check | Verb::Peek => Box::pin(view.charge_once(&asked, &terms, connection)).await,
            }
            .map_err(Error::from),
            (Err(fault), _) => Err(fault.into()),
        };
        match decided {
            Ok(answer) => self.answer(answers, request.id, &asked, view, &answer),
            Err(error) if elsewhere.is_none() && error.is_elsewhere() => return false,
            Err(error) => answers.undecided(request.id, error),
        }
        true
    }

    /// Decides requests as one.
    async fn decide_together(
        &self,
        requests: &[&[u8]],
        context: DecisionContext<'_>,
    ) -> Result<Vec<u8>, Error> {
        let group = RequestGroup::decode(requests, self.settings.bounds())?;
        let parts = group.parts(context.verb, context.timeout)?;
        let request = together(&parts)?;
        let answer = context.view.decide(&request, context.elsewhere).await?;
        Ok(self.answer_group(&group, &parts, &request, context.view, &answer))
    }

    /// The response. If no request was decided, and this is not the caller's fault, the call as a whole fails, so that
    /// the caller's retries and load balancing see it.
    fn whole(&self, answers: EncodedAnswers) -> Result<Vec<u8>, Error> {
        if let Some(error) = answers.failure() {
            return Err(error);
        }
        answers.errors.into_iter().for_each(|error| self.metrics.unanswered(error));
        Ok(answers.frame)
    }

    #[inline]
    fn answer(
        &self,
        answers: &mut EncodedAnswers,
        id: &str,
        request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        answer: &Answer<'_>,
    ) {
        self.observe(request, view, answer);
        let modes = self.limiter.modes();
        answers.decided(&DecidedRequest {
            id,
            descriptors: request.descriptors(),
            passes: answer.passes,
            delay: answer.delay,
            retry_after: answer.retry_after(modes, request),
            never_because: answer.never_because(modes, request).as_deref(),
            statuses: &answer.statuses,
        });
    }

    /// The response to requests that were decided together: each has the verdict of all, and its own limits.
    fn answer_group(
        &self,
        group: &RequestGroup<'_>,
        parts: &[limiter::Request<'_>],
        request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        answer: &Answer<'_>,
    ) -> Vec<u8> {
        self.observe(request, view, answer);
        let mut answers = EncodedAnswers::for_call(parts.len());
        let modes = self.limiter.modes();
        let retry_after = answer.retry_after(modes, request);
        let never = answer.never_because(modes, request);
        let mut rest = &*answer.statuses;
        for (request, part) in group.0.iter().zip(parts) {
            let (statuses, others) = rest.split_at(part.descriptors().len());
            rest = others;
            let Answer { passes, delay, .. } = *answer;
            answers.decided(&DecidedRequest {
                id: request.id,
                descriptors: part.descriptors(),
                passes,
                delay,
                retry_after,
                never_because: never.as_deref(),
                statuses,
            });
        }
        answers.frame
    }
}

/// Requests that are decided together.
struct RequestGroup<'m>(Vec<DecodedRequest<'m>>);

impl<'m> RequestGroup<'m> {
    /// Decodes requests that have together at most as many descriptors as one.
    fn decode(requests: &[&'m [u8]], bounds: limiter::RequestBounds) -> Result<Self, CallError> {
        let mut each = Vec::with_capacity(requests.len());
        let mut descriptors = 0;
        for (index, message) in requests.iter().enumerate() {
            let request =
                DecodedRequest::decode(message, bounds).and_then(DecodedRequest::without_request_id);
            let request = request.map_err(|fault| CallError::Request { request: index, fault })?;
            descriptors += request.descriptors();
            if descriptors > bounds.descriptors {
                return Err(TooLarge::Descriptors { most: bounds.descriptors }.into());
            }
            each.push(request);
        }
        Ok(Self(each))
    }

    fn parts(&self, verb: Verb, timeout: Option<Duration>) -> Result<Vec<limiter::Request<'_>>, CallError> {
        let each = self.0.iter().enumerate().map(|(index, request)| {
            let asked = request.limiter_request(verb, timeout);
            asked.map_err(|fault| CallError::Request { request: index, fault })
        });
        each.collect()
    }
}

fn together<'r>(parts: &[limiter::Request<'r>]) -> Result<limiter::Request<'r>, CallError> {
    limiter::Request::together(parts)
        .map_err(|(request, error)| CallError::Request { request, fault: error.into() })
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::limiter::LimiterError;

    use super::*;

    #[test]
    fn call_fails_by_the_error_that_may_have_charged() {
        let joining = LimiterError::Joining.into();
        let remote = LimiterError::Remote.into();
        for errors in [[joining, remote], [remote, joining]] {
            let mut answers = EncodedAnswers::for_call(errors.len());
            errors.into_iter().for_each(|error| answers.undecided("", error));
            assert!(matches!(answers.failure(), Some(Error::LimiterError(LimiterError::Remote))));
        }
    }
}
