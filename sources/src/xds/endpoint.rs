//! The connection to a control plane, and its certificates.

use std::{path::Path, time::Duration};

use tollgate_net::certificates;
use tollgate_telemetry::causes;
use tonic::{
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Uri},
};

use crate::ClientTlsFiles;

/// Control planes close connections with frequent pings of HTTP/2, so a dead one is noticed by TCP.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_RETRIES: u32 = 3;

/// The control plane at `url`, with the certificates as they are in the files now.
pub(super) async fn endpoint(url: &str, files: &ClientTlsFiles) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| causes(&error))?
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .map_err(|error| causes(&error))?
        .tcp_keepalive(Some(KEEPALIVE))
        .tcp_keepalive_interval(Some(KEEPALIVE))
        .tcp_keepalive_retries(Some(KEEPALIVE_RETRIES));
    if !url.starts_with("https:") {
        return Ok(endpoint);
    }
    let files = files.clone();
    let read = tokio::task::spawn_blocking(move || trust(&files)).await;
    let trust = read.map_err(|error| error.to_string())??;
    endpoint.tls_config(trust).map_err(|error| causes(&error))
}

/// Whether a text is `http://HOST:PORT` or `https://HOST:PORT`.
pub fn is_url(text: &str) -> bool {
    let address = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    address.is_some_and(|address| !address.contains(['/', '@', '?', '#']))
        && text.parse::<Uri>().is_ok_and(|uri| uri.port_u16().is_some())
}

/// Whether a header can be sent.
pub fn is_header(name: &str, value: &str) -> bool {
    AsciiMetadataKey::from_bytes(name.as_bytes()).is_ok() && AsciiMetadataValue::try_from(value).is_ok()
}

/// Adds headers that [`is_header`] accepts.
pub(super) fn add_headers(metadata: &mut MetadataMap, headers: &[(String, String)]) {
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (AsciiMetadataKey::from_bytes(name.as_bytes()), value.parse()) {
            metadata.insert(name, value);
        }
    }
}

fn trust(files: &ClientTlsFiles) -> Result<ClientTlsConfig, String> {
    let read =
        |path: &Path| certificates::read_file(path).map_err(|reason| format!("{}: {reason}", path.display()));
    let mut config = match &files.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((cert, key)) = &files.client {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    if let Some(name) = &files.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}
