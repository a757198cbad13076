//! Where to listen, to whom, and what one client may take.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::settings::{OFF, ValueType, duration, memory::MemoryShare, path_or_off, value_type};

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// What a gRPC connection takes: as measured with TLS while idle, and the replies that it may always have unsent.
const GRPC_CONNECTION_BYTES: u64 = 64 * 1024;
/// What an HTTP connection takes, as measured with TLS while idle.
const HTTP_CONNECTION_BYTES: u64 = 32 * 1024;
/// The most connections where there is much memory.
const GRPC_CONNECTIONS_MAX: usize = 10_000;
const HTTP_CONNECTIONS_MAX: usize = 1_000;

/// The gRPC service.
#[derive(Clone, Debug)]
pub struct Grpc {
    /// Where it listens.
    pub listen: ListenAddress,
    /// Who may open a Unix socket, as in `chmod`.
    pub socket_mode: u32,
    /// Its certificates; without them it speaks plaintext.
    pub tls: Option<Tls>,
    /// The most connections at a time.
    pub max_connections: usize,
    /// The most calls at a time on one connection.
    pub max_concurrent_streams: u32,
    /// How long a connection may last, give or take a fifth.
    pub max_connection_age: Duration,
    /// How long calls that are then open may still take.
    pub max_connection_age_grace: Duration,
    /// How often a client is asked whether it is still there.
    pub keepalive_interval: Duration,
    /// How long it may take to say so.
    pub keepalive_timeout: Duration,
    /// How long a new connection may take to begin.
    pub handshake_timeout: Duration,
}

/// The plain HTTP side.
#[derive(Clone, Debug)]
pub struct Http {
    /// Where it listens; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Its certificates; without them it speaks plaintext.
    pub tls: Option<Tls>,
    /// The most connections at a time.
    pub max_connections: usize,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
}

/// The operator's side.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Where it listens; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// The file with the token that operators must show.
    pub token_file: Option<PathBuf>,
    /// The most connections at a time.
    pub max_connections: usize,
}

/// The files of a listener's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate chain that we show, in PEM, our own first.
    pub cert: PathBuf,
    /// The key of that certificate, in PEM.
    pub key: PathBuf,
    /// Who signs the certificates of clients, in PEM; without it clients need none.
    pub client_ca: Option<PathBuf>,
    /// The names of which a client's certificate must have one; empty allows any.
    pub client_san: Vec<CertificateName>,
}

/// How often the files of certificates are compared with what is in force.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateReload {
    /// The time between two looks.
    #[serde(deserialize_with = "duration")]
    pub poll_interval: Duration,
}

/// A place that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A port; 0 takes any that is free.
    Tcp(SocketAddr),
    /// A socket in the file system.
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

/// Reads a comma list of names, or `off`.
pub(super) fn names(text: &str) -> Option<Vec<CertificateName>> {
    if text == OFF {
        return Some(Vec::new());
    }
    text.split(',').map(|name| name.trim().parse().ok()).collect()
}

/// Reads a file mode, as in `chmod`: whether others than the owner may connect is all that counts.
pub(super) fn mode(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
}

/// The four settings of certificates as they are written.
fn tls(cert: PathBuf, key: PathBuf, client_ca: PathBuf, client_san: Vec<CertificateName>) -> Option<Tls> {
    // `Sources` has seen to it that there is both or neither.
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

/// Reads a number of things that there must be at least one of.
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
    fn an_address_is_a_port_or_a_socket_in_the_file_system() {
        for text in ["127.0.0.1:8081", "[::1]:0", "unix:/run/tollgate.sock", "unix:beside"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "localhost:1", "/run/x"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_is_an_ip_address_a_uri_or_a_host() {
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
    fn a_mode_is_octal_and_for_files() {
        assert_eq!(mode("0660"), Some(0o660));
        for text in ["", "8", "1000", "-1", "rw"] {
            assert_eq!(mode(text), None, "{text}");
        }
    }
}
