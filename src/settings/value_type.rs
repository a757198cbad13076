//! A setting, and what it may be set to.

use std::{net::SocketAddr, time::Duration};

use bytesize::ByteSize;
use jiff::SignedDuration;

use crate::{
    settings::{
        cluster,
        listeners::{ListenAddress, count, mode, names},
        memory::{AUTO, MemoryShare},
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
    pub value_type: ValueType,
    /// What it is when nothing sets it; `None` where something must.
    pub default: Option<&'static str>,
    /// What it does, in one sentence.
    pub help: &'static str,
}

/// What a setting may be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// An IP address and a port.
    SocketAddress,
    /// An IP address and a port, or a Unix socket.
    ListenAddress,
    /// Hosts with their ports.
    HostPorts,
    /// A host with its port, an IP address, or whatever the machine finds.
    AdvertisedAddress,
    /// Who may open a file.
    FileMode,
    /// Names in certificates, or none.
    CertificateNames,
    /// How many, at least one.
    Count,
    /// A length of time.
    Duration,
    /// A length of time within bounds.
    DurationRange {
        /// The shortest that is allowed.
        min: Duration,
        /// The longest that is allowed.
        max: Duration,
    },
    /// On or off.
    Bool,
    /// A file or directory.
    Path,
    /// The same, or `off`.
    OrOff(&'static ValueType),
    /// A number of bytes, or a part of the memory that this process may use.
    Size(MemoryShare),
    /// How many, at least one, or as many as there is memory for.
    CountOrAuto,
    /// A number of things, at most so many.
    Number {
        /// The largest that is allowed.
        max: u64,
    },
    /// One of a few words.
    OneOf(&'static [&'static str]),
    /// The name of an HTTP header.
    HeaderName,
    /// Which logs to write.
    LogFilter,
    /// How many denials to log.
    DenialRate,
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

impl ValueType {
    /// The kind of value, as a word for help texts.
    pub fn value_name(self) -> &'static str {
        match self {
            Self::SocketAddress | Self::ListenAddress => "ADDRESS:PORT",
            Self::HostPorts => "HOST:PORT[,HOST:PORT]...",
            Self::AdvertisedAddress => "HOST[:PORT]",
            Self::FileMode => "MODE",
            Self::CertificateNames => "NAME[,NAME]...",
            Self::Count => "N",
            Self::Duration | Self::DurationRange { .. } => "TIME",
            Self::Bool => "BOOL",
            Self::Path => "PATH",
            Self::OrOff(value_type) => value_type.value_name(),
            Self::Size(_) => "SIZE",
            Self::CountOrAuto => "N",
            Self::Number { .. } => "NUMBER",
            Self::OneOf(_) => "WORD",
            Self::HeaderName => "NAME",
            Self::LogFilter => "LEVEL",
            Self::DenialRate => "RATE",
        }
    }

    /// Whether it is a list, so that a flag may come several times.
    pub fn is_list(self) -> bool {
        match self {
            Self::CertificateNames | Self::HostPorts => true,
            Self::OrOff(value_type) => value_type.is_list(),
            Self::SocketAddress
            | Self::ListenAddress
            | Self::AdvertisedAddress
            | Self::FileMode
            | Self::Count
            | Self::Duration
            | Self::DurationRange { .. }
            | Self::Bool
            | Self::Path
            | Self::Size(_)
            | Self::CountOrAuto
            | Self::Number { .. }
            | Self::OneOf(_)
            | Self::HeaderName
            | Self::LogFilter
            | Self::DenialRate => false,
        }
    }

    /// What is allowed.
    pub fn expected(self) -> String {
        match self {
            Self::SocketAddress => "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081".to_owned(),
            Self::ListenAddress => {
                "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or a socket, as in unix:/run/tollgate.sock".to_owned()
            }
            Self::HostPorts => "HOST:PORT, also several separated by commas".to_owned(),
            Self::AdvertisedAddress => "HOST:PORT, an IP address, or auto".to_owned(),
            Self::FileMode => "a mode of a file, as in 0660".to_owned(),
            Self::CertificateNames => "a comma list of host names, URIs and IP addresses, or off".to_owned(),
            Self::Count => format!("a number from 1 to {COUNT_MAX}"),
            Self::Duration => "a length of time, as in 250ms, 5s or 1m 30s".to_owned(),
            Self::DurationRange { min, max } => format!("a length of time from {min:?} to {max:?}"),
            Self::Bool => "true or false".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::OrOff(value_type) => format!("{}, or off", value_type.expected()),
            Self::Size(share) => format!(
                "a size of at least {} and at most this machine's memory, as in 512MiB or 2GiB, or auto",
                ByteSize(share.bytes_min())
            ),
            Self::CountOrAuto => format!("a number from 1 to {COUNT_MAX}, or auto"),
            Self::Number { max } => format!("a whole number from 0 to {max}"),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::HeaderName => "the name of an HTTP header".to_owned(),
            Self::LogFilter => "error, warn, info, debug, trace or off, also per module".to_owned(),
            Self::DenialRate => Denials::EXPECTED.to_owned(),
        }
    }

    /// Whether `text` is allowed.
    pub fn allows(self, text: &str) -> bool {
        match self {
            Self::SocketAddress => text.parse::<SocketAddr>().is_ok(),
            Self::ListenAddress => text.parse::<ListenAddress>().is_ok(),
            Self::HostPorts => cluster::host_ports(text).is_some(),
            Self::AdvertisedAddress => cluster::can_be_advertised(text),
            Self::FileMode => mode(text).is_some(),
            Self::CertificateNames => names(text).is_some(),
            Self::Count => count(text).is_some(),
            Self::Duration => duration(text).is_some(),
            Self::DurationRange { min, max } => {
                duration(text).is_some_and(|time| (min..=max).contains(&time))
            }
            Self::Bool => matches!(text, "true" | "false"),
            Self::Path => !text.is_empty(),
            Self::OrOff(value_type) => text == OFF || value_type.allows(text),
            Self::Size(share) => share.size(text).is_some(),
            Self::CountOrAuto => text == AUTO || count(text).is_some(),
            Self::Number { max } => text.parse::<u64>().is_ok_and(|number| number <= max),
            Self::OneOf(words) => words.contains(&text),
            Self::HeaderName => axum::http::HeaderName::try_from(text).is_ok(),
            Self::DenialRate => text.parse::<Denials>().is_ok(),
            Self::LogFilter => logs::filter(text).is_ok(),
        }
    }
}

/// Reads a length of time.
pub(super) fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}
