//! The protocols of a listener, and the settings of HTTP/1.1 and HTTP/2.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::{
    server::connection::{Keepalive, WINDOW_BYTES},
    settings,
};

/// Maximum size of all headers of a request, in bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Maximum size of the send buffer of a stream, in bytes.
const SEND_BUFFER_BYTES_MAX: usize = 400 * 1024;
/// HTTP/2 charges an unread small DATA frame with at most this many bytes. Each call may have two of them.
const SMALL_FRAME_BYTES: usize = 256;
/// Maximum number of streams that the server resets for client errors before it closes the connection.
const RESETS_FOR_ERRORS_MAX: usize = 1024;
/// Maximum number of concurrent requests on an HTTP/2 connection of the HTTP listeners, and time to wait for a ping
/// reply.
const HTTP_STREAMS_MAX: u32 = 16;
const HTTP_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow-control window of HTTP/2 connections of the HTTP listeners, in bytes.
const HTTP_WINDOW_BYTES: u32 = 64 * 1024;
/// Minimum time between two keepalive pings.
const KEEPALIVE_MIN: Duration = Duration::from_millis(10);

/// The protocols of a listener.
#[derive(Clone, Debug)]
pub(in crate::server) struct Protocols {
    // Used unless ALPN selects HTTP/2. `None`: the listener speaks HTTP/2 only.
    pub(super) http1: Option<http1::Builder>,
    pub(super) http2: Http2,
}

impl Protocols {
    /// HTTP/2 only.
    pub(in crate::server) fn grpc(settings: &settings::Grpc) -> Self {
        let http2 = Http2 {
            max_concurrent_streams: settings.max_concurrent_streams,
            keepalive_interval: settings.keepalive_interval,
            keepalive_timeout: settings.keepalive_timeout,
        };
        Self { http1: None, http2 }
    }

    /// HTTP/1.1, or HTTP/2 if ALPN selects it.
    pub(in crate::server) fn http(settings: &settings::Http) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_header_size(HEADER_BYTES_MAX as usize)
            // This also bounds how much of a body is read ahead.
            .max_buf_size(HEADER_BYTES_MAX as usize);
        let http2 = Http2 {
            max_concurrent_streams: HTTP_STREAMS_MAX,
            keepalive_interval: settings.header_timeout,
            keepalive_timeout: HTTP_KEEPALIVE_TIMEOUT,
        };
        Self { http1: Some(http1), http2 }
    }

    /// ALPN protocol names, in order of preference.
    pub(in crate::server) fn names(&self) -> &'static [&'static [u8]] {
        match self.http1 {
            None => &[b"h2"],
            Some(_) => &[b"h2", b"http/1.1"],
        }
    }
}

/// HTTP/2 settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Http2 {
    max_concurrent_streams: u32,
    keepalive_interval: Duration,
    keepalive_timeout: Duration,
}

impl Http2 {
    /// HTTP/2 for gRPC connections.
    pub(super) fn grpc_builder(&self) -> h2::server::Builder {
        let mut http2 = h2::server::Builder::new();
        http2
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_header_list_size(HEADER_BYTES_MAX)
            .data_frame_budget(2 * SMALL_FRAME_BYTES * self.streams())
            // A client that resets all its calls at once causes no more work than one that waits for the replies.
            .max_pending_accept_reset_streams(self.streams())
            .max_local_error_reset_streams(Some(RESETS_FOR_ERRORS_MAX));
        http2
    }

    fn streams(&self) -> usize {
        usize::try_from(self.max_concurrent_streams).unwrap_or(usize::MAX)
    }

    pub(super) fn keepalive(&self) -> Keepalive {
        Keepalive { interval: self.keepalive_interval.max(KEEPALIVE_MIN), timeout: self.keepalive_timeout }
    }

    /// HTTP/2 for connections of the HTTP listeners.
    pub(super) fn http_builder(&self) -> http2::Builder<TokioExecutor> {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.max_concurrent_streams)
            .initial_stream_window_size(HTTP_WINDOW_BYTES)
            .initial_connection_window_size(HTTP_WINDOW_BYTES)
            .keep_alive_interval(self.keepalive_interval.max(KEEPALIVE_MIN))
            .keep_alive_timeout(self.keepalive_timeout)
            .max_header_list_size(HEADER_BYTES_MAX)
            .max_pending_accept_reset_streams(self.streams())
            .max_local_error_reset_streams(RESETS_FOR_ERRORS_MAX);
        http2
    }
}
