//! A client for the admin listener of a server.

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Arg, ArgMatches, ValueHint, value_parser};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime,
    time::timeout,
};

/// The time to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of an answer, in bytes.
const ANSWER_MAX: u64 = 16 * 1024 * 1024;

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
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| none(error.to_string()))?;
    let answered = async {
        match timeout(TIMEOUT, send(&to, token.as_deref(), call)).await {
            Ok(answered) => answered.map_err(|error| error.to_string()),
            Err(_) => Err(format!("none within {} s", TIMEOUT.as_secs())),
        }
    };
    let answer = runtime.block_on(answered).map_err(none)?;
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| none("it does not speak HTTP".to_owned()))?;
    match head.split(' ').nth(1) {
        Some("200") => serde_json::from_str(body).map_err(|error| none(error.to_string())),
        Some("404") if body.is_empty() => {
            Err(none("there is no such page; is this an admin listener?".to_owned()))
        }
        Some("401") => Err(format!("{to} requires a token: {}; set --token-file", body.trim())),
        Some(_) => Err(format!("{to} refused the request: {}", body.trim())),
        None => Err(none("it does not speak HTTP".to_owned())),
    }
}

async fn send(to: &str, token: Option<&str>, call: &Call) -> std::io::Result<String> {
    let Call { method, path, body } = call;
    let mut stream = TcpStream::connect(to).await?;
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    // HTTP/1.0 has no chunked encoding: the answer ends with the connection.
    let host = host(to, stream.peer_addr()?);
    let head =
        format!("{method} {path} HTTP/1.0\r\nhost: {host}\r\n{token}content-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The `Host` of a request to `to`, which is at `address`. Without a token a server knows itself by loopback names alone,
/// and a loopback address may have others.
fn host(to: &str, address: SocketAddr) -> String {
    if address.ip().to_canonical().is_loopback() { address.to_string() } else { to.to_owned() }
}

/// `text` percent-encoded for a query.
pub(super) fn percent_encode(text: &str) -> String {
    let mut query = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            query.push(byte.into());
        } else {
            query += &format!("%{byte:02X}");
        }
    }
    query
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
