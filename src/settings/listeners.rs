//! The settings of the listeners.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

/// The prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

/// The files of a listener's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTlsFiles {
    /// The certificate chain of the listener, in PEM, the leaf first.
    pub cert: PathBuf,
    /// The key of that certificate, in PEM.
    pub key: PathBuf,
    /// The CA certificates for clients, in PEM; without them clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// The names of which a client certificate must have at least one; empty allows any.
    pub client_san: Vec<CertificateName>,
    /// The names of which a client certificate must have one to change limits without the admin token.
    pub limits_san: Vec<CertificateName>,
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

impl TryFrom<String> for ListenAddress {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.strip_prefix(UNIX) {
            Some("") => Err("the path of the socket is missing"),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| "neither an IP address with a port nor a socket"),
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

impl TryFrom<String> for CertificateName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let is_host = |character: char| character.is_ascii_alphanumeric() || "-._".contains(character);
        match text.split_once(':') {
            Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() => Ok(Self::Uri(text)),
            Some(_) => Err("not a URI"),
            None if !text.is_empty() && text.chars().all(is_host) => Ok(Self::Dns(text.to_ascii_lowercase())),
            None => Err("not a host name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_address_is_ip_and_port_or_unix_socket() {
        for text in ["127.0.0.1:8081", "[::1]:0", "unix:/run/tollgate.sock", "unix:beside"] {
            assert_eq!(ListenAddress::try_from(text.to_owned()).unwrap().to_string(), text);
        }
        for text in ["", "unix:", "localhost:1", "/run/x"] {
            assert!(ListenAddress::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn certificate_name_is_ip_address_uri_or_host() {
        let uri = "spiffe://shop/ns/edge";
        for (text, name) in [
            ("Edge.Example", CertificateName::Dns("edge.example".to_owned())),
            (uri, CertificateName::Uri(uri.to_owned())),
            ("10.0.0.1", CertificateName::Ip("10.0.0.1".parse().unwrap())),
            ("::1", CertificateName::Ip("::1".parse().unwrap())),
        ] {
            assert_eq!(CertificateName::try_from(text.to_owned()), Ok(name));
        }
        for text in ["", "a b", ":x", "x:", "*.example"] {
            assert!(CertificateName::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
