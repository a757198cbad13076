//! Decides the requests of a call, each by itself or all together.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate_limiter::{
    limiter::{self, ActiveView, Answer, LimiterError, TooLarge},
    resilience::Caller,
};

use crate::api::{
    Api, Error,
    call::Verb,
    error::CallError,
    proto::tollgate::v1::check_request::Mode,
    protobuf::FRAME_PREFIX_BYTES,
    v1::{
        decode::{Request, Requests},
        encode::{self, DecidedRequest},
    },
};

/// Room for an answer with one limit, in bytes.
const ANSWER_BYTES: usize = 80;

/// What could be decided without waiting.
pub(in crate::api) enum Decided {
    /// Everything: the response, after room for its frame prefix.
    Whole(Vec<u8>),
    /// A part.
    Part(Partial),
}

/// The answers so far, and the requests whose counters are elsewhere.
#[derive(Debug, Default)]
pub(in crate::api) struct Partial {
    answers: Answers,
    missing: Vec<Missing>,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
struct Missing {
    /// Its index in the call.
    request: usize,
    /// Where its answer belongs in the response.
    at: usize,
}

/// Encoded answers.
#[derive(Debug, Default)]
struct Answers {
    frame: Vec<u8>,
    // Whether an answer has a verdict, or an error that is the caller's.
    any_final: bool,
    errors: Vec<Error>,
}

impl Answers {
    fn of_call(requests: usize) -> Self {
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
    /// Decides the requests of a call whose counters are here.
    #[inline]
    pub(in crate::api) fn decide_v1(
        &self,
        verb: Verb,
        message: &[u8],
        timeout: Option<Duration>,
        view: &ActiveView<'_>,
    ) -> Result<Decided, Error> {
        let bounds = self.settings.bounds();
        let requests = Requests::decode(verb, message, bounds)?;
        match requests.mode {
            Mode::Each => {}
            Mode::Together => {
                let group = Group::decode(&requests, bounds)?;
                let parts = group.parts(verb, timeout)?;
                let request = together(&parts)?;
                return match view.decide_here(&request) {
                    Ok(answer) => {
                        Ok(Decided::Whole(self.answer_group(&group, &parts, &request, view, &answer)))
                    }
                    Err(LimiterError::Remote) => Ok(Decided::Part(Partial::default())),
                    Err(error) => Err(error.into()),
                };
            }
        }
        let mut partial = Partial { answers: Answers::of_call(requests.each.len()), missing: Vec::new() };
        for (index, message) in requests.each.iter().enumerate() {
            let mut request = Request::default();
            if let Err(fault) = request.read(message, bounds) {
                partial.answers.undecided("", fault.into());
                continue;
            }
            let asked = match request.limiter_request(verb, timeout) {
                Ok(asked) => asked,
                Err(fault) => {
                    partial.answers.undecided(request.id, fault.into());
                    continue;
                }
            };
            let decided = match request.once(verb, self.settings.request_id_window) {
                Ok(None) => view.decide_here(&asked).map_err(Error::from),
                // A reservation and its settlement, which may wait.
                Ok(Some(_)) => Err(LimiterError::Remote.into()),
                Err(fault) => Err(fault.into()),
            };
            match decided {
                Ok(answer) => self.answer(&mut partial.answers, request.id, &asked, view, &answer),
                Err(error) if error.is_elsewhere() => {
                    let at = partial.answers.frame.len();
                    partial.missing.push(Missing { request: index, at });
                }
                Err(error) => partial.answers.undecided(request.id, error),
            }
        }
        if partial.missing.is_empty() {
            self.whole(partial.answers).map(Decided::Whole)
        } else {
            Ok(Decided::Part(partial))
        }
    }

    /// Decides the rest of a call.
    pub(in crate::api) async fn finish_v1(
        &self,
        verb: Verb,
        message: &[u8],
        timeout: Option<Duration>,
        Partial { mut answers, missing }: Partial,
        view: &ActiveView<'_>,
        connection: &Caller,
    ) -> Result<Vec<u8>, Error> {
        let bounds = self.settings.bounds();
        let requests = Requests::decode(verb, message, bounds)?;
        match requests.mode {
            Mode::Each => {}
            Mode::Together => {
                let group = Group::decode(&requests, bounds)?;
                let parts = group.parts(verb, timeout)?;
                let request = together(&parts)?;
                let answer = view.decide_elsewhere(&request, connection).await?;
                return Ok(self.answer_group(&group, &parts, &request, view, &answer));
            }
        }
        let each = missing.iter().map(async |missing| -> Result<Answers, Error> {
            let mut answers = Answers::default();
            let fault = |request, fault| CallError::Request { request, fault };
            // They were read without faults before.
            let request = Request::decode(requests.each[missing.request], bounds)
                .map_err(|error| fault(missing.request, error))?;
            let asked =
                request.limiter_request(verb, timeout).map_err(|error| fault(missing.request, error))?;
            let once = request.once(verb, self.settings.request_id_window);
            let decided = match once.map_err(|error| fault(missing.request, error))? {
                None => view.decide_elsewhere(&asked, connection).await.map_err(Error::from),
                Some(terms) => match verb {
                    Verb::Refund => view.refund_once(&asked, &terms, connection).await,
                    Verb::Check | Verb::Peek => view.charge_once(&asked, &terms, connection).await,
                }
                .map_err(Error::from),
            };
            match decided {
                Ok(answer) => self.answer(&mut answers, request.id, &asked, view, &answer),
                Err(error) => answers.undecided(request.id, error),
            }
            Ok(answers)
        });
        let each = join_all(each).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        answers.insert(&missing, each);
        self.whole(answers)
    }

    /// The response. If no request was decided, and this is not the caller's fault, the call as a whole fails, so that
    /// the caller's retries and load balancing see it.
    fn whole(&self, Answers { frame, any_final, errors }: Answers) -> Result<Vec<u8>, Error> {
        match errors.first() {
            Some(first) if !any_final => return Err(*first),
            Some(_) | None => {}
        }
        errors.into_iter().for_each(|error| self.metrics.unanswered(error));
        Ok(frame)
    }

    #[inline]
    fn answer(
        &self,
        answers: &mut Answers,
        id: &str,
        request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        answer: &Answer<'_>,
    ) {
        self.observe(request, view, answer);
        answers.decided(&DecidedRequest {
            id,
            passes: answer.passes,
            delay: answer.delay,
            retry_after: answer.retry_after(self.limiter.modes()),
            statuses: &answer.statuses,
        });
    }

    /// The response to requests that were decided together: each has the verdict of all, and its own limits.
    fn answer_group(
        &self,
        group: &Group<'_>,
        parts: &[limiter::Request<'_>],
        request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        answer: &Answer<'_>,
    ) -> Vec<u8> {
        self.observe(request, view, answer);
        let mut answers = Answers::of_call(parts.len());
        let retry_after = answer.retry_after(self.limiter.modes());
        let mut rest = &*answer.statuses;
        for (request, part) in group.0.iter().zip(parts) {
            let (statuses, others) = rest.split_at(part.descriptors().len());
            rest = others;
            let Answer { passes, delay, .. } = *answer;
            answers.decided(&DecidedRequest { id: request.id, passes, delay, retry_after, statuses });
        }
        answers.frame
    }
}

/// Requests that are decided together.
struct Group<'m>(Vec<Request<'m>>);

impl<'m> Group<'m> {
    /// Decodes requests that have together at most as many descriptors as one.
    fn decode(requests: &Requests<'m>, bounds: limiter::Bounds) -> Result<Self, CallError> {
        let (mut each, mut descriptors) = (Vec::with_capacity(requests.each.len()), 0);
        for (index, message) in requests.each.iter().enumerate() {
            let request = Request::decode(message, bounds).and_then(Request::without_request_id);
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
