//! Requests that are no gRPC calls, or that cannot be read.

use axum::http::{self, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use h2::RecvStream;
use tonic::Status;

use crate::server::body::GRPC_CONTENT_TYPE;

const UNCOMPRESSED: HeaderValue = HeaderValue::from_static("identity");
static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Why a request is not valid gRPC, or cannot be read.
pub(super) enum RequestRejection {
    Method,
    ContentType,
    Compressed,
}

impl RequestRejection {
    pub(super) fn from_request(request: &Request<RecvStream>) -> Option<Self> {
        if request.method() != http::Method::POST {
            Some(Self::Method)
        } else if !is_grpc(request.headers()) {
            Some(Self::ContentType)
        } else if request.headers().get(&GRPC_ENCODING).is_some_and(|encoding| *encoding != UNCOMPRESSED) {
            Some(Self::Compressed)
        } else {
            None
        }
    }

    /// The reason by which it is counted.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Method | Self::ContentType => "NOT_GRPC",
            Self::Compressed => "COMPRESSED",
        }
    }

    /// The status as which a client of gRPC sees the response.
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Method => Status::unknown("the method of HTTP is not POST"),
            Self::ContentType => Status::unknown("the content type is not that of gRPC"),
            Self::Compressed => Status::unimplemented("compressed messages are not supported"),
        }
    }

    pub(super) fn response(&self) -> Response<()> {
        let mut response = Response::new(());
        match self {
            Self::Method => {
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
            }
            Self::ContentType => *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Compressed => {
                response = self.status().into_http();
                response.headers_mut().insert(&GRPC_ACCEPT_ENCODING, UNCOMPRESSED);
            }
        }
        response
    }
}

/// Whether the content type is gRPC.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return false };
    let rest = given.as_bytes().strip_prefix(GRPC_CONTENT_TYPE.as_bytes());
    matches!(rest, Some([] | [b'+' | b';', ..]))
}
