//! Streams to servers, with and without TLS.

use std::{io, pin::Pin, sync::Arc};

use futures_util::{FutureExt, future::select_ok};
use redis::{ConnectionAddr, ErrorKind, RedisError, RedisResult, TlsCertificates, aio::AsyncStream};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A stream to a server.
pub(super) type ServerStream = Pin<Box<dyn AsyncStream + Send + Sync>>;

/// Connects to a server. `None` if the address demands TLS and there is no `tls`.
pub(super) async fn dial(
    addr: &ConnectionAddr,
    tls: Option<&TlsConnector>,
) -> RedisResult<Option<ServerStream>> {
    match (addr, tls) {
        (ConnectionAddr::Tcp(host, port), _) => Ok(Some(Box::pin(connect(host, *port).await?))),
        (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) => {
            let name =
                ServerName::try_from(host.clone()).map_err(|error| invalid("not a host name", &error))?;
            let stream = connect(host, *port).await?;
            Ok(Some(Box::pin(tls.connect(name, stream).await?)))
        }
        _ => Ok(None),
    }
}

/// Connects to the first address of a host that accepts.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name of the server has no address"));
    }
    let attempts = addresses.into_iter().map(|address| TcpStream::connect(address).boxed());
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects with these certificates, or with those that the system trusts.
pub(super) fn tls_connector(certificates: Option<&TlsCertificates>) -> RedisResult<TlsConnector> {
    let authorities = certificates.and_then(|certificates| certificates.root_cert.as_ref());
    let authorities = match authorities {
        Some(pem) => read_certificates(pem)?,
        None => {
            let mut found = rustls_native_certs::load_native_certs();
            if let Some(error) = found.errors.pop() {
                return Err(invalid("cannot read the certificates of the system", &error));
            }
            found.certs
        }
    };
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(|error| invalid("a certificate of an authority is invalid", &error))?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match certificates.and_then(|certificates| certificates.client_tls.as_ref()) {
        Some(client) => {
            let chain = read_certificates(&client.client_cert)?;
            let key = PrivateKeyDer::from_pem_slice(&client.client_key);
            let key = key.map_err(|error| invalid("the key of the client is invalid", &error))?;
            let config = config.with_client_auth_cert(chain, key);
            config.map_err(|error| invalid("the certificate of the client is invalid", &error))?
        }
        None => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn read_certificates(pem: &[u8]) -> RedisResult<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    read.map_err(|error| invalid("a certificate file is invalid", &error))
}

fn invalid(what: &'static str, error: &impl ToString) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, what, error.to_string()))
}
