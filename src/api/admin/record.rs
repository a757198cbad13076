//! `/record`: the requests that this replica decides, in the form that `tollgate simulate` reads.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Query, State, rejection::QueryRejection},
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::Deserialize;
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout_at},
};
use tollgate_telemetry::logs::UNLIMITED;
use tracing::warn;

use crate::api::{
    admin::state::AdminState,
    format::{AdminError, ClientAddress},
    recorder::{RecordError, RecordedValues},
};

/// The maximum length of a recording, in seconds.
const SECONDS_MAX: u64 = 600;
/// An empty line follows this time without requests, so that the loss of the client is noticed.
const EMPTY_LINE_INTERVAL: Duration = Duration::from_secs(1);

/// The query for a recording: `?seconds=N&values=hashed|plain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordQuery {
    seconds: Option<u64>,
    values: Option<RecordedValues>,
}

/// The requests as lines of JSON, until the time is over.
pub(super) async fn stream(
    State(state): State<AdminState>,
    peer: ClientAddress,
    query: Result<Query<RecordQuery>, QueryRejection>,
) -> Result<Response, AdminError> {
    let Query(RecordQuery { seconds, values }) =
        query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let (seconds, values) = (seconds.unwrap_or(60), values.unwrap_or(RecordedValues::Hashed));
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(AdminError::bad_request(format!("seconds is a number from 1 to {SECONDS_MAX}")));
    }
    let off =
        || AdminError(StatusCode::FORBIDDEN, "requests are not recorded: admin.record is off".to_owned());
    let recorder = state.api.recorder.as_ref().ok_or_else(off)?;
    let time = Duration::from_secs(seconds);
    let recording = recorder.start(values, state.api.limiter.view().now().after(time)).map_err(|error| {
        let status = match error {
            RecordError::PlainNotAllowed => StatusCode::FORBIDDEN,
            RecordError::Busy => StatusCode::CONFLICT,
        };
        AdminError(status, error.to_string())
    })?;
    // A warning, so that it leaves a trace of the client that reads the requests of others.
    warn!(name: UNLIMITED, %peer, seconds, ?values, "recording requests");
    let end = Instant::now() + time;
    let limiter = state.api.limiter.clone();
    let lines = stream::unfold(Some((recording, limiter)), move |recording| async move {
        let (mut recording, limiter) = recording?;
        let empty_line = Instant::now() + EMPTY_LINE_INTERVAL;
        // Lines are written on a thread of their own, because other requests to this listener must not wait for them.
        let written = match timeout_at(end.min(empty_line), recording.next()).await {
            Ok(Some(portion)) => {
                spawn_blocking(move || (recording.lines(portion, &limiter), Some((recording, limiter))))
            }
            Err(_) if empty_line < end => {
                return Some((Ok::<_, Infallible>(Bytes::from_static(b"\n")), Some((recording, limiter))));
            }
            Ok(None) | Err(_) => spawn_blocking(move || (recording.end(&limiter), None)),
        };
        // The recording ends if writing panics, which is a bug and was logged.
        let (lines, rest) = written.await.ok()?;
        Some((Ok(Bytes::from(lines)), rest))
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(lines)).into_response())
}
