//! The settings of the listeners.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::settings::{OFF, ValueType, duration, memory::MemoryShare, path_or_off, value_type};

/// The prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

/// The memory of a gRPC connection: as measured idle with TLS, and the unsent replies that it may always have.
const GRPC_CONNECTION_BYTES: u64 = 64 * 1024;
/// The memory of an HTTP connection, as measured idle with TLS.
const HTTP_CONNECTION_BYTES: u64 = 32 * 1024;
/// The maximum of `auto`.
const GRPC_CONNECTIONS_MAX: usize = 10_000;
const HTTP_CONNECTIONS_MAX: usize = 1_000;

/// The gRPC listener.
#[derive(Clone, Debug)]
pub struct Grpc {
    /// The address.
    pub listen: ListenAddress,
    /// The mode of a Unix socket, as in `chmod`.
    pub socket_mode: u32,
    /// The certificates; without them the listener speaks plaintext.
    pub tls: Option<Tls>,
    /// The maximum number of connections.
    pub max_connections: usize,
    /// The maximum number of concurrent calls on one connection.
    pub max_concurrent_streams: u32,
    /// The maximum age of a connection, give or take a fifth.
    pub max_connection_age: Duration,
    /// The time for calls that are open at that age to finish.
    pub max_connection_age_grace: Duration,
    /// The interval between keepalive pings.
    pub keepalive_interval: Duration,
    /// The time to wait for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// The time for the handshake of a new connection.
    pub handshake_timeout: Duration,
}

/// The HTTP listener.
#[derive(Clone, Debug)]
pub struct Http {
    /// The address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The certificates; without them the listener speaks plaintext.
    pub tls: Option<Tls>,
    /// The maximum number of connections.
    pub max_connections: usize,
    /// The time for the header of a request to arrive.
    pub header_timeout: Duration,
}

/// The admin listener.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The file with the bearer token of operators.
    pub token_file: Option<PathBuf>,
    /// The maximum number of connections.
    pub max_connections: usize,
}

/// The files of a listener's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate chain of the listener, in PEM, the leaf first.
    pub cert: PathBuf,
    /// The key of that certificate, in PEM.
    pub key: PathBuf,
    /// The CA certificates for clients, in PEM; without them clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// The names of which a client certificate must have at least one; empty allows any.
    pub client_san: Vec<CertificateName>,
}

/// The reload of certificates.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateReload {
    /// The interval between comparisons of the files with the active certificates.
    #[serde(deserialize_with = "duration")]
    pub poll_interval: Duration,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a port; port 0 selects a free port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// A host, in lower case.
    Dns(String),
    /// A URI, as in SPIFFE.
    Uri(String),
    /// An IP address.
    Ip(IpAddr),
}

impl FromStr for ListenAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix(UNIX) {
            Some("") => Err(()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(drop),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for CertificateName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        if text.contains(':') {
            let (scheme, rest) = text.split_once(':').unwrap_or_default();
            let is_uri = !scheme.is_empty() && !rest.is_empty();
            return if is_uri { Ok(Self::Uri(text.to_owned())) } else { Err(()) };
        }
        let is_host = |character: char| character.is_ascii_alphanumeric() || "-._".contains(character);
        let good = !text.is_empty() && text.chars().all(is_host);
        if good { Ok(Self::Dns(text.to_ascii_lowercase())) } else { Err(()) }
    }
}

/// Parses a comma list of names, or `off`.
pub(super) fn names(text: &str) -> Option<Vec<CertificateName>> {
    if text == OFF {
        return Some(Vec::new());
    }
    text.split(',').map(|name| name.trim().parse().ok()).collect()
}

/// Parses a file mode, as in `chmod`.
pub(super) fn mode(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
}

/// The certificate settings of a listener as written.
fn tls(cert: PathBuf, key: PathBuf, client_ca: PathBuf, client_san: Vec<CertificateName>) -> Option<Tls> {
    // `Sources` has checked that both or neither are set.
    Some(Tls {
        cert: path_or_off(cert)?,
        key: path_or_off(key)?,
        client_ca: path_or_off(client_ca),
        client_san,
    })
}

impl<'de> Deserialize<'de> for Grpc {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RawSettings {
            #[serde(deserialize_with = "address")]
            listen: ListenAddress,
            #[serde(deserialize_with = "file_mode")]
            socket_mode: u32,
            tls_cert: PathBuf,
            tls_key: PathBuf,
            tls_client_ca: PathBuf,
            #[serde(deserialize_with = "list_of_names")]
            tls_client_san: Vec<CertificateName>,
            #[serde(deserialize_with = "grpc_connections")]
            max_connections: usize,
            max_concurrent_streams: u32,
            #[serde(deserialize_with = "duration")]
            max_connection_age: Duration,
            #[serde(deserialize_with = "duration")]
            max_connection_age_grace: Duration,
            #[serde(deserialize_with = "duration")]
            keepalive_interval: Duration,
            #[serde(deserialize_with = "duration")]
            keepalive_timeout: Duration,
            #[serde(deserialize_with = "duration")]
            handshake_timeout: Duration,
        }
        let written = RawSettings::deserialize(deserializer)?;
        Ok(Self {
            listen: written.listen,
            socket_mode: written.socket_mode,
            tls: tls(written.tls_cert, written.tls_key, written.tls_client_ca, written.tls_client_san),
            max_connections: written.max_connections,
            max_concurrent_streams: written.max_concurrent_streams,
            max_connection_age: written.max_connection_age,
            max_connection_age_grace: written.max_connection_age_grace,
            keepalive_interval: written.keepalive_interval,
            keepalive_timeout: written.keepalive_timeout,
            handshake_timeout: written.handshake_timeout,
        })
    }
}

impl<'de> Deserialize<'de> for Http {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RawSettings {
            listen: SocketAddr,
            tls_cert: PathBuf,
            tls_key: PathBuf,
            tls_client_ca: PathBuf,
            #[serde(deserialize_with = "list_of_names")]
            tls_client_san: Vec<CertificateName>,
            #[serde(deserialize_with = "http_connections")]
            max_connections: usize,
            #[serde(deserialize_with = "duration")]
            header_timeout: Duration,
        }
        let written = RawSettings::deserialize(deserializer)?;
        Ok(Self {
            listen: written.listen,
            tls: tls(written.tls_cert, written.tls_key, written.tls_client_ca, written.tls_client_san),
            max_connections: written.max_connections,
            header_timeout: written.header_timeout,
        })
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ListenAddress, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|()| D::Error::custom(ValueType::ListenAddress.expected()))
}

fn file_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    mode(&text).ok_or_else(|| D::Error::custom(ValueType::FileMode.expected()))
}

fn list_of_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CertificateName>, D::Error> {
    let text = String::deserialize(deserializer)?;
    names(&text).ok_or_else(|| D::Error::custom(ValueType::CertificateNames.expected()))
}

/// Parses a count, which is at least 1.
pub(super) fn count(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number| (1..=value_type::COUNT_MAX as usize).contains(number))
}

fn grpc_connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let text = String::deserialize(deserializer)?;
    let connections =
        MemoryShare::GrpcConnections.connections(&text, GRPC_CONNECTION_BYTES, GRPC_CONNECTIONS_MAX);
    connections.ok_or_else(|| D::Error::custom(ValueType::CountOrAuto.expected()))
}

fn http_connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let text = String::deserialize(deserializer)?;
    let connections =
        MemoryShare::HttpConnections.connections(&text, HTTP_CONNECTION_BYTES, HTTP_CONNECTIONS_MAX);
    connections.ok_or_else(|| D::Error::custom(ValueType::CountOrAuto.expected()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_address_is_ip_and_port_or_unix_socket() {
        for text in ["127.0.0.1:8081", "[::1]:0", "unix:/run/tollgate.sock", "unix:beside"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "localhost:1", "/run/x"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn certificate_name_is_ip_address_uri_or_host() {
        let uri = "spiffe://shop/ns/edge";
        assert_eq!(
            names(&format!("Edge.Example, {uri},10.0.0.1,::1")).unwrap(),
            [
                CertificateName::Dns("edge.example".to_owned()),
                CertificateName::Uri(uri.to_owned()),
                CertificateName::Ip("10.0.0.1".parse().unwrap()),
                CertificateName::Ip("::1".parse().unwrap()),
            ]
        );
        for text in ["", "a,", "a b", ":x", "x:", "*.example"] {
            assert_eq!(names(text), None, "{text}");
        }
    }

    #[test]
    fn socket_mode_is_octal_and_at_most_777() {
        assert_eq!(mode("0660"), Some(0o660));
        for text in ["", "8", "1000", "-1", "rw"] {
            assert_eq!(mode(text), None, "{text}");
        }
    }
}
