//! Settings and the types of their values.

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

/// The maximum of a count.
pub(super) const COUNT_MAX: u32 = 1_000_000;
/// The value that disables a setting.
pub(super) const OFF: &str = "off";

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The section and name, as in a settings file: `drain.delay`.
    pub name: &'static str,
    /// The type of the value.
    pub value_type: ValueType,
    /// The default value; `None` if the setting is required.
    pub default: Option<&'static str>,
    /// The help text.
    pub help: &'static str,
}

/// The type of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// An IP address and a port.
    SocketAddress,
    /// An IP address and a port, or a Unix socket.
    ListenAddress,
    /// A comma list of `HOST:PORT`.
    HostPorts,
    /// `HOST:PORT`, an IP address, or `auto`.
    AdvertisedAddress,
    /// The mode of a file, in octal.
    FileMode,
    /// A comma list of names in certificates, or `off`.
    CertificateNames,
    /// A number from 1 to `COUNT_MAX`.
    Count,
    /// A duration.
    Duration,
    /// A duration within bounds.
    DurationRange {
        /// The minimum.
        min: Duration,
        /// The maximum.
        max: Duration,
    },
    /// `true` or `false`.
    Bool,
    /// A file or directory.
    Path,
    /// A value of the inner type, or `off`.
    OrOff(&'static ValueType),
    /// A number of bytes, or `auto` for a share of the memory available to the process.
    Size(MemoryShare),
    /// A count, or `auto` for as many as fit into the memory.
    CountOrAuto,
    /// An integer from 0 to `max`.
    Number {
        /// The maximum.
        max: u64,
    },
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// The name of an HTTP header.
    HeaderName,
    /// A log level.
    LogFilter,
    /// The rate at which denials are logged.
    DenialRate,
}

impl Setting {
    /// The command-line flag, without the dashes.
    pub fn flag(&self) -> String {
        match self.name {
            "rules.path" => "rules".to_owned(),
            "store.snapshot" => "snapshot".to_owned(),
            name => name.replace(['.', '_'], "-"),
        }
    }

    /// Whether the value is a secret, which is never shown. The name of such a setting must end accordingly; the path
    /// of a file is not a secret.
    pub fn is_secret(&self) -> bool {
        ["token", "secret", "password"].into_iter().any(|end| self.name.ends_with(end))
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("TOLLGATE_{}", self.name.replace('.', "__").to_uppercase())
    }
}

impl ValueType {
    /// The placeholder of the value in help texts.
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

    /// Whether the value is a list, so that its flag may be repeated.
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

    /// The accepted values, for messages.
    pub fn expected(self) -> String {
        match self {
            Self::SocketAddress => "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081".to_owned(),
            Self::ListenAddress => {
                "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or a socket, as in unix:/run/tollgate.sock".to_owned()
            }
            Self::HostPorts => "HOST:PORT, several separated by commas".to_owned(),
            Self::AdvertisedAddress => "HOST:PORT, an IP address, or auto".to_owned(),
            Self::FileMode => "a file mode, as in 0660".to_owned(),
            Self::CertificateNames => "a comma list of host names, URIs and IP addresses, or off".to_owned(),
            Self::Count => format!("a number from 1 to {COUNT_MAX}"),
            Self::Duration => "a duration, as in 250ms, 5s or 1m 30s".to_owned(),
            Self::DurationRange { min, max } => format!("a duration from {min:?} to {max:?}"),
            Self::Bool => "true or false".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::OrOff(value_type) => format!("{}, or off", value_type.expected()),
            Self::Size(share) => format!(
                "a size of at least {} and at most this machine's memory, as in 512MiB or 2GiB, or auto",
                ByteSize(share.bytes_min())
            ),
            Self::CountOrAuto => format!("a number from 1 to {COUNT_MAX}, or auto"),
            Self::Number { max } => format!("a number from 0 to {max}"),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::HeaderName => "the name of an HTTP header".to_owned(),
            Self::LogFilter => "error, warn, info, debug, trace or off, also per module".to_owned(),
            Self::DenialRate => Denials::EXPECTED.to_owned(),
        }
    }

    /// Whether `text` is accepted.
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

/// Parses a duration.
pub(super) fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}
