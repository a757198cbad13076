//! Settings, and how a text becomes the value of one and is described in help, messages and the JSON Schema.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use bytesize::ByteSize;
use jiff::SignedDuration;
use serde_json::{Value as Json, json};
use tollgate_cluster::link;
use tollgate_counter::printable;
use tollgate_sources::url::Address;

use crate::settings::{
    listeners::CertificateName,
    memory::{ConnectionShare, MemoryShare},
};

/// The maximum of a rate, per second.
const RATE_MAX: u16 = 1_000;
/// The maximum of a count.
pub(super) const COUNT_MAX: u64 = 1_000_000;
/// The value that disables a setting.
pub(super) const OFF: &str = "off";
/// The value for a share of the memory, and for an address that is determined at run time.
const AUTO: &str = "auto";
/// The placeholder of an address with a scheme.
pub(super) const URL: &str = "URL";

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The section and name, as in a settings file: `drain.delay`.
    pub name: &'static str,
    /// The default value.
    pub default: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The heading of the section in the help.
    pub heading: &'static str,
    /// The flag; empty if the name is the flag.
    pub(super) own_flag: &'static [&'static str],
    /// The part of the program that uses the setting.
    pub(super) part: ProgramPart,
    pub(super) value_type: fn() -> ValueType,
}

/// A part of the program that uses a setting, and that other settings may exclude.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProgramPart {
    /// A part that is always there.
    Always,
    /// Rules at a URL.
    RulesUrl,
    /// Rules of a control plane.
    RulesXds,
    /// Limits of keys from any store.
    Limits,
    /// Limits of keys in Redis.
    LimitsRedis,
    /// Limits of keys at a URL.
    LimitsUrl,
    /// Connections to Redis.
    Redis,
    /// Counters in Redis.
    RedisCounters,
    /// Counters in memory.
    Memory,
    /// The cluster.
    Cluster,
}

impl Setting {
    /// The description of the accepted values.
    pub fn value_type(&self) -> ValueType {
        (self.value_type)()
    }

    /// The command-line flag, without the dashes.
    pub fn flag(&self) -> String {
        self.own_flag.first().map_or_else(|| self.name.replace(['.', '_'], "-"), ToString::to_string)
    }

    /// Whether the value is a secret, which is never displayed. The name of such a setting must end accordingly; the
    /// path of a file is not a secret.
    pub fn is_secret(&self) -> bool {
        ["token", "secret", "password", "headers"].into_iter().any(|end| self.name.ends_with(end))
    }

    /// A value of the setting as it is displayed: without secrets, and addresses without users and passwords.
    pub(super) fn displayed(&self, value: &str) -> String {
        if self.is_secret() {
            "(not shown)".to_owned()
        } else if Address::is_meant(value) {
            Address::displayed(value)
        } else if self.value_type().value_name.starts_with(URL) {
            printable::without_login(value)
        } else {
            value.to_owned()
        }
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        variable(self.name)
    }
}

/// The environment variable of a setting with this name.
pub(super) fn variable(name: &str) -> String {
    format!("TOLLGATE_{}", name.replace('.', "__").to_uppercase())
}

/// The place of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Counters are in the memory of this process.
    Memory,
    /// Servers that replicas share.
    Redis,
}

/// The store that names limits of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitStoreKind {
    /// Servers of Redis or Valkey.
    Redis,
    /// A URL.
    Url,
}

/// The kind of the Redis servers.
#[derive(Clone, Copy, Debug)]
pub enum RedisMode {
    Standalone,
    Sentinel,
    Cluster,
}

/// The description of the values that a setting accepts.
#[derive(Clone, Debug)]
pub struct ValueType {
    /// The placeholder in help texts.
    pub value_name: &'static str,
    /// Whether the value is a list, so that its flag may be repeated.
    pub is_list: bool,
    /// The accepted values, for messages.
    pub(super) expected: String,
    /// The accepted values, as a JSON Schema. It never refuses a value that is allowed.
    pub(super) schema: Json,
}

type Parse<T> = dyn Fn(&str) -> Option<T>;

/// Makes a value of a text, which is its only reader.
pub(super) struct Parser<T> {
    value_type: ValueType,
    parse: Box<Parse<T>>,
}

impl<T: 'static> Parser<T> {
    pub(super) fn value_type(self) -> ValueType {
        self.value_type
    }

    /// Parses a value; `None` if it is not accepted.
    pub(super) fn parse(&self, text: &str) -> Option<T> {
        (self.parse)(text)
    }

    fn with_schema(mut self, schema: Json) -> Self {
        self.value_type.schema = schema;
        self
    }

    /// Additionally accepts `word`, which stands for `value`.
    fn or(self, word: &'static str, value: impl Fn() -> T + 'static) -> Self {
        let Self { mut value_type, parse } = self;
        value_type.expected = format!("{}, or {word}", value_type.expected);
        // YAML 1.1 reads `off` as a boolean.
        let alone = if word == OFF { json!({"enum": [word, false]}) } else { json!({"const": word}) };
        value_type.schema = json!({"anyOf": [value_type.schema, alone]});
        Self {
            value_type,
            parse: Box::new(move |text| if text == word { Some(value()) } else { parse(text) }),
        }
    }

    fn optional(self) -> Parser<Option<T>> {
        let Self { value_type, parse } = self;
        Parser { value_type, parse: Box::new(move |text| parse(text).map(Some)) }
    }
}

/// Values that `parse` accepts, which `expected` describes.
fn parser<T>(
    value_name: &'static str,
    expected: impl Into<String>,
    parse: impl Fn(&str) -> Option<T> + 'static,
) -> Parser<T> {
    let schema = json!({"type": ["string", "number", "boolean", "null"]});
    let value_type = ValueType { value_name, is_list: false, expected: expected.into(), schema };
    Parser { value_type, parse: Box::new(parse) }
}

/// Texts that stay as they are.
pub(super) fn text(
    value_name: &'static str,
    expected: &'static str,
    is_allowed: impl Fn(&str) -> bool + 'static,
) -> Parser<String> {
    parser(value_name, expected, move |text| is_allowed(text).then(|| text.to_owned()))
}

/// Texts that the type itself reads.
pub(super) fn read<T: TryFrom<String>>(value_name: &'static str, expected: &'static str) -> Parser<T> {
    parser(value_name, expected, |text| text.to_owned().try_into().ok())
}

/// A comma list, or `off` for an empty one. `expected` describes the list, `parse` reads one item.
fn list<T: 'static>(
    value_name: &'static str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T> + 'static,
) -> Parser<Vec<T>> {
    let mut list =
        parser(value_name, expected, move |text| text.split(',').map(|item| parse(item.trim())).collect());
    list.value_type.is_list = true;
    list.or(OFF, Vec::new)
}

/// A value of the inner type, or `off`.
pub(super) fn or_off<T: 'static>(inner: Parser<T>) -> Parser<Option<T>> {
    inner.optional().or(OFF, || None)
}

/// A value of the inner type, or `auto` for one that is determined later.
pub(super) fn or_auto<T: 'static>(inner: Parser<T>) -> Parser<Option<T>> {
    inner.optional().or(AUTO, || None)
}

/// An IP address and a port.
pub(super) fn socket_address() -> Parser<SocketAddr> {
    parser("ADDRESS:PORT", "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081", |text| {
        text.parse().ok()
    })
}

/// A comma list of `HOST:PORT`.
pub(super) fn host_ports() -> Parser<Vec<String>> {
    list("HOST:PORT[,HOST:PORT]...", "HOST:PORT, several separated by commas", |text| {
        link::is_host_port(text).then(|| text.to_owned())
    })
}

/// `HOST:PORT` or an IP address.
pub(super) fn advertised_address() -> Parser<String> {
    text("HOST[:PORT]", "HOST:PORT, an IP address", |text| {
        match text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            // A replica that connects to a wildcard address reaches itself.
            Ok(address) => !address.is_unspecified(),
            Err(_) => link::is_host_port(text),
        }
    })
}

/// A comma list of names in certificates.
pub(super) fn certificate_names() -> Parser<Vec<CertificateName>> {
    list("NAME[,NAME]...", "a comma list of host names, URIs and IP addresses", |name| {
        name.to_owned().try_into().ok()
    })
}

/// A file or directory.
pub(super) fn path() -> Parser<PathBuf> {
    parser("PATH", "a path", |text| (!text.is_empty()).then(|| text.into()))
}

/// A comma list of addresses of Redis servers.
pub(super) fn redis_urls() -> Parser<Vec<String>> {
    let expected = "redis://HOST:PORT or rediss://HOST:PORT without a password, several separated by commas";
    list("URL[,URL]...", expected, |url| tollgate_shared_store::is_url(url).then(|| url.to_owned()))
}

/// Names of hosts.
pub(super) fn host_names() -> Parser<Vec<String>> {
    list("HOST[,HOST]...", "a host name without a port, several separated by commas", |name| {
        let fits = |character: char| character.is_ascii_alphanumeric() || "-._".contains(character);
        (!name.is_empty() && name.chars().all(fits)).then(|| name.to_owned())
    })
}

/// A comma list of `NAME=VALUE`.
pub(super) fn pairs() -> Parser<Vec<(String, String)>> {
    list("NAME=VALUE[,NAME=VALUE]...", "NAME=VALUE, several separated by commas", |pair| {
        let (name, value) = pair.split_once('=')?;
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    })
}

/// A text without spaces.
pub(super) fn word() -> Parser<String> {
    text("NAME", "a text without spaces", |text| !text.is_empty() && !text.contains(char::is_whitespace))
}

/// The mode of a file, in octal.
pub(super) fn file_mode() -> Parser<u32> {
    parser("MODE", "a file mode, as in 0660", |text| {
        u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
    })
}

/// A duration.
pub(super) fn time() -> Parser<Duration> {
    parser("TIME", "a duration, as in 250ms, 5s or 1m 30s", duration)
}

/// A duration within bounds.
pub(super) fn time_between(min: Duration, max: Duration) -> Parser<Duration> {
    let within = move |text: &str| duration(text).filter(|time| (min..=max).contains(time));
    parser("TIME", format!("a duration from {min:?} to {max:?}"), within)
}

/// A rate, as in `10/s`; `None` for `off`.
pub(super) fn rate() -> Parser<Option<NonZeroU16>> {
    parser("RATE", format!("off, or a rate from 1/s to {RATE_MAX}/s, as in 10/s"), |text| {
        if text == OFF {
            return Some(None);
        }
        let number = text.strip_suffix("/s")?.parse::<NonZeroU16>().ok();
        number.filter(|number| number.get() <= RATE_MAX).map(Some)
    })
}

/// `true` or `false`.
pub(super) fn boolean() -> Parser<bool> {
    parser("BOOL", "true or false", |text| text.parse().ok())
        .with_schema(json!({"enum": [true, false, "true", "false"]}))
}

/// One of these words, each with its value.
pub(super) fn one_of<T: Copy>(words: &'static [(&'static str, T)]) -> Parser<T> {
    let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    let value = |text: &str| words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    parser("WORD", format!("one of {}", names.join(", ")), value).with_schema(json!({"enum": names}))
}

/// A number of bytes within bounds.
pub(super) fn bytes(bounds: RangeInclusive<u64>) -> Parser<u64> {
    let expected = format!("a size from {} to {}", ByteSize(*bounds.start()), ByteSize(*bounds.end()));
    parser("SIZE", expected, move |text| byte_size(text, &bounds))
}

/// A number of bytes, or `auto` for a share of the memory available to the process.
pub(super) fn size(share: MemoryShare) -> Parser<u64> {
    let expected = format!(
        "a size of at least {} and at most this machine's memory, as in 512MiB or 2GiB, or auto",
        ByteSize(share.bytes_min)
    );
    parser("SIZE", expected, move |text| match text {
        AUTO => Some(share.bytes()),
        _ => byte_size(text, &share.bounds()),
    })
}

/// A count, or `auto` for as many connections as fit into the share of the memory.
pub(super) fn connections(share: ConnectionShare) -> Parser<usize> {
    count(COUNT_MAX).or(AUTO, move || share.connections())
}

/// A number from 1 to `max`.
pub(super) fn count<T: TryFrom<u64> + 'static>(max: u64) -> Parser<T> {
    integer("N", "a number", 1..=max)
}

/// An integer within bounds.
pub(super) fn integer<T: TryFrom<u64> + 'static>(
    value_name: &'static str,
    what: &str,
    bounds: RangeInclusive<u64>,
) -> Parser<T> {
    let (min, max) = (*bounds.start(), *bounds.end());
    let within =
        move |text: &str| text.parse().ok().filter(|number| bounds.contains(number))?.try_into().ok();
    // Without a minimum: YAML 1.1 reads leading zeros as those of an octal number.
    let schema = json!({"type": ["integer", "string"], "maximum": max, "pattern": "^\\+?[0-9]+$"});
    parser(value_name, format!("{what} from {min} to {max}"), within).with_schema(schema)
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}

fn byte_size(text: &str, bounds: &RangeInclusive<u64>) -> Option<u64> {
    text.parse::<ByteSize>().ok().map(|size| size.as_u64()).filter(|bytes| bounds.contains(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_mode_is_octal_and_at_most_777() {
        assert_eq!(file_mode().parse("0660"), Some(0o660));
        for text in ["", "8", "1000", "-1", "rw"] {
            assert_eq!(file_mode().parse(text), None, "{text}");
        }
    }
}
