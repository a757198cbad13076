//! Requests in JSON from the bodies of HTTP requests.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt as _};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};

use crate::{
    api::json::{self, JsonError},
    limiter::{Bounds, TooLarge},
};

/// The largest body, in bytes: as over gRPC, for a smaller bound would be a way around the limits.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest body that is read without a share of the budget and parsed by the task of its connection, in bytes.
const SMALL_BODY_BYTES: usize = 4 * 1024;
/// The time to wait for a share of the budget, and then for the rest of the body.
const SHARE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads requests in JSON. Bodies of more than 4 KiB share a budget of bytes, and are parsed on a blocking thread of the
/// runtime, so that they delay no other connection.
#[derive(Clone, Debug)]
pub struct RequestReader {
    bounds: Bounds,
    budget: Arc<Semaphore>,
}

/// A request with its body's share of the budget, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct ReadRequest {
    message: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

impl ReadRequest {
    /// The bytes of its `RateLimitRequest`.
    pub(super) fn message(&self) -> &[u8] {
        &self.message
    }
}

/// Why there is no request.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("the body has more than {BODY_BYTES_MAX} bytes")]
    BodyTooLarge,
    #[error("the body has not arrived: {0}")]
    BodyBroken(axum::Error),
    #[error("the rest of the body has not arrived within {SHARE_TIMEOUT:?}")]
    BodySlow,
    #[error("too many large bodies at a time")]
    Busy,
    #[error("the body cannot be parsed: {0}")]
    Failed(tokio::task::JoinError),
}

impl RequestReader {
    /// A reader of requests within `bounds`, whose large bodies take at most `budget_bytes` together, or one body's
    /// largest size if that is more.
    pub fn new(bounds: Bounds, budget_bytes: usize) -> Self {
        let budget_bytes = budget_bytes.clamp(BODY_BYTES_MAX, Semaphore::MAX_PERMITS);
        Self { bounds, budget: Arc::new(Semaphore::new(budget_bytes)) }
    }

    /// How many descriptors and entries a request may have.
    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Reads and parses a body.
    pub(super) async fn read(&self, body: Body) -> Result<ReadRequest, ReadError> {
        let announced = body.size_hint().exact();
        let length = announced.map_or(BODY_BYTES_MAX, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if length > BODY_BYTES_MAX {
            return Err(ReadError::BodyTooLarge);
        }
        let mut pieces = body.into_data_stream();
        let mut bytes = Vec::new();
        if append(&mut bytes, &mut pieces, SMALL_BODY_BYTES).await? {
            let message = json::request(&bytes, self.bounds)?;
            return Ok(ReadRequest { message, _share: None });
        }
        let share = self.share(length).await?;
        let all = append(&mut bytes, &mut pieces, BODY_BYTES_MAX);
        if !timeout(SHARE_TIMEOUT, all).await.map_err(|_| ReadError::BodySlow)?? {
            return Err(ReadError::BodyTooLarge);
        }
        let bounds = self.bounds;
        // The share goes with the task, which outlives a client that goes away.
        let parsed = spawn_blocking(move || {
            let message = json::request(&bytes, bounds)?;
            Ok(ReadRequest { message, _share: Some(share) })
        });
        parsed.await.map_err(ReadError::Failed)?
    }

    async fn share(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ReadError> {
        // At most 4 MiB.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let share = timeout(SHARE_TIMEOUT, self.budget.clone().acquire_many_owned(bytes)).await;
        // The semaphore is never closed.
        share.ok().and_then(Result::ok).ok_or(ReadError::Busy)
    }
}

/// Appends pieces to `bytes` until they are all there, or there are more than `most` bytes. Says whether they are all
/// there.
async fn append(
    bytes: &mut Vec<u8>,
    pieces: &mut (impl Stream<Item = Result<Bytes, axum::Error>> + Unpin),
    most: usize,
) -> Result<bool, ReadError> {
    while bytes.len() <= most {
        match pieces.next().await {
            None => return Ok(true),
            Some(piece) => bytes.extend_from_slice(&piece.map_err(ReadError::BodyBroken)?),
        }
    }
    Ok(false)
}

impl ReadError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Json(_) | Self::BodyBroken(_) => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodySlow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Why the request is too large, if that is the reason.
    pub(super) fn too_large(&self) -> Option<TooLarge> {
        match self {
            Self::Json(JsonError::TooLarge(error)) => Some(*error),
            Self::Json(JsonError::Malformed(_))
            | Self::BodyTooLarge
            | Self::BodyBroken(_)
            | Self::BodySlow
            | Self::Busy
            | Self::Failed(_) => None,
        }
    }
}

impl IntoResponse for ReadError {
    fn into_response(self) -> Response {
        (self.status(), format!("{self}\n")).into_response()
    }
}
