//! One request for rules, with its redirects and the settings of it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::body::Body;
use futures_util::{FutureExt, future::select_ok};
use http::{
    HeaderMap, HeaderValue, Request, StatusCode,
    header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH, LOCATION, USER_AGENT},
};
use rustls::pki_types::ServerName;
use tokio::{
    net::{TcpStream, lookup_host},
    task::spawn_blocking,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tollgate_counter::time::Clock;
use tollgate_net::{
    certificates,
    http_client::{self, HttpClientError, HttpResponse},
    private_file,
};
use tollgate_telemetry::causes;

use crate::{ClientTlsFiles, url::address::Address};

/// The maximum length of an `ETag` that is sent back, in bytes.
const ETAG_BYTES_MAX: usize = 1024;

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Fetched {
    /// There is no document: the server has answered 404.
    Absent,
    /// The document is that of the `ETag`.
    Unchanged,
    /// A document.
    Document {
        /// The bytes of the document.
        bytes: Vec<u8>,
        /// What identifies the document.
        etag: Option<String>,
    },
}

/// Asks for the rules, unless they are those of `etag`, for `time_max` at most. An error says why there is no whole
/// answer; it has no secret.
pub(super) async fn fetch(
    settings: &UrlSettings,
    clock: &Clock,
    etag: Option<&str>,
    time_max: Duration,
) -> Result<Fetched, String> {
    let late = |_| Err(format!("no whole answer within {time_max:?}"));
    timeout(time_max, follow_redirects(settings, clock, etag)).await.unwrap_or_else(late)
}

async fn follow_redirects(
    settings: &UrlSettings,
    clock: &Clock,
    etag: Option<&str>,
) -> Result<Fetched, String> {
    let mut address = settings.address.clone();
    let mut redirects = 0;
    loop {
        let answer = ask(settings, clock, &address, etag).await?;
        match answer.head.status {
            StatusCode::OK => return document(answer, settings.bytes_max).await,
            StatusCode::NOT_FOUND => return Ok(Fetched::Absent),
            StatusCode::NOT_MODIFIED if etag.is_some() => return Ok(Fetched::Unchanged),
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let next = redirect(settings, &address, &answer.head.headers)?;
                if redirects == settings.redirects_max {
                    let most = settings.redirects_max;
                    return Err(format!("the server redirects to {next}; rules.url.redirects allows {most}"));
                }
                redirects += 1;
                address = next;
            }
            status => return Err(format!("the server answered {status}")),
        }
    }
}

/// Where an answer redirects to. A redirect never leaves TLS.
fn redirect(settings: &UrlSettings, from: &Address, headers: &HeaderMap) -> Result<Address, String> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| from.join(location));
    let next = next.ok_or("the server redirects to an address that is not allowed")?;
    let is_allowed = next.is_tls() || !from.is_tls() && (next.is_loopback() || settings.plaintext);
    if is_allowed { Ok(next) } else { Err(format!("the server redirects to {next}, which is not over TLS")) }
}

async fn ask(
    settings: &UrlSettings,
    clock: &Clock,
    address: &Address,
    etag: Option<&str>,
) -> Result<HttpResponse, String> {
    let (tls, token) = identity(settings, clock, address).await?;
    let mut request = Request::get(address.target())
        .header(HOST, address.host_header())
        .header(USER_AGENT, concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT_ENCODING, "identity");
    if let Some(etag) = etag {
        request = request.header(IF_NONE_MATCH, etag);
    }
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
    let (host, port) = address.host_and_port();
    let stream = connect(host, port).await?;
    let sent = match tls {
        None => http_client::send(stream, request).await,
        Some(connector) => {
            let name = settings.tls.server_name.as_deref().unwrap_or(host).to_owned();
            let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
            let stream = connector.connect(name, stream).await.map_err(|error| causes(&error))?;
            http_client::send(stream, request).await
        }
    };
    sent.map_err(|error| causes(&error))
}

/// The TLS and the token of a request. Reads the files of the settings, so that renewed ones count. Only the server that the settings name gets the
/// certificate, and only paths in the folder of the rules get the token.
async fn identity(
    settings: &UrlSettings,
    clock: &Clock,
    address: &Address,
) -> Result<(Option<TlsConnector>, Option<HeaderValue>), String> {
    let is_own = address.has_origin_of(&settings.address);
    let files = settings.tls.clone();
    let is_tls = address.is_tls();
    let clock = clock.clone();
    let token_file = settings.token_file.clone().filter(|_| address.is_in_folder_of(&settings.address));
    let read = move || {
        let client = files.client.as_ref().filter(|_| is_own);
        let client = client.map(|(cert, key)| (cert.as_path(), key.as_path()));
        let config = || certificates::client_config(files.ca.as_deref(), client, &clock);
        let tls = is_tls.then(config).transpose()?;
        let token = token_file.map(|path| {
            let token =
                private_file::read_token(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let mut value =
                HeaderValue::try_from([b"Bearer ", &*token].concat()).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        });
        let tls = tls.map(|config| TlsConnector::from(Arc::new(config)));
        Ok((tls, token.transpose()?))
    };
    spawn_blocking(read).await.map_err(|error| error.to_string())?
}

/// Connects to the first address of a host that accepts.
async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let unreachable = |error: std::io::Error| format!("cannot connect to {host}:{port}: {error}");
    let addresses: Vec<_> = lookup_host((host, port)).await.map_err(unreachable)?.collect();
    if addresses.is_empty() {
        return Err(format!("{host} has no address"));
    }
    let attempts = addresses.into_iter().map(|address| TcpStream::connect(address).boxed());
    let (stream, _) = select_ok(attempts).await.map_err(unreachable)?;
    Ok(stream)
}

/// The document of an answer, of at most `bytes_max` bytes.
async fn document(answer: HttpResponse, bytes_max: usize) -> Result<Fetched, String> {
    if let Some(charset) = foreign_charset(&answer.head.headers) {
        return Err(format!("the answer has the charset {charset:?}; rules are in UTF-8"));
    }
    let etag = answer.head.headers.get(ETAG).and_then(|etag| etag.to_str().ok());
    let etag = etag.filter(|etag| etag.len() <= ETAG_BYTES_MAX).map(str::to_owned);
    let bytes = answer.whole_body(bytes_max).await.map_err(|error| match error {
        HttpClientError::TooLarge => {
            format!("the answer is larger than rules.url.max_bytes, {bytes_max} bytes")
        }
        error => causes(&error),
    })?;
    Ok(Fetched::Document { bytes, etag })
}

/// The charset of an answer, if its bytes mean other characters than in UTF-8.
fn foreign_charset(headers: &HeaderMap) -> Option<String> {
    let types = headers.get_all(CONTENT_TYPE).into_iter();
    let charsets = types.flat_map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        let parameters = text.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
        let charsets = parameters.filter(|(name, _)| name.trim() == "charset");
        charsets.map(|(_, charset)| charset.trim().trim_matches('"').to_owned()).collect::<Vec<_>>()
    });
    charsets.into_iter().find(|charset| !["utf-8", "utf8", "us-ascii"].contains(&&**charset))
}

/// Where the rules are, how they are asked for, and what bounds an answer.
#[derive(Clone, Debug)]
pub struct UrlSettings {
    /// The address.
    pub address: Address,
    /// The time between two requests; up to a fifth of it is left out at random.
    pub interval: Duration,
    /// The time for a whole answer, connection and redirects included.
    pub timeout: Duration,
    /// The maximum size of the document, in bytes.
    pub bytes_max: usize,
    /// The certificates, for `https`.
    pub tls: ClientTlsFiles,
    /// The file of the bearer token, if there is one.
    pub token_file: Option<PathBuf>,
    /// The maximum number of redirects for one answer.
    pub redirects_max: u32,
    /// Whether `http` is allowed for other machines.
    pub plaintext: bool,
    /// The file in which the last good document is retained, if there is one.
    pub copy: Option<PathBuf>,
}
