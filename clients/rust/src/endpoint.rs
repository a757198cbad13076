//! How one address of a server is connected to.

use std::{io, net::SocketAddr, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{self, Channel, ClientTlsConfig, Endpoint};
use tower::service_fn;

use crate::InvalidOptions;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that disappeared without closing the connection is detected after these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The endpoint of `host:port`.
pub(crate) fn endpoint(name: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, InvalidOptions> {
    let invalid = || InvalidOptions::Target(name.to_owned());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{name}")).map_err(|_| invalid())?;
    let uri = endpoint.uri();
    if uri.port_u16().is_none() || uri.path() != "/" || uri.query().is_some() || name.contains('@') {
        return Err(invalid());
    }
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    match tls {
        Some(tls) => endpoint.tls_config(tls.clone()).map_err(InvalidOptions::Tls),
        None => Ok(endpoint),
    }
}

/// `host:port` of an endpoint.
pub(crate) fn authority(endpoint: &Endpoint) -> &str {
    endpoint.uri().authority().map_or("", http::uri::Authority::as_str)
}

/// Connects once: if the connection is closed, calls on the channel fail and do not connect again.
pub(crate) async fn connect(endpoint: &Endpoint, address: SocketAddr) -> Result<Channel, transport::Error> {
    let mut used = false;
    let once = service_fn(move |_: http::Uri| {
        let again = std::mem::replace(&mut used, true);
        async move {
            if again {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection is closed"));
            }
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        }
    });
    endpoint.connect_with_connector(once).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_without_port_is_invalid() {
        for target in
            ["", "tollgate", "http://tollgate:1", "a@tollgate:1", "tollgate:1/path", "tollgate:1,", "a:b"]
        {
            assert!(target.split(',').any(|name| endpoint(name, None).is_err()), "{target}");
        }
        for target in ["tollgate:8081", "127.0.0.1:1", "[::1]:1"] {
            assert_eq!(authority(&endpoint(target, None).unwrap()), target);
        }
    }
}
