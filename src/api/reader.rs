//! Reads JSON requests from HTTP bodies.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    http::StatusCode,
};
use futures_util::{Stream, StreamExt as _};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};
use tollgate_limiter::limiter::RequestBounds;
use tonic::Code;

use crate::api::{
    call::Method,
    error::{Error, HttpError, MALFORMED},
    json,
};

/// Maximum size of a body, in bytes. As over gRPC, since a smaller maximum would be a way around limits.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bodies up to this size need no budget and are parsed by the connection task, in bytes.
const SMALL_BODY_BYTES: usize = 4 * 1024;
/// Time to wait for budget, and then for the rest of the body.
const SHARE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads JSON requests. Bodies of more than 4 KiB share a memory budget and are parsed on a blocking thread, so that
/// they do not delay other connections.
#[derive(Clone, Debug)]
pub struct RequestReader {
    /// The bounds of a request.
    pub(super) bounds: RequestBounds,
    budget: Arc<Semaphore>,
}

/// A request and its share of the budget, which is released when this is dropped.
#[derive(Debug)]
pub(super) struct ReadRequest {
    /// The encoded request.
    pub(super) message: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

impl From<Vec<u8>> for ReadRequest {
    fn from(message: Vec<u8>) -> Self {
        Self { message, _share: None }
    }
}

impl RequestReader {
    /// A reader with a budget of `budget_bytes` for large bodies, at least one body of the maximum size.
    pub fn new(bounds: RequestBounds, budget_bytes: usize) -> Self {
        let budget_bytes = budget_bytes.clamp(BODY_BYTES_MAX, Semaphore::MAX_PERMITS);
        Self { bounds, budget: Arc::new(Semaphore::new(budget_bytes)) }
    }

    /// Reads and parses a body with the request of a method.
    pub(super) async fn read(&self, method: Method, body: Body) -> Result<ReadRequest, HttpError> {
        let announced = body.size_hint().exact();
        let length = announced.map_or(BODY_BYTES_MAX, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if length > BODY_BYTES_MAX {
            return Err(body_too_large());
        }
        let mut chunks = body.into_data_stream();
        let mut bytes = Vec::new();
        if append(&mut bytes, &mut chunks, SMALL_BODY_BYTES).await? {
            return Ok(json::request(method, &bytes, self.bounds)?.into());
        }
        let share = self.share(length).await?;
        let all = append(&mut bytes, &mut chunks, BODY_BYTES_MAX);
        if !timeout(SHARE_TIMEOUT, all).await.map_err(|_| body_slow())?? {
            return Err(body_too_large());
        }
        let bounds = self.bounds;
        // The share moves into the task, which continues if the client disconnects.
        let parsed = spawn_blocking(move || {
            let message = json::request(method, &bytes, bounds)?;
            Ok(ReadRequest { message, _share: Some(share) })
        });
        parsed.await.map_err(|error| {
            Error::new(Code::Internal, "INTERNAL", format!("cannot parse the body: {error}"))
        })?
    }

    async fn share(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        // At most 4 MiB.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let share = timeout(SHARE_TIMEOUT, self.budget.clone().acquire_many_owned(bytes)).await;
        // The semaphore is never closed.
        let busy = || Error::new(Code::ResourceExhausted, "OVERLOADED", "too many concurrent large bodies");
        share.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// Appends chunks until the body ends or `bytes` exceeds `max`. Returns whether the body has ended.
async fn append(
    bytes: &mut Vec<u8>,
    chunks: &mut (impl Stream<Item = Result<Bytes, axum::Error>> + Unpin),
    max: usize,
) -> Result<bool, Error> {
    while bytes.len() <= max {
        match chunks.next().await {
            None => return Ok(true),
            Some(chunk) => bytes.extend_from_slice(&chunk.map_err(|error| body_broken(&error))?),
        }
    }
    Ok(false)
}

fn body_too_large() -> HttpError {
    let why = format!("the body is larger than {BODY_BYTES_MAX} bytes");
    let error = Error::invalid("TOO_LARGE", why);
    HttpError { status: StatusCode::PAYLOAD_TOO_LARGE, error }
}

fn body_slow() -> Error {
    let why = format!("timeout: the body did not arrive within {SHARE_TIMEOUT:?}");
    Error::new(Code::DeadlineExceeded, "BODY_TIMEOUT", why)
}

fn body_broken(error: &axum::Error) -> Error {
    Error::new(Code::InvalidArgument, MALFORMED, format!("cannot read the body: {error}"))
}
