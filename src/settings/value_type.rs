//! Settings and the types of their values.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use bytesize::ByteSize;
use config::{Map, Value, ValueKind};
use jiff::SignedDuration;

use crate::{
    api::forward_auth,
    cluster::link,
    rules::xds,
    settings::{
        listeners::{CertificateName, ListenAddress},
        memory::{AUTO, MemoryShare},
    },
    shared_store,
    telemetry::logs::{self, Denials},
};

/// The maximum of a count.
pub(super) const COUNT_MAX: u64 = 1_000_000;
/// The value that disables a setting.
pub(super) const OFF: &str = "off";

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The section and name, as in a settings file: `drain.delay`.
    pub name: &'static str,
    /// The type of the value.
    pub value_type: ValueType,
    /// The default value.
    pub default: &'static str,
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
    /// A comma list of names in certificates.
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
    /// A count, or `auto` for as many as fit into the share of the memory.
    CountOrAuto(MemoryShare),
    /// An integer from 0 to `max`.
    Number {
        /// The maximum.
        max: u64,
    },
    /// A number from 1 to `max`.
    CountUpTo {
        /// The maximum.
        max: u64,
    },
    /// A comma list of addresses of Redis servers.
    RedisUrls,
    /// The first part of keys in Redis.
    RedisPrefix,
    /// The descriptors of a request as headers give them.
    DescriptorTemplate,
    /// A status of HTTP, at least `min`.
    Status {
        /// The minimum.
        min: u64,
    },
    /// The address of a control plane.
    XdsUrl,
    /// A comma list of `NAME=VALUE`.
    Pairs,
    /// A number of bytes within bounds.
    Bytes {
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// A text without spaces.
    Word,
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
        ["token", "secret", "password", "headers"].into_iter().any(|end| self.name.ends_with(end))
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
            Self::CountOrAuto(_) => "N",
            Self::Number { .. } => "NUMBER",
            Self::CountUpTo { .. } => "N",
            Self::RedisUrls => "URL[,URL]...",
            Self::RedisPrefix => "TEXT",
            Self::DescriptorTemplate => "TEMPLATE",
            Self::Status { .. } => "STATUS",
            Self::XdsUrl => "URL",
            Self::Pairs => "NAME=VALUE[,NAME=VALUE]...",
            Self::Bytes { .. } => "SIZE",
            Self::Word => "NAME",
            Self::OneOf(_) => "WORD",
            Self::HeaderName => "NAME",
            Self::LogFilter => "LEVEL",
            Self::DenialRate => "RATE",
        }
    }

    /// Whether the value is a list, so that its flag may be repeated.
    pub fn is_list(self) -> bool {
        match self {
            Self::CertificateNames | Self::HostPorts | Self::RedisUrls | Self::Pairs => true,
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
            | Self::CountOrAuto(_)
            | Self::Number { .. }
            | Self::CountUpTo { .. }
            | Self::RedisPrefix
            | Self::DescriptorTemplate
            | Self::Status { .. }
            | Self::XdsUrl
            | Self::Bytes { .. }
            | Self::Word
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
            Self::CertificateNames => "a comma list of host names, URIs and IP addresses".to_owned(),
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
            Self::CountOrAuto(_) => format!("a number from 1 to {COUNT_MAX}, or auto"),
            Self::Number { max } => format!("a number from 0 to {max}"),
            Self::CountUpTo { max } => format!("a number from 1 to {max}"),
            Self::RedisUrls => {
                "redis://HOST:PORT or rediss://HOST:PORT without a password, several separated by commas".to_owned()
            }
            Self::RedisPrefix => "1 to 64 visible characters without braces, brackets, `*`, `?` and `\\`".to_owned(),
            Self::DescriptorTemplate => {
                "key={header} or key=text, entries separated by commas, descriptors by semicolons".to_owned()
            }
            Self::Status { min } => format!("a status from {min} to 599"),
            Self::XdsUrl => "http://HOST:PORT or https://HOST:PORT".to_owned(),
            Self::Pairs => "NAME=VALUE, several separated by commas".to_owned(),
            Self::Bytes { min, max } => format!("a size from {} to {}", ByteSize(min), ByteSize(max)),
            Self::Word => "a text without spaces".to_owned(),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::HeaderName => "the name of an HTTP header".to_owned(),
            Self::LogFilter => "error, warn, info, debug, trace or off, also per module".to_owned(),
            Self::DenialRate => Denials::EXPECTED.to_owned(),
        }
    }

    /// Parses a value; `None` if it is not accepted. Addresses and names stay text, which their types read.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        let checked = |is_allowed: bool| is_allowed.then(|| text.into());
        match self {
            Self::SocketAddress => checked(text.parse::<SocketAddr>().is_ok()),
            Self::ListenAddress => checked(text.parse::<ListenAddress>().is_ok()),
            Self::HostPorts => list(text, link::is_host_port),
            Self::AdvertisedAddress if text == AUTO => Some(nothing()),
            Self::AdvertisedAddress => checked(can_be_advertised(text)),
            Self::FileMode => mode(text).map(Value::from),
            Self::CertificateNames => list(text, |name| name.parse::<CertificateName>().is_ok()),
            Self::Count => number(text, 1..=COUNT_MAX).map(Value::from),
            Self::Duration => duration(text, Duration::ZERO..=Duration::MAX),
            Self::DurationRange { min, max } => duration(text, min..=max),
            Self::Bool => text.parse::<bool>().ok().map(Value::from),
            Self::Path => checked(!text.is_empty()),
            Self::OrOff(list) if text == OFF && list.is_list() => Some(Vec::<String>::new().into()),
            Self::OrOff(_) if text == OFF => Some(nothing()),
            Self::OrOff(value_type) => value_type.parse(text),
            Self::Size(share) => share.size(text).map(Value::from),
            Self::CountOrAuto(share) if text == AUTO => Some(share.connections().into()),
            Self::CountOrAuto(_) => Self::Count.parse(text),
            Self::Number { max } => number(text, 0..=max).map(Value::from),
            Self::CountUpTo { max } => number(text, 1..=max).map(Value::from),
            Self::RedisUrls => list(text, shared_store::is_url),
            Self::RedisPrefix => checked(shared_store::is_prefix(text)),
            Self::DescriptorTemplate => checked(text.parse::<forward_auth::Template>().is_ok()),
            Self::Status { min } => number(text, min..=599).map(Value::from),
            Self::XdsUrl => checked(xds::is_url(text)),
            Self::Pairs => list(text, |pair| pair.split_once('=').is_some_and(|(name, _)| !name.is_empty())),
            Self::Bytes { min, max } => {
                let bytes = text.parse::<ByteSize>().ok().map(|size| size.as_u64());
                bytes.filter(|bytes| (min..=max).contains(bytes)).map(Value::from)
            }
            Self::Word => checked(!text.is_empty() && !text.contains(char::is_whitespace)),
            Self::OneOf(words) => checked(words.contains(&text)),
            Self::HeaderName => checked(axum::http::HeaderName::try_from(text).is_ok()),
            Self::DenialRate => checked(text.parse::<Denials>().is_ok()),
            Self::LogFilter => checked(logs::filter(text).is_ok()),
        }
    }
}

/// The value of `off`, and of `auto` where it is determined later.
fn nothing() -> Value {
    ValueKind::Nil.into()
}

/// Parses a comma list.
fn list(text: &str, is_allowed: impl Fn(&str) -> bool) -> Option<Value> {
    let items: Vec<_> = text.split(',').map(str::trim).collect();
    items.iter().all(|item| is_allowed(item)).then(|| items.into())
}

fn number(text: &str, range: RangeInclusive<u64>) -> Option<u64> {
    text.parse().ok().filter(|number| range.contains(number))
}

/// Parses a file mode, as in `chmod`.
fn mode(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
}

/// Parses a duration into the fields of [`Duration`] as serde reads it.
fn duration(text: &str, range: RangeInclusive<Duration>) -> Option<Value> {
    let time: Duration = text.parse::<SignedDuration>().ok()?.try_into().ok()?;
    let fields = [("secs", time.as_secs()), ("nanos", time.subsec_nanos().into())];
    range.contains(&time).then(|| Map::from(fields.map(|(name, number)| (name.to_owned(), number))).into())
}

/// Whether a value may be advertised to other replicas.
fn can_be_advertised(text: &str) -> bool {
    match text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        // A replica that connects to a wildcard address reaches itself.
        Ok(address) => !address.is_unspecified(),
        Err(_) => link::is_host_port(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_mode_is_octal_and_at_most_777() {
        assert_eq!(mode("0660"), Some(0o660));
        for text in ["", "8", "1000", "-1", "rw"] {
            assert_eq!(mode(text), None, "{text}");
        }
    }
}
