//! A client for the admin listener of a server.

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{
        Request, StatusCode,
        header::{AUTHORIZATION, HOST},
    },
};
use clap::{Arg, ArgMatches, ValueHint, value_parser};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::cli::block_on;

/// The time to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// An admin request.
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: String,
}

/// The flags for the admin listener and its token.
pub(super) fn args() -> [Arg; 2] {
    [
        Arg::new("to")
            .long("to")
            .value_name("HOST:PORT")
            .default_value("127.0.0.1:6070")
            .help("Address of the server's admin listener"),
        Arg::new("token-file")
            .long("token-file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath)
            .help("File with the bearer token, as in the server's admin.token_file"),
    ]
}

/// The answer of the server that the arguments name, or the reason why there is none.
pub(super) fn ask(matches: &ArgMatches, call: &Call) -> Result<Value, String> {
    let to = matches.get_one::<String>("to").cloned().unwrap_or_default();
    let none = |why: String| format!("no answer from {to}: {why}");
    let token = matches.get_one::<PathBuf>("token-file").map(|path| {
        let text =
            fs::read_to_string(path).map_err(|error| format!("--token-file: {}: {error}", path.display()))?;
        Ok::<_, String>(text.trim().to_owned())
    });
    let token = token.transpose()?;
    let answered = async {
        match timeout(TIMEOUT, send(&to, token.as_deref(), call)).await {
            Ok(answered) => answered.map_err(|error| error.to_string()),
            Err(_) => Err(format!("none within {} s", TIMEOUT.as_secs())),
        }
    };
    let (status, body) = block_on(answered).map_err(none)?;
    let text = String::from_utf8_lossy(&body);
    match status {
        StatusCode::OK => serde_json::from_slice(&body).map_err(|error| none(error.to_string())),
        StatusCode::NOT_FOUND if body.is_empty() => {
            Err(none("there is no such page; is this an admin listener?".to_owned()))
        }
        StatusCode::UNAUTHORIZED => Err(format!("{to} requires a token: {}; set --token-file", text.trim())),
        _ => Err(format!("{to} refused the request: {}", text.trim())),
    }
}

async fn send(
    to: &str,
    token: Option<&str>,
    call: &Call,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error>> {
    let stream = TcpStream::connect(to).await?;
    let mut request =
        Request::builder().method(call.method).uri(&call.path).header(HOST, host(to, stream.peer_addr()?));
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::from(call.body.clone()))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok((head.status, to_bytes(Body::new(body), ANSWER_BYTES_MAX).await?))
}

/// The `Host` of a request to `to`, which is at `address`. Without a token a server knows itself by loopback names alone,
/// and a loopback address may have others.
fn host(to: &str, address: SocketAddr) -> String {
    if address.ip().to_canonical().is_loopback() { address.to_string() } else { to.to_owned() }
}

/// `text` percent-encoded for a query or for a segment of a path.
pub(super) fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_the_address_where_that_is_loopback() {
        let host = |to, address: &str| host(to, address.parse().unwrap());
        assert_eq!(host("this-machine:6070", "127.0.0.1:6070"), "127.0.0.1:6070");
        assert_eq!(host("localhost:6070", "[::1]:6070"), "[::1]:6070");
        assert_eq!(host("tollgate.example:6070", "10.0.0.1:6070"), "tollgate.example:6070");
    }
}
