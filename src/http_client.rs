//! One HTTP/1.1 request over a connection of its own.

use axum::body::Body;
use http::{Request, response::Parts};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

/// The head of an answer, whose body is still to be read.
#[derive(Debug)]
pub struct Answer {
    /// Status and headers.
    pub head: Parts,
    /// The body.
    pub body: Body,
    /// Drives the connection. Dropping it closes the connection.
    pub connection: JoinSet<hyper::Result<()>>,
}

/// Sends `request`, which must have the header `Host`, and waits for the head of the answer. There is no timeout.
pub async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Body>,
) -> hyper::Result<Answer> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    let mut connection = JoinSet::new();
    connection.spawn(driver);
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(Answer { head, body: Body::new(body), connection })
}
