//! One HTTP/1.1 request over a connection of its own.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use axum::body::{Body, HttpBody};
use futures_util::StreamExt;
use http::{
    HeaderMap, HeaderName, Request,
    header::{CONTENT_ENCODING, TRANSFER_ENCODING},
    response::Parts,
};
use hyper::{client::conn::http1, ext::on_informational};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    task::JoinSet,
};

/// The maximum number of interim answers (1xx) before the answer to a request.
const INTERIM_MAX: usize = 16;

/// The head of an answer, whose body is still to be read.
#[derive(Debug)]
pub struct HttpResponse {
    /// Status and headers.
    pub head: Parts,
    /// The body.
    pub body: Body,
    /// Drives the connection. Dropping it closes the connection.
    pub connection: JoinSet<hyper::Result<()>>,
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// The connection is lost, or the peer does not speak HTTP/1.1.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// The body ends too early or is not in the format that its head announces.
    #[error(transparent)]
    Body(axum::Error),
    /// The server sends interim answers without end.
    #[error("the server sent more than {INTERIM_MAX} interim answers (1xx)")]
    Interim,
    /// The head says neither the length of the body nor that it is in chunks.
    #[error("the answer has no length, so a truncated one could not be told from a whole one")]
    WithoutEnd,
    /// The body is in a transfer coding other than chunks.
    #[error("the answer has the Transfer-Encoding {0:?}; only chunked has an end")]
    Transfer(String),
    /// The body is compressed.
    #[error("the answer has the Content-Encoding {0:?}, which was not asked for")]
    Encoded(String),
    /// The body is longer than the caller allows.
    #[error("the answer is too large")]
    TooLarge,
}

/// Sends `request`, which must have the header `Host`, and waits for the head of the answer. There is no timeout.
pub async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Body>,
) -> Result<HttpResponse, HttpClientError> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    let mut connection = JoinSet::new();
    connection.spawn(driver);
    let too_many = Arc::new(Notify::new());
    let interim = AtomicUsize::new(0);
    let notify = too_many.clone();
    on_informational(&mut request, move |_interim| {
        if interim.fetch_add(1, Relaxed) == INTERIM_MAX {
            notify.notify_one();
        }
    });
    let (head, body) = tokio::select! {
        biased;
        () = too_many.notified() => return Err(HttpClientError::Interim),
        answered = sender.send_request(request) => answered?.into_parts(),
    };
    Ok(HttpResponse { head, body: Body::new(body), connection })
}

impl HttpResponse {
    /// The body, of at most `bytes_max` bytes. One that could be cut without a sign is an error, and so is one in a coding.
    pub async fn whole_body(self, bytes_max: usize) -> Result<Vec<u8>, HttpClientError> {
        let Self { head, body, connection: _connection } = self;
        let is_foreign = |coding: &String| !coding.is_empty() && coding != "identity";
        if let Some(coding) = codings(&head.headers, CONTENT_ENCODING).into_iter().find(is_foreign) {
            return Err(HttpClientError::Encoded(coding));
        }
        let transfer = codings(&head.headers, TRANSFER_ENCODING);
        if !transfer.is_empty() && transfer != ["chunked"] {
            return Err(HttpClientError::Transfer(transfer.join(", ")));
        }
        match body.size_hint().exact() {
            Some(length) if length > bytes_max as u64 => return Err(HttpClientError::TooLarge),
            None if transfer.is_empty() => return Err(HttpClientError::WithoutEnd),
            Some(_) | None => {}
        }
        let mut bytes = Vec::new();
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(HttpClientError::Body)?;
            if bytes.len() + chunk.len() > bytes_max {
                return Err(HttpClientError::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

/// `text` percent-encoded for a query or for a segment of a path.
pub fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        // The characters that RFC 3986 calls unreserved.
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

/// The items of all headers with this name, in lower case. Bytes that are not ASCII are kept in some form, so that they are
/// no known coding.
fn codings(headers: &HeaderMap, name: HeaderName) -> Vec<String> {
    let values = headers.get_all(name).into_iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values
        .flat_map(|value| value.split(',').map(|item| item.trim().to_ascii_lowercase()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// The body of an answer with these bytes, after which the connection is closed.
    async fn whole_body(answer: &str) -> Result<Vec<u8>, HttpClientError> {
        let (near, mut far) = duplex(4096);
        let request = Request::get("/").header("host", "a").body(Body::empty()).unwrap();
        let serve = async {
            // The request fits into one piece.
            assert!(far.read(&mut [0; 256]).await.unwrap() > 0);
            far.write_all(answer.as_bytes()).await.unwrap();
            drop(far);
        };
        let (answer, ()) = tokio::join!(send(near, request), serve);
        answer?.whole_body(9).await
    }

    #[tokio::test]
    async fn body_is_whole_only_with_length_or_finished_chunks() {
        for (head, body, expected) in [
            ("content-length: 3\r\n", "abc", Some("abc")),
            ("content-length: 3\r\n", "ab", None),
            ("content-length: 10\r\n", "0123456789", None),
            ("transfer-encoding: CHUNKED\r\n", "3\r\nabc\r\n0\r\n\r\n", Some("abc")),
            ("transfer-encoding: chunked\r\n", "3\r\nabc\r\n", None),
            ("transfer-encoding: chunked\r\n", "a\r\n0123456789\r\n0\r\n\r\n", None),
            ("transfer-encoding: gzip\r\n", "abc", None),
            ("transfer-encoding: identity\r\n", "abc", None),
            ("transfer-encoding: identity\r\ncontent-length: 3\r\n", "abc", None),
            ("transfer-encoding: gzip, chunked\r\n", "3\r\nabc\r\n0\r\n\r\n", None),
            ("transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n", "abc", None),
            ("", "abc", None),
            ("content-length: 3\r\ncontent-encoding: identity, IDENTITY\r\n", "abc", Some("abc")),
            ("content-length: 3\r\ncontent-encoding: identity\r\ncontent-encoding: br\r\n", "abc", None),
            ("content-length: 3\r\ncontent-encoding: \u{e9}\r\n", "abc", None),
        ] {
            let read = whole_body(&format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}")).await;
            assert_eq!(read.ok().as_deref(), expected.map(str::as_bytes), "{head:?}");
        }
    }

    #[tokio::test]
    async fn interim_answers_before_an_answer_are_bounded() {
        for (number, is_read) in [(INTERIM_MAX, true), (INTERIM_MAX + 1, false)] {
            let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(number);
            let read = whole_body(&format!("{interim}HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na")).await;
            assert_eq!(read.is_ok(), is_read, "{number}: {read:?}");
        }
    }
}
