//! A setting, and what it may be set to.

use std::{net::SocketAddr, time::Duration};

use bytesize::ByteSize;
use jiff::SignedDuration;

use crate::{
    settings::{
        cluster,
        listeners::{Address, count, mode, names},
        memory::{AUTO, Part},
    },
    telemetry::logs::{self, Denials},
};

/// The largest number that a setting may be.
pub(super) const COUNT_MAX: u32 = 1_000_000;
/// What stands for "none".
pub(super) const OFF: &str = "off";

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its section and name, as in a settings file: `drain.delay`.
    pub name: &'static str,
    /// What it may be set to.
    pub shape: Shape,
    /// What it is when nothing sets it; `None` where something must.
    pub default: Option<&'static str>,
    /// What it does, in one sentence.
    pub help: &'static str,
}

/// What a setting may be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An IP address and a port.
    Address,
    /// An IP address and a port, or a Unix socket.
    Socket,
    /// Hosts with their ports.
    Places,
    /// A host with its port, an IP address, or whatever the machine finds.
    Advertised,
    /// Who may open a file.
    Mode,
    /// Names in certificates, or none.
    Names,
    /// How many, at least one.
    Count,
    /// A length of time.
    Duration,
    /// A length of time within bounds.
    Within {
        /// The shortest that is allowed.
        least: Duration,
        /// The longest that is allowed.
        most: Duration,
    },
    /// On or off.
    Switch,
    /// A file or directory.
    Path,
    /// The same, or `off`.
    OrOff(&'static Shape),
    /// A number of bytes, or a part of the memory that this process may use.
    Size(Part),
    /// How many, at least one, or as many as there is memory for.
    CountOrAuto,
    /// A number of things, at most so many.
    Number {
        /// The largest that is allowed.
        most: u64,
    },
    /// One of a few words.
    Word(&'static [&'static str]),
    /// The name of an HTTP header.
    HeaderName,
    /// Which logs to write.
    LogFilter,
    /// How many denials to log.
    Denials,
}

impl Setting {
    /// Its command-line flag, without the dashes.
    pub fn flag(&self) -> String {
        match self.name {
            "rules.path" => "rules".to_owned(),
            "store.snapshot" => "snapshot".to_owned(),
            name => name.replace(['.', '_'], "-"),
        }
    }

    /// Whether it holds a secret, which nobody is shown. One whose name ends so must; the path of a file is none.
    pub fn is_secret(&self) -> bool {
        ["token", "secret", "password"].into_iter().any(|end| self.name.ends_with(end))
    }

    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("TOLLGATE_{}", self.name.replace('.', "__").to_uppercase())
    }
}

impl Shape {
    /// The kind of value, as a word for help texts.
    pub fn value_name(self) -> &'static str {
        match self {
            Self::Address | Self::Socket => "ADDRESS:PORT",
            Self::Places => "HOST:PORT[,HOST:PORT]...",
            Self::Advertised => "HOST[:PORT]",
            Self::Mode => "MODE",
            Self::Names => "NAME[,NAME]...",
            Self::Count => "N",
            Self::Duration | Self::Within { .. } => "TIME",
            Self::Switch => "BOOL",
            Self::Path => "PATH",
            Self::OrOff(shape) => shape.value_name(),
            Self::Size(_) => "SIZE",
            Self::CountOrAuto => "N",
            Self::Number { .. } => "NUMBER",
            Self::Word(_) => "WORD",
            Self::HeaderName => "NAME",
            Self::LogFilter => "LEVEL",
            Self::Denials => "RATE",
        }
    }

    /// Whether it is a list, so that a flag may come several times.
    pub fn is_list(self) -> bool {
        match self {
            Self::Names | Self::Places => true,
            Self::OrOff(shape) => shape.is_list(),
            Self::Address
            | Self::Socket
            | Self::Advertised
            | Self::Mode
            | Self::Count
            | Self::Duration
            | Self::Within { .. }
            | Self::Switch
            | Self::Path
            | Self::Size(_)
            | Self::CountOrAuto
            | Self::Number { .. }
            | Self::Word(_)
            | Self::HeaderName
            | Self::LogFilter
            | Self::Denials => false,
        }
    }

    /// What is allowed.
    pub fn expected(self) -> String {
        match self {
            Self::Address => "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081".to_owned(),
            Self::Socket => {
                "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or a socket, as in unix:/run/tollgate.sock".to_owned()
            }
            Self::Places => "HOST:PORT, also several separated by commas".to_owned(),
            Self::Advertised => "HOST:PORT, an IP address, or auto".to_owned(),
            Self::Mode => "a mode of a file, as in 0660".to_owned(),
            Self::Names => "a comma list of host names, URIs and IP addresses, or off".to_owned(),
            Self::Count => format!("a number from 1 to {COUNT_MAX}"),
            Self::Duration => "a length of time, as in 250ms, 5s or 1m 30s".to_owned(),
            Self::Within { least, most } => format!("a length of time from {least:?} to {most:?}"),
            Self::Switch => "true or false".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::OrOff(shape) => format!("{}, or off", shape.expected()),
            Self::Size(part) => format!(
                "a size of at least {} and at most this machine's memory, as in 512MiB or 2GiB, or auto",
                ByteSize(part.bytes_min())
            ),
            Self::CountOrAuto => format!("a number from 1 to {COUNT_MAX}, or auto"),
            Self::Number { most } => format!("a whole number from 0 to {most}"),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::HeaderName => "the name of an HTTP header".to_owned(),
            Self::LogFilter => "error, warn, info, debug, trace or off, also per module".to_owned(),
            Self::Denials => Denials::EXPECTED.to_owned(),
        }
    }

    /// Whether `text` is allowed.
    pub fn allows(self, text: &str) -> bool {
        match self {
            Self::Address => text.parse::<SocketAddr>().is_ok(),
            Self::Socket => text.parse::<Address>().is_ok(),
            Self::Places => cluster::places(text).is_some(),
            Self::Advertised => cluster::can_be_advertised(text),
            Self::Mode => mode(text).is_some(),
            Self::Names => names(text).is_some(),
            Self::Count => count(text).is_some(),
            Self::Duration => duration(text).is_some(),
            Self::Within { least, most } => duration(text).is_some_and(|time| (least..=most).contains(&time)),
            Self::Switch => matches!(text, "true" | "false"),
            Self::Path => !text.is_empty(),
            Self::OrOff(shape) => text == OFF || shape.allows(text),
            Self::Size(part) => part.size(text).is_some(),
            Self::CountOrAuto => text == AUTO || count(text).is_some(),
            Self::Number { most } => text.parse::<u64>().is_ok_and(|number| number <= most),
            Self::Word(words) => words.contains(&text),
            Self::HeaderName => axum::http::HeaderName::try_from(text).is_ok(),
            Self::Denials => text.parse::<Denials>().is_ok(),
            Self::LogFilter => logs::filter(text).is_ok(),
        }
    }
}

/// Reads a length of time.
pub(super) fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}
