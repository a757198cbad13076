//! An HTTP server that asks Tollgate for each request: GET /hello, limited by the header `user`.
//!
//!     cargo run --example server -- 127.0.0.1:8081 127.0.0.1:8000

use std::{env, error::Error};

use axum::{Router, extract::Request as HttpRequest, routing};
use tokio::net::TcpListener;
use tollgate_client::{Client, Descriptor, OnNoAnswer, Options, RateLimitLayer, Request};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let target = arguments.next().unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:8000".to_owned());

    let client = Client::new(&target, Options { on_no_answer: OnNoAnswer::Allow, ..Options::default() })?;
    let listener = TcpListener::bind(&listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(client)).await?;
    Ok(())
}

/// The server's routes, limited by this client.
pub fn app(client: Client) -> Router {
    let app = Router::new().route("/hello", routing::get(|| async { "hello\n" }));
    app.layer(RateLimitLayer::new(client, describe))
}

/// Limits each user; requests without a user share one limit. A real service takes the user from a verified token: a
/// client that chooses its name chooses its budget.
fn describe(request: &HttpRequest) -> Option<Request> {
    let user = request
        .headers()
        .get("user")
        // A header need not be UTF-8. Escaped, two users never share a limit.
        .map_or("anonymous".into(), |user| user.as_bytes().escape_ascii().to_string());
    Some(Request::new("edge", [Descriptor::new([("user", user)])]))
}
