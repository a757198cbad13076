//! The settings of rules from a URL.

use std::{path::PathBuf, time::Duration};

use crate::{tls_files::ClientTlsFiles, url::address::Address};

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
