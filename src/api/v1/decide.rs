//! Decides the requests of a call, each by itself or all together.

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tollgate_counter::resilience::Caller;
use tollgate_limiter::limiter::{self, ActiveView, Answer, AnswerOrPlan, HoldRequest, Plan, TooLarge};
use tollgate_wire::{proto::tollgate::v1::check_request::Mode, protobuf::FRAME_PREFIX_BYTES};

use crate::api::{
    call::{Handled, Verb},
    denial_body::When,
    error::Error,
    service::Api,
    v1::{
        decode::{DecodedRequest, EncodedRequests, MALFORMED_REQUEST},
        encode,
    },
};

/// Room for an answer with one limit, in bytes.
const ANSWER_BYTES: usize = 80;

/// A call of which some counters are elsewhere: its answers, in their order.
#[derive(Debug)]
pub(in crate::api) struct PlannedCheck(Vec<PartOfCheck>);

/// Answers that follow each other.
#[derive(Debug)]
enum PartOfCheck {
    Encoded(EncodedAnswers),
    /// Answers to requests that are decided as one, before their decision.
    Planned(Box<Plan>, SmallVec<[AnsweredPart<Box<str>>; 1]>),
}

/// A request of a call that is answered: its id, and the number of its descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredPart<I> {
    pub(super) id: I,
    pub(super) descriptors: usize,
}

/// How the requests of a call are decided.
#[derive(Clone, Copy)]
struct DecisionContext<'c> {
    verb: Verb,
    timeout: Option<Duration>,
    view: &'c ActiveView<'c>,
    caller: &'c Caller,
}

/// Encoded answers.
#[derive(Debug, Default)]
struct EncodedAnswers {
    frame: Vec<u8>,
    // Whether an answer has a verdict, or an error that is the caller's.
    any_final: bool,
    errors: Vec<Error>,
}

impl EncodedAnswers {
    fn for_call(requests: usize) -> Self {
        let mut frame = Vec::with_capacity(FRAME_PREFIX_BYTES + requests * ANSWER_BYTES);
        frame.resize(FRAME_PREFIX_BYTES, 0);
        Self { frame, any_final: false, errors: Vec::new() }
    }

    /// The buffer, for an answer with a verdict.
    #[inline]
    fn decided(&mut self) -> &mut Vec<u8> {
        self.any_final = true;
        &mut self.frame
    }

    #[cold]
    fn undecided(&mut self, id: &str, error: Error) {
        self.any_final |= error.is_caller_error();
        encode::undecided(&mut self.frame, id, &error);
        self.errors.push(error);
    }

    fn append(&mut self, later: Self) {
        self.frame.extend(later.frame);
        self.any_final |= later.any_final;
        self.errors.extend(later.errors);
    }

    /// The error of the call as a whole, if no request was decided and this is not the caller's fault. A caller repeats
    /// the call elsewhere if it has charged nothing, so an error of a request that may be charged comes first.
    fn failure(&self) -> Option<Error> {
        let charged = self.errors.iter().find(|error| !error.has_charged_nothing());
        charged.or(self.errors.first()).filter(|_| !self.any_final).cloned()
    }
}

impl Api {
    /// Decides the requests of a call, unless counters are elsewhere.
    #[inline]
    pub(in crate::api) fn check(
        &self,
        verb: Verb,
        message: &[u8],
        timeout: Option<Duration>,
        view: &ActiveView<'_>,
        caller: &Caller,
    ) -> Result<Handled<Vec<u8>, PlannedCheck>, Error> {
        let requests = EncodedRequests::decode(verb, message, self.settings.bounds())?;
        let context = DecisionContext { verb, timeout, view, caller };
        match requests.mode {
            Mode::Each => self.decide_each(&requests.each, context),
            Mode::Together => self.decide_together(&requests.each, context),
        }
    }

    /// Decides requests, each by itself.
    #[inline]
    fn decide_each(
        &self,
        requests: &[&[u8]],
        context: DecisionContext<'_>,
    ) -> Result<Handled<Vec<u8>, PlannedCheck>, Error> {
        let mut answers = EncodedAnswers::for_call(requests.len());
        let mut parts = Vec::new();
        for message in requests {
            if let Some(planned) = self.decide_request(message, context, &mut answers) {
                parts.push(PartOfCheck::Encoded(std::mem::take(&mut answers)));
                parts.push(planned);
            }
        }
        if parts.is_empty() {
            return self.whole(answers).map(Handled::Ready);
        }
        parts.push(PartOfCheck::Encoded(answers));
        Ok(Handled::Waiting(PlannedCheck(parts)))
    }

    /// Decides one request, and encodes its answer unless its counters are elsewhere.
    #[inline]
    fn decide_request(
        &self,
        message: &[u8],
        context: DecisionContext<'_>,
        answers: &mut EncodedAnswers,
    ) -> Option<PartOfCheck> {
        let mut request = DecodedRequest::default();
        if let Err(error) = request.read(message, self.settings.bounds()) {
            answers.undecided("", Error::with_malformed_text(MALFORMED_REQUEST)(error));
            return None;
        }
        let DecisionContext { verb, timeout, view, .. } = context;
        let asked = match request.limiter_request(verb, timeout) {
            Ok(asked) => asked,
            Err(error) => {
                answers.undecided(request.id, error);
                return None;
            }
        };
        let part = AnsweredPart { id: request.id, descriptors: asked.descriptors().len() };
        match request.once(verb, self.settings.request_id_window) {
            Ok(None) => {}
            Ok(Some(hold)) => return self.decide_once(hold, part, &asked, context, answers),
            Err(error) => {
                answers.undecided(request.id, error);
                return None;
            }
        }
        let decided = view.decide(&asked);
        match decided {
            // Borrowed, because an answer is large to move.
            Ok(AnswerOrPlan::Answer(ref answer)) => {
                self.answer(answers.decided(), &[part], &asked, view, answer)
            }
            Ok(AnswerOrPlan::Plan(plan)) => return Some(PartOfCheck::planned(plan, [part])),
            Err(error) => answers.undecided(request.id, error.into()),
        }
        None
    }

    /// Charges or refunds a request once for its id.
    // `inline(never)`: keeps the stack frame of the common path small.
    #[inline(never)]
    fn decide_once(
        &self,
        hold: HoldRequest,
        part: AnsweredPart<&str>,
        asked: &limiter::Request<'_>,
        DecisionContext { view, caller, .. }: DecisionContext<'_>,
        answers: &mut EncodedAnswers,
    ) -> Option<PartOfCheck> {
        match view.hold(asked, hold, caller) {
            Ok(AnswerOrPlan::Answer(held)) => {
                self.answer(answers.decided(), &[part], asked, view, &held.answer)
            }
            Ok(AnswerOrPlan::Plan(plan)) => return Some(PartOfCheck::planned(plan, [part])),
            Err(error) => answers.undecided(part.id, error.into()),
        }
        None
    }

    /// Decides requests as one: each has the verdict of all, and its own limits.
    fn decide_together(
        &self,
        requests: &[&[u8]],
        DecisionContext { verb, timeout, view, .. }: DecisionContext<'_>,
    ) -> Result<Handled<Vec<u8>, PlannedCheck>, Error> {
        let decoded = decode_all(requests, self.settings.bounds())?;
        let each = decoded.iter().enumerate().map(|(index, request)| {
            let asked = request.limiter_request(verb, timeout);
            asked.map_err(in_request(index))
        });
        let each = each.collect::<Result<Vec<_>, _>>()?;
        let request =
            limiter::Request::together(&each).map_err(|(index, error)| in_request(index)(error.into()))?;
        let ids = decoded.iter().map(|request| request.id);
        let parts: Vec<AnsweredPart<&str>> = ids
            .zip(&each)
            .map(|(id, request)| AnsweredPart { id, descriptors: request.descriptors().len() })
            .collect();
        match view.decide(&request)? {
            AnswerOrPlan::Answer(answer) => {
                let mut answers = EncodedAnswers::for_call(parts.len());
                self.answer(answers.decided(), &parts, &request, view, &answer);
                self.whole(answers).map(Handled::Ready)
            }
            AnswerOrPlan::Plan(plan) => {
                let answers = EncodedAnswers::for_call(parts.len());
                let planned = PartOfCheck::planned(plan, parts);
                Ok(Handled::Waiting(PlannedCheck(vec![PartOfCheck::Encoded(answers), planned])))
            }
        }
    }

    /// The response. If no request was decided, and this is not the caller's fault, the call as a whole fails, so that
    /// the caller's retries and load balancing see it.
    fn whole(&self, answers: EncodedAnswers) -> Result<Vec<u8>, Error> {
        if let Some(error) = answers.failure() {
            return Err(error);
        }
        answers.errors.iter().for_each(|error| self.metrics.count_unanswered(error));
        Ok(answers.frame)
    }

    /// Appends the answers to the parts of `request`.
    #[inline]
    pub(super) fn answer<I: AsRef<str>>(
        &self,
        frame: &mut Vec<u8>,
        parts: &[AnsweredPart<I>],
        request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        answer: &Answer<'_>,
    ) {
        self.observe(request, view, answer);
        let modes = self.limiter.modes();
        let never = answer.never_because(modes, request);
        let when = When { retry_after: answer.retry_after(modes, request), never_because: never.as_deref() };
        let mut begin = 0;
        for AnsweredPart { id, descriptors } in parts {
            let range = begin..begin + descriptors;
            begin = range.end;
            let descriptors = &request.descriptors()[range.clone()];
            encode::decided(frame, id.as_ref(), descriptors, &answer.statuses[range], answer, when);
        }
    }
}

impl PartOfCheck {
    fn planned<'i>(plan: Box<Plan>, parts: impl IntoIterator<Item = AnsweredPart<&'i str>>) -> Self {
        let part =
            |part: AnsweredPart<&str>| AnsweredPart { id: part.id.into(), descriptors: part.descriptors };
        Self::Planned(plan, parts.into_iter().map(part).collect())
    }
}

impl PlannedCheck {
    /// The response, once the counters have answered.
    pub(in crate::api) async fn reply(self, api: &Api, caller: &Caller) -> Result<Vec<u8>, Error> {
        let Self(mut parts) = self;
        let outcomes = parts.iter_mut().filter_map(|part| match part {
            PartOfCheck::Encoded(_) => None,
            PartOfCheck::Planned(plan, _) => Some(plan.outcomes(&api.limiter, caller)),
        });
        let mut outcomes = join_all(outcomes).await.into_iter();
        let mut answers = EncodedAnswers::default();
        for part in parts {
            let (plan, requests) = match part {
                PartOfCheck::Encoded(part) => {
                    answers.append(part);
                    continue;
                }
                PartOfCheck::Planned(plan, requests) => (plan, requests),
            };
            match outcomes.next() {
                Some(Ok(outcomes)) => plan.answer(&api.limiter, &outcomes, |view, request, held| {
                    api.answer(answers.decided(), &requests, request, view, &held.answer);
                }),
                Some(Err(error)) => {
                    requests.iter().for_each(|part| answers.undecided(&part.id, error.into()));
                }
                // Each plan has outcomes.
                None => {}
            }
        }
        api.whole(answers)
    }
}

/// Decodes requests that are decided together, and have together at most as many descriptors as one.
fn decode_all<'m>(
    requests: &[&'m [u8]],
    bounds: limiter::RequestBounds,
) -> Result<Vec<DecodedRequest<'m>>, Error> {
    let mut each = Vec::with_capacity(requests.len());
    let mut descriptors = 0;
    for (index, message) in requests.iter().enumerate() {
        let request = DecodedRequest::decode(message, bounds).and_then(DecodedRequest::without_request_id);
        let request = request.map_err(in_request(index))?;
        descriptors += request.descriptors();
        if descriptors > bounds.descriptors {
            return Err(TooLarge::Descriptors { most: bounds.descriptors }.into());
        }
        each.push(request);
    }
    Ok(each)
}

/// The error in the request at `index` of a call whose requests are decided together.
fn in_request(index: usize) -> impl Fn(Error) -> Error {
    move |error| error.at(format_args!("requests[{index}]"))
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::limiter::LimiterError;

    use super::*;

    #[test]
    fn call_fails_by_the_error_that_may_have_charged() {
        let joining = LimiterError::Joining;
        let remote = LimiterError::Remote;
        for errors in [[joining, remote], [remote, joining]] {
            let mut answers = EncodedAnswers::for_call(errors.len());
            errors.into_iter().for_each(|error| answers.undecided("", error.into()));
            assert_eq!(answers.failure(), Some(remote.into()));
        }
    }
}
