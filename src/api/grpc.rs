//! The gRPC service of the rate limit API.
//!
//! It differs from the generated one in its codec, which leaves a message as bytes: the handler checks the size of the
//! request before it decodes the message.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use prost::{
    Message,
    bytes::{Buf, Bytes},
};
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};

use crate::api::{
    Api, Error,
    message::{self, Unreadable},
    proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_service_server::SERVICE_NAME},
};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The service.
#[derive(Clone, Debug)]
pub struct RateLimitServer {
    api: Api,
    message_bytes_max: usize,
}

impl RateLimitServer {
    /// A service that takes messages of at most so many bytes.
    pub fn new(api: Api, message_bytes_max: usize) -> Self {
        Self { api, message_bytes_max }
    }
}

impl NamedService for RateLimitServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for RateLimitServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(async { Ok(Status::unimplemented("").into_http()) });
        }
        let Self { api, message_bytes_max } = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(BytesIn).max_decoding_message_size(message_bytes_max);
            Ok(grpc.unary(ShouldRateLimit(api), request).await)
        })
    }
}

/// The only method.
struct ShouldRateLimit(Api);

impl UnaryService<Bytes> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let api = self.0.clone();
        Box::pin(async move {
            let (metadata, extensions, message) = request.into_parts();
            let decoded = message::decode(&message, api.settings.bounds());
            // Its values are copied.
            drop(message);
            let decoded = decoded.map_err(|error| match error {
                Unreadable::TooLarge(error) => Status::from(api.refused(Error::TooLarge(error))),
                Unreadable::Malformed(error) => Status::internal(error),
            })?;
            api.should_rate_limit(Request::from_parts(metadata, extensions, decoded)).await
        })
    }
}

/// Messages come as bytes and leave as answers.
struct BytesIn;

impl Codec for BytesIn {
    type Encode = RateLimitResponse;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for BytesIn {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}

impl Encoder for BytesIn {
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(&mut self, answer: RateLimitResponse, message: &mut EncodeBuf<'_>) -> Result<(), Status> {
        answer.encode(message).map_err(|error| Status::internal(error.to_string()))
    }
}
