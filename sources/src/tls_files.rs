//! The certificate files of a connection to a server of rules.

use std::path::PathBuf;

/// The certificates of a connection with TLS, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// The authorities that sign the certificate of the server; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate chain and the key to show to the server.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name in the certificate of the server, if it is not the host of the URL.
    pub server_name: Option<String>,
}
