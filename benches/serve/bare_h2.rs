//! A gRPC server that does nothing but HTTP/2: it answers every call with an empty message. `benches/serve/run` measures
//! it beside Tollgate, so that its cost is the part of a decision that the h2 crate takes. It prints its address.
//!
//! All requests that were read together are answered together, as Tollgate does.

use std::{
    error::Error,
    future::poll_fn,
    task::{Context, Poll, ready},
};

use h2::{
    RecvStream,
    server::{Connection, SendResponse},
};
use http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use tokio::net::{TcpListener, TcpStream};

/// An uncompressed gRPC message without content.
const REPLY: &[u8] = &[0; 5];

type Reply = &'static [u8];

type Accepted = (Request<RecvStream>, SendResponse<Reply>);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(async move {
            // A client that is gone ends its connection.
            let _ = serve(socket).await;
        });
    }
}

async fn serve(socket: TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new().handshake(socket).await?;
    let mut open = Vec::new();
    poll_fn(|context| poll_turn(&mut connection, &mut open, context)).await
}

/// Reads requests until none is left, then answers those that are whole. The next reading writes the answers.
fn poll_turn(
    connection: &mut Connection<TcpStream, Reply>,
    open: &mut Vec<Accepted>,
    context: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    loop {
        let more = loop {
            match connection.poll_accept(context) {
                Poll::Ready(Some(accepted)) => open.push(accepted?),
                Poll::Ready(None) => break false,
                Poll::Pending => break true,
            }
        };
        if !more {
            return Poll::Ready(Ok(()));
        }
        let before = open.len();
        let mut unfinished = Vec::new();
        for mut accepted in open.drain(..) {
            match poll_body(accepted.0.body_mut(), context) {
                Poll::Ready(whole) => whole.and_then(|()| answer(accepted.1))?,
                Poll::Pending => unfinished.push(accepted),
            }
        }
        *open = unfinished;
        if open.len() == before {
            return Poll::Pending;
        }
    }
}

fn poll_body(body: &mut RecvStream, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
    while let Some(part) = ready!(body.poll_data(context)) {
        body.flow_control().release_capacity(part?.len())?;
    }
    Poll::Ready(Ok(()))
}

fn answer(mut respond: SendResponse<Reply>) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(REPLY, false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
