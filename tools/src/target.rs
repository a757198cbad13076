//! The flags for the gRPC server of a command and its TLS options.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::http::uri::Authority;
use clap::{Arg, ArgMatches};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio_rustls::TlsConnector;

use crate::command::{file, value};

/// The gRPC listener of a server on this machine with default settings.
const LOCAL: &str = "127.0.0.1:8081";

/// A server and its TLS options.
pub(super) struct Target {
    /// `HOST:PORT`, or `unix:` and a path.
    pub to: String,
    /// `None` for plaintext.
    pub tls: Option<TlsOptions>,
}

/// The TLS options of a client; all in PEM.
pub(super) struct TlsOptions {
    pub authority: Vec<u8>,
    /// The certificate and its key.
    pub identity: Option<[Vec<u8>; 2]>,
    /// The name in the server's certificate, if it differs from the address.
    pub name: Option<String>,
}

impl TlsOptions {
    /// Connects to a server at `host` that speaks `protocol`, with the name that its certificate must contain.
    pub(super) fn connector(
        self,
        host: &str,
        protocol: &[u8],
    ) -> Result<(TlsConnector, ServerName<'static>), String> {
        let name = self.name.unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
        let name = ServerName::try_from(name.clone()).map_err(|error| format!("{name}: {error}"))?;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&self.authority) {
            let authority = authority.map_err(|error| format!("--tls-ca: {error}"))?;
            roots.add(authority).map_err(|error| format!("--tls-ca: {error}"))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let mut config = match self.identity {
            None => config.with_no_client_auth(),
            Some([cert, key]) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
                let chain = chain.map_err(|error| format!("--tls-cert: {error}"))?;
                let key =
                    PrivateKeyDer::from_pem_slice(&key).map_err(|error| format!("--tls-key: {error}"))?;
                config.with_client_auth_cert(chain, key).map_err(|error| format!("--tls-cert: {error}"))?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok((TlsConnector::from(Arc::new(config)), name))
    }
}

/// The flags for the server and TLS.
pub(super) fn args() -> [Arg; 5] {
    let to = value("to", "HOST:PORT", "gRPC address of the server; unix:/path/to.sock for a Unix socket")
        .default_value(LOCAL)
        .value_parser(|text: &str| match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(text.to_owned()),
            Some(_) | None => host_and_port(text),
        });
    let [ca, cert, key, name] = tls_args();
    [to, ca, cert, key, name]
}

/// The flags for TLS.
pub(super) fn tls_args() -> [Arg; 4] {
    [
        file("tls-ca", "Use TLS, and trust only certificates signed by these CA certificates (PEM)"),
        file("tls-cert", "Client certificate (PEM)").requires("tls-ca").requires("tls-key"),
        file("tls-key", "Private key of the client certificate (PEM)").requires("tls-cert"),
        value(
            "tls-name",
            "HOST",
            "Name that the server's certificate must contain [default: the host of --to]",
        )
        .requires("tls-ca"),
    ]
}

/// `HOST:PORT` as it is, or what is expected.
pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    let has_port = text.parse::<Authority>().is_ok_and(|authority| authority.port_u16().is_some());
    if has_port { Ok(text.to_owned()) } else { Err("expected HOST:PORT".to_owned()) }
}

/// The server that the flags name, with all files read.
pub(super) fn from_matches(matches: &ArgMatches) -> Result<Target, String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let read_file = |name: &str| matches.get_one::<PathBuf>(name).map(|path| read(path)).transpose();
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    // clap has refused one without the other.
    let identity = read_file("tls-cert")?.zip(read_file("tls-key")?).map(|(cert, key)| [cert, key]);
    let tls =
        read_file("tls-ca")?.map(|authority| TlsOptions { authority, identity, name: text("tls-name") });
    Ok(Target { to: text("to").unwrap_or_default(), tls })
}
