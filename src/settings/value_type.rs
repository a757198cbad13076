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
#[derive(Clone, Copy, Debug)]
pub enum ValueType {
    /// A text.
    Text(Syntax),
    /// A comma list of texts.
    List(Syntax),
    /// The mode of a file, in octal.
    FileMode,
    /// A duration.
    Time,
    /// A duration within bounds.
    TimeRange {
        /// The minimum.
        min: Duration,
        /// The maximum.
        max: Duration,
    },
    /// `true` or `false`.
    Bool,
    /// A value of the inner type, or `off`.
    OrOff(&'static ValueType),
    /// A value of the inner type, or `auto` for one that is determined later.
    OrAuto(&'static ValueType),
    /// A number of bytes, or `auto` for a share of the memory available to the process.
    Size(MemoryShare),
    /// A count, or `auto` for as many as fit into the share of the memory.
    CountOrAuto(MemoryShare),
    /// An integer within bounds.
    Number {
        /// The placeholder in help texts.
        value_name: &'static str,
        /// What the number is, for messages.
        what: &'static str,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// A number of bytes within bounds.
    Bytes {
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// How a text is written. The type of the setting reads it.
#[derive(Clone, Copy, Debug)]
pub struct Syntax {
    /// The placeholder in help texts.
    value_name: &'static str,
    /// The accepted texts, for messages.
    expected: &'static str,
    is_allowed: fn(&str) -> bool,
}

/// An IP address and a port.
pub(super) const SOCKET_ADDRESS: ValueType =
    text("ADDRESS:PORT", "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081", |text| {
        text.parse::<SocketAddr>().is_ok()
    });
/// An IP address and a port, or a Unix socket.
pub(super) const LISTEN_ADDRESS: ValueType = text(
    "ADDRESS:PORT",
    "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or a socket, as in unix:/run/tollgate.sock",
    |text| ListenAddress::try_from(text.to_owned()).is_ok(),
);
/// A comma list of `HOST:PORT`.
pub(super) const HOST_PORTS: ValueType =
    list("HOST:PORT[,HOST:PORT]...", "HOST:PORT, several separated by commas", link::is_host_port);
/// `HOST:PORT` or an IP address.
pub(super) const ADVERTISED_ADDRESS: ValueType =
    text("HOST[:PORT]", "HOST:PORT, an IP address", can_be_advertised);
/// A comma list of names in certificates.
pub(super) const CERTIFICATE_NAMES: ValueType =
    list("NAME[,NAME]...", "a comma list of host names, URIs and IP addresses", |name| {
        CertificateName::try_from(name.to_owned()).is_ok()
    });
/// A file or directory.
pub(super) const PATH: ValueType = text("PATH", "a path", |text| !text.is_empty());
/// A comma list of addresses of Redis servers.
pub(super) const REDIS_URLS: ValueType = list(
    "URL[,URL]...",
    "redis://HOST:PORT or rediss://HOST:PORT without a password, several separated by commas",
    shared_store::is_url,
);
/// The first part of keys in Redis.
pub(super) const REDIS_PREFIX: ValueType = text(
    "TEXT",
    "1 to 64 visible characters without braces, brackets, `*`, `?` and `\\`",
    shared_store::is_prefix,
);
/// The descriptors of a request as headers give them.
pub(super) const DESCRIPTOR_TEMPLATE: ValueType = text(
    "TEMPLATE",
    "key={header} or key=text, entries separated by commas, descriptors by semicolons",
    |text| forward_auth::Template::try_from(text.to_owned()).is_ok(),
);
/// The address of a control plane.
pub(super) const XDS_URL: ValueType = text("URL", "http://HOST:PORT or https://HOST:PORT", xds::is_url);
/// A comma list of `NAME=VALUE`.
pub(super) const PAIRS: ValueType =
    list("NAME=VALUE[,NAME=VALUE]...", "NAME=VALUE, several separated by commas", |pair| {
        pair.split_once('=').is_some_and(|(name, _)| !name.is_empty())
    });
/// A text without spaces.
pub(super) const WORD: ValueType =
    text("NAME", "a text without spaces", |text| !text.is_empty() && !text.contains(char::is_whitespace));
/// The name of an HTTP header.
pub(super) const HEADER_NAME: ValueType =
    text("NAME", "the name of an HTTP header", |text| axum::http::HeaderName::try_from(text).is_ok());
/// A log level.
pub(super) const LOG_FILTER: ValueType =
    text("LEVEL", "error, warn, info, debug, trace or off, also per module", |text| {
        logs::filter(text).is_ok()
    });
/// The rate at which denials are logged.
pub(super) const DENIAL_RATE: ValueType =
    text("RATE", Denials::EXPECTED, |text| Denials::try_from(text.to_owned()).is_ok());
/// A number from 1.
pub(super) const COUNT: ValueType = count(COUNT_MAX);

const fn text(value_name: &'static str, expected: &'static str, is_allowed: fn(&str) -> bool) -> ValueType {
    ValueType::Text(Syntax { value_name, expected, is_allowed })
}

/// `expected` describes the list, `is_allowed` one item.
const fn list(value_name: &'static str, expected: &'static str, is_allowed: fn(&str) -> bool) -> ValueType {
    ValueType::List(Syntax { value_name, expected, is_allowed })
}

/// A number from 1 to `max`.
pub(super) const fn count(max: u64) -> ValueType {
    ValueType::Number { value_name: "N", what: "a number", min: 1, max }
}

/// A number from 0 to `max`.
pub(super) const fn number(max: u64) -> ValueType {
    ValueType::Number { value_name: "NUMBER", what: "a number", min: 0, max }
}

/// A status of HTTP, at least `min`.
pub(super) const fn status(min: u64) -> ValueType {
    ValueType::Number { value_name: "STATUS", what: "a status", min, max: 599 }
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
            Self::Text(Syntax { value_name, .. })
            | Self::List(Syntax { value_name, .. })
            | Self::Number { value_name, .. } => value_name,
            Self::FileMode => "MODE",
            Self::Time | Self::TimeRange { .. } => "TIME",
            Self::Bool => "BOOL",
            Self::OrOff(value_type) | Self::OrAuto(value_type) => value_type.value_name(),
            Self::Size(_) | Self::Bytes { .. } => "SIZE",
            Self::CountOrAuto(_) => "N",
            Self::OneOf(_) => "WORD",
        }
    }

    /// Whether the value is a list, so that its flag may be repeated.
    pub fn is_list(self) -> bool {
        match self {
            Self::List(_) => true,
            Self::OrOff(value_type) | Self::OrAuto(value_type) => value_type.is_list(),
            Self::Text(_)
            | Self::FileMode
            | Self::Time
            | Self::TimeRange { .. }
            | Self::Bool
            | Self::Size(_)
            | Self::CountOrAuto(_)
            | Self::Number { .. }
            | Self::Bytes { .. }
            | Self::OneOf(_) => false,
        }
    }

    /// The accepted values, for messages.
    pub fn expected(self) -> String {
        match self {
            Self::Text(syntax) | Self::List(syntax) => syntax.expected.to_owned(),
            Self::FileMode => "a file mode, as in 0660".to_owned(),
            Self::Time => "a duration, as in 250ms, 5s or 1m 30s".to_owned(),
            Self::TimeRange { min, max } => format!("a duration from {min:?} to {max:?}"),
            Self::Bool => "true or false".to_owned(),
            Self::OrOff(value_type) => format!("{}, or off", value_type.expected()),
            Self::OrAuto(value_type) => format!("{}, or auto", value_type.expected()),
            Self::Size(share) => format!(
                "a size of at least {} and at most this machine's memory, as in 512MiB or 2GiB, or auto",
                ByteSize(share.bytes_min())
            ),
            Self::CountOrAuto(_) => format!("{}, or auto", COUNT.expected()),
            Self::Number { what, min, max, .. } => format!("{what} from {min} to {max}"),
            Self::Bytes { min, max } => format!("a size from {} to {}", ByteSize(min), ByteSize(max)),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
        }
    }

    /// Parses a value; `None` if it is not accepted. Addresses and names stay text, which their types read.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Text(syntax) => (syntax.is_allowed)(text).then(|| text.into()),
            Self::List(syntax) => {
                let items: Vec<_> = text.split(',').map(str::trim).collect();
                items.iter().all(|item| (syntax.is_allowed)(item)).then(|| items.into())
            }
            Self::FileMode => mode(text).map(Value::from),
            Self::Time => duration(text, Duration::ZERO..=Duration::MAX),
            Self::TimeRange { min, max } => duration(text, min..=max),
            Self::Bool => text.parse::<bool>().ok().map(Value::from),
            Self::OrOff(list) if text == OFF && list.is_list() => Some(Vec::<String>::new().into()),
            Self::OrOff(_) if text == OFF => Some(ValueKind::Nil.into()),
            Self::OrAuto(_) if text == AUTO => Some(ValueKind::Nil.into()),
            Self::OrOff(value_type) | Self::OrAuto(value_type) => value_type.parse(text),
            Self::Size(share) => share.size(text).map(Value::from),
            Self::CountOrAuto(share) if text == AUTO => Some(share.connections().into()),
            Self::CountOrAuto(_) => COUNT.parse(text),
            Self::Number { min, max, .. } => within(text.parse().ok(), min..=max),
            Self::Bytes { min, max } => {
                within(text.parse::<ByteSize>().ok().map(|size| size.as_u64()), min..=max)
            }
            Self::OneOf(words) => words.contains(&text).then(|| text.into()),
        }
    }
}

/// The settings that need another one, which is off: of these pairs, with names that begin with `section`.
pub(super) fn lacking<'v>(
    section: &str,
    needs: &[(&str, &str)],
    value: impl Fn(&str) -> &'v str,
) -> impl Iterator<Item = String> {
    needs.iter().filter_map(move |(given, needed)| {
        let (given, needed) = (format!("{section}{given}"), format!("{section}{needed}"));
        let is_lacking = value(&given) != OFF && value(&needed) == OFF;
        is_lacking.then(|| format!("{given} needs {needed}, which is not set"))
    })
}

fn within(number: Option<u64>, range: RangeInclusive<u64>) -> Option<Value> {
    number.filter(|number| range.contains(number)).map(Value::from)
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
