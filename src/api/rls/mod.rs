//! Envoy's rate limit service: from the bytes of a request to the bytes of its reply.

use tollgate_limiter::{
    limiter::{self, ActiveView, Answer},
    resilience::Caller,
};

use crate::api::{
    Api, Error,
    call::{Call, Reply},
    span::CallSpan,
};

mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod headers;
mod metadata;

pub use decode::{Request, decode};

use encode::encode;

impl Api {
    #[inline]
    pub(super) fn decide(
        &self,
        call: Call<'_>,
        view: &ActiveView<'_>,
        span: &mut CallSpan,
    ) -> Result<Reply, Error> {
        let mut decoded = Request::default();
        self.decode(call, &mut decoded, span)?;
        let request = decoded.limiter_request(call.timeout())?;
        // Borrowed, because an answer is large to move.
        match &view.decide_here(&request) {
            Ok(answer) => Ok(self.reply(call, &decoded, &request, view, answer)),
            Err(error) => Err((*error).into()),
        }
    }

    pub(super) async fn decide_waiting(
        &self,
        call: Call<'_>,
        view: &ActiveView<'_>,
        connection: &Caller,
        span: &mut CallSpan,
    ) -> Result<Reply, Error> {
        let mut decoded = Request::default();
        self.decode(call, &mut decoded, span)?;
        let request = decoded.limiter_request(call.timeout())?;
        let answer = view.decide_elsewhere(&request, connection).await?;
        Ok(self.reply(call, &decoded, &request, view, &answer))
    }

    #[inline]
    fn decode<'m>(
        &self,
        call: Call<'m>,
        decoded: &mut Request<'m>,
        span: &mut CallSpan,
    ) -> Result<(), Error> {
        decoded.read(call.message, self.settings.bounds())?;
        span.describe(decoded.domain, || decoded.descriptor_views().count());
        Ok(())
    }

    fn reply(
        &self,
        call: Call<'_>,
        decoded: &Request<'_>,
        request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        answer: &Answer<'_>,
    ) -> Reply {
        self.observe(request, view, answer);
        let headers = self.headers.of(answer, self.limiter.modes());
        let metadata = self.settings.dynamic_metadata.then(|| metadata::of(decoded, answer));
        let frame = encode(answer, &headers, metadata.as_ref(), call.precision);
        Reply { frame, passes: Some(answer.passes), delay: answer.delay }
    }
}

#[cfg(test)]
mod tests;
