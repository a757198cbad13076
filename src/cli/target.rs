//! Which server to ask over gRPC, and how to trust it, as commands take it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, ValueHint, value_parser};

/// A server and how to speak to it.
pub(super) struct Target {
    /// `HOST:PORT`, or `unix:` and a path.
    pub to: String,
    /// Without it, plaintext.
    pub tls: Option<Tls>,
}

/// Whom to trust and who to be; all in PEM.
pub(super) struct Tls {
    pub authority: Vec<u8>,
    pub identity: Option<Identity>,
    /// The name that the server's certificate must have, where it is not that of the address.
    pub name: Option<String>,
}

/// A certificate and its key.
pub(super) struct Identity {
    pub cert: Vec<u8>,
    pub key: Vec<u8>,
}

/// The flags that name a server.
pub(super) fn args() -> [Arg; 5] {
    let file = |name: &'static str, help: &'static str| {
        let arg = Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf));
        arg.value_hint(ValueHint::FilePath).help(help)
    };
    [
        Arg::new("to")
            .long("to")
            .value_name("HOST:PORT")
            .required(true)
            .help("The server to ask, over gRPC; unix:/path/to.sock for one on a Unix socket"),
        file("tls-ca", "Ask over TLS, and trust whom this authority (PEM) has signed, nobody else"),
        file("tls-cert", "The certificate to show (PEM)").requires("tls-ca").requires("tls-key"),
        file("tls-key", "The key of that certificate (PEM)").requires("tls-cert"),
        Arg::new("tls-name")
            .long("tls-name")
            .value_name("HOST")
            .requires("tls-ca")
            .help("The name that the server's certificate must have [default: that of --to]"),
    ]
}

/// The server that the flags name, with the files that they name read.
pub(super) fn of(matches: &ArgMatches) -> Result<Target, String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let file = |name: &str| matches.get_one::<PathBuf>(name).map(|path| read(path)).transpose();
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let identity = match (file("tls-cert")?, file("tls-key")?) {
        (Some(cert), Some(key)) => Some(Identity { cert, key }),
        // clap has refused one without the other.
        (Some(_) | None, None) | (None, Some(_)) => None,
    };
    let tls = file("tls-ca")?.map(|authority| Tls { authority, identity, name: text("tls-name") });
    Ok(Target { to: text("to").unwrap_or_default(), tls })
}
