//! A client for the admin listener of a server.

use std::{fmt, fs, net::SocketAddr, path::PathBuf, time::Duration};

use axum::{
    body::Body,
    http::{
        Method, Request, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE, HOST},
        request,
    },
};
use clap::{Arg, ArgMatches};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use tollgate_counter::printable;
use tollgate_net::http_client::{self, HttpResponse};

use crate::{
    command::{block_on, file, value},
    target,
};

/// The time to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The maximum size of the body of an answer that refuses the request, in bytes.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// The maximum length of what is displayed of such a body, in characters.
const LINE_MAX: usize = 1_000;

/// The flags for the admin listener and its token.
pub(super) fn args() -> [Arg; 2] {
    [
        value("to", "HOST:PORT", "Address of the server's admin listener")
            .default_value("127.0.0.1:6070")
            .value_parser(target::host_and_port),
        file("token-file", "File with the bearer token, as in the server's admin.token_file"),
    ]
}

/// The JSON that the server of the arguments answers, or the reason why there is none.
pub(super) fn ask(matches: &ArgMatches, method: Method, path: &str, body: String) -> Result<Value, String> {
    block_on(answer(matches, method, path, body))
}

/// The JSON that the server of the arguments answers, for a command that waits by itself.
pub(super) async fn answer(
    matches: &ArgMatches,
    method: Method,
    path: &str,
    body: String,
) -> Result<Value, String> {
    let to = matches.get_one::<String>("to").map(String::as_str).unwrap_or_default();
    let answered = async {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token(matches)? {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let tls = tls(to, matches)?;
        let answer = send(to, tls, request, body).await.map_err(|error| no_answer(to, error))?;
        if answer.head.status != StatusCode::OK {
            return Err(refusal(to, answer).await);
        }
        let body = answer.whole_body(ANSWER_BYTES_MAX).await.map_err(|error| no_answer(to, error))?;
        serde_json::from_slice(&body).map_err(|error| no_answer(to, error))
    };
    let none = |_| Err(no_answer(to, format_args!("none within {} s", TIMEOUT.as_secs())));
    timeout(TIMEOUT, answered).await.unwrap_or_else(none)
}

/// Why the server has given no answer.
fn no_answer(to: &str, why: impl fmt::Display) -> String {
    format!("no answer from {to}: {why}")
}

/// Why the server has answered with another status than 200.
async fn refusal(to: &str, answer: HttpResponse) -> String {
    let status = answer.head.status;
    // An admin listener has no text for paths that it does not have.
    let kind = answer.head.headers.get(CONTENT_TYPE);
    let has_text = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    let text = match answer.whole_body(REFUSAL_BYTES_MAX).await {
        Ok(body) => first_line(&body),
        Err(error) => return no_answer(to, error),
    };
    match status {
        StatusCode::NOT_FOUND if !has_text => {
            no_answer(to, "there is no such page; is this an admin listener?")
        }
        StatusCode::UNAUTHORIZED => format!("{to} requires a token: {text}; set --token-file"),
        _ => format!("{to} refused the request: {text}"),
    }
}

/// The token that the file of the arguments has now.
fn token(matches: &ArgMatches) -> Result<Option<String>, String> {
    let Some(path) = matches.get_one::<PathBuf>("token-file") else { return Ok(None) };
    let text =
        fs::read_to_string(path).map_err(|error| format!("--token-file: {}: {error}", path.display()))?;
    Ok(Some(text.trim().to_owned()))
}

/// How to connect over TLS, for a command that has the flags for it.
fn tls(to: &str, matches: &ArgMatches) -> Result<Option<(TlsConnector, ServerName<'static>)>, String> {
    if !matches.try_contains_id("tls-ca").unwrap_or_default() {
        return Ok(None);
    }
    let host = to.rsplit_once(':').map_or(to, |(host, _port)| host);
    target::from_matches(matches)?.tls.map(|tls| tls.connector(host, b"http/1.1")).transpose()
}

/// Sends a request over a connection of its own.
async fn send(
    to: &str,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    request: request::Builder,
    body: String,
) -> Result<HttpResponse, Box<dyn std::error::Error>> {
    let stream = TcpStream::connect(to).await?;
    let request = request.header(HOST, host(to, stream.peer_addr()?)).body(Body::from(body))?;
    Ok(match tls {
        None => http_client::send(stream, request).await?,
        Some((tls, name)) => http_client::send(tls.connect(name, stream).await?, request).await?,
    })
}

/// The `Host` of a request to `to`, which is at `address`. Without a token a server knows itself by loopback names
/// alone, and a loopback address may have others.
fn host(to: &str, address: SocketAddr) -> String {
    if address.ip().to_canonical().is_loopback() { address.to_string() } else { to.to_owned() }
}

/// The first line of a text, without what could control a terminal.
fn first_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().take(LINE_MAX).flat_map(printable::visible).collect()
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
