//! Every setting there is.

use std::{net::SocketAddr, time::Duration};

use bytesize::ByteSize;
use jiff::SignedDuration;

use crate::{
    settings::listeners::{Address, is_count, mode, names},
    store,
    telemetry::logs::{self, Denials},
};

/// The largest number that a setting may be.
pub(super) const COUNT_MAX: u32 = 1_000_000;

/// What counters may take where nothing tells how much memory there is.
const BYTES_UNKNOWN: u64 = 512 * 1024 * 1024;

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
    /// Who may open a file.
    Mode,
    /// Names in certificates, or none.
    Names,
    /// How many, at least one.
    Count,
    /// A length of time.
    Duration,
    /// On or off.
    Switch,
    /// A file or directory.
    Path,
    /// A file, or none.
    PathOrOff,
    /// A number of bytes, or one that suits the machine.
    Size,
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

/// All settings, in the order of the documentation.
pub const CATALOG: &[Setting] = &[
    Setting {
        name: "rules.path",
        shape: Shape::Path,
        default: None,
        help: "The rule file, or a directory of them.",
    },
    Setting {
        name: "rules.poll_interval",
        shape: Shape::Duration,
        default: Some("3s"),
        help: "How often the rules are compared with what is on disk, besides whenever the system reports a change.",
    },
    Setting {
        name: "grpc.listen",
        shape: Shape::Socket,
        default: Some("0.0.0.0:8081"),
        help: "Where the gRPC service listens: an address and a port, or unix:/path/to.sock.",
    },
    Setting {
        name: "grpc.socket_mode",
        shape: Shape::Mode,
        default: Some("0660"),
        help: "Who may connect to a Unix socket, as in chmod.",
    },
    Setting {
        name: "grpc.tls_cert",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "The certificate chain that clients are shown, in PEM; without one the listener speaks plaintext.",
    },
    Setting {
        name: "grpc.tls_key",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "The key of that certificate, in PEM.",
    },
    Setting {
        name: "grpc.tls_client_ca",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "Who must have signed the client's certificate, in PEM; nobody else is trusted. Without it clients need none.",
    },
    Setting {
        name: "grpc.tls_client_san",
        shape: Shape::Names,
        default: Some("off"),
        help: "The names of which the client's certificate must have one: hosts, URIs or IP addresses, separated by commas.",
    },
    Setting {
        name: "grpc.max_connections",
        shape: Shape::Count,
        default: Some("10000"),
        help: "The most gRPC connections at a time; one more is closed at once.",
    },
    Setting {
        name: "grpc.max_concurrent_streams",
        shape: Shape::Count,
        default: Some("10000"),
        help: "The most calls at a time on one gRPC connection; clients hold back further ones.",
    },
    Setting {
        name: "grpc.max_connection_age",
        shape: Shape::Duration,
        default: Some("30m"),
        help: "How long a gRPC connection lasts before its client is told to make a new one, give or take a fifth.",
    },
    Setting {
        name: "grpc.max_connection_age_grace",
        shape: Shape::Duration,
        default: Some("5m"),
        help: "How long the calls that are then open may still take.",
    },
    Setting {
        name: "grpc.keepalive_interval",
        shape: Shape::Duration,
        default: Some("1m"),
        help: "How often a gRPC client is asked whether it is still there.",
    },
    Setting {
        name: "grpc.keepalive_timeout",
        shape: Shape::Duration,
        default: Some("20s"),
        help: "How long it may take to say so.",
    },
    Setting {
        name: "grpc.handshake_timeout",
        shape: Shape::Duration,
        default: Some("10s"),
        help: "How long a new gRPC connection may take to begin, TLS included.",
    },
    Setting {
        name: "http.listen",
        shape: Shape::Address,
        default: Some("0.0.0.0:8080"),
        help: "Where probes and POST /json are served.",
    },
    Setting {
        name: "http.tls_cert",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "The certificate chain that clients are shown, in PEM; without one the listener speaks plaintext.",
    },
    Setting {
        name: "http.tls_key",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "The key of that certificate, in PEM.",
    },
    Setting {
        name: "http.tls_client_ca",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "Who must have signed the client's certificate, in PEM; nobody else is trusted. Without it clients need none.",
    },
    Setting {
        name: "http.tls_client_san",
        shape: Shape::Names,
        default: Some("off"),
        help: "The names of which the client's certificate must have one: hosts, URIs or IP addresses, separated by commas.",
    },
    Setting {
        name: "http.max_connections",
        shape: Shape::Count,
        default: Some("1000"),
        help: "The most HTTP connections at a time; one more is closed at once.",
    },
    Setting {
        name: "http.header_timeout",
        shape: Shape::Duration,
        default: Some("30s"),
        help: "How long TLS, and then the head of each HTTP request, may take to arrive, also on the admin listener; an idle connection is closed after it.",
    },
    Setting {
        name: "admin.listen",
        shape: Shape::Address,
        default: Some("127.0.0.1:6070"),
        help: "Where operators look; any address but a loopback one needs admin.token_file.",
    },
    Setting {
        name: "admin.token_file",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "The file with the token that operators must show; read at each request, so it can be replaced.",
    },
    Setting {
        name: "metrics.listen",
        shape: Shape::Address,
        default: Some("0.0.0.0:9090"),
        help: "Where Prometheus reads /metrics.",
    },
    Setting {
        name: "metrics.max_connections",
        shape: Shape::Count,
        default: Some("100"),
        help: "The most connections that read metrics at a time; one more is closed at once.",
    },
    Setting {
        name: "metrics.names_per_rule",
        shape: Shape::Number { most: 10_000 },
        default: Some("100"),
        help: "The most names that a rule with value_to_metric or detailed_metric has in metrics; further ones count as other.",
    },
    Setting {
        name: "metrics.top_keys",
        shape: Shape::Number { most: 100_000 },
        default: Some("1000"),
        help: "How many keys are kept to find those denied most often, for /top; 0 keeps none.",
    },
    Setting {
        name: "limiter.quota_mode",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether a request is refused only where all its descriptors are, as if all rules had quota_mode.",
    },
    Setting {
        name: "limiter.shadow_mode",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether requests that would be refused pass all the same; statuses tell the truth.",
    },
    Setting {
        name: "headers.x_ratelimit",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether answers carry X-RateLimit-Limit, -Remaining and -Reset.",
    },
    Setting {
        name: "headers.ratelimit",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether answers carry RateLimit-Limit, -Remaining and -Reset, as envoyproxy/ratelimit's do.",
    },
    Setting {
        name: "headers.limit_name",
        shape: Shape::HeaderName,
        default: Some("RateLimit-Limit"),
        help: "The first of those.",
    },
    Setting {
        name: "headers.remaining_name",
        shape: Shape::HeaderName,
        default: Some("RateLimit-Remaining"),
        help: "The second of those.",
    },
    Setting {
        name: "headers.reset_name",
        shape: Shape::HeaderName,
        default: Some("RateLimit-Reset"),
        help: "The third of those.",
    },
    Setting {
        name: "headers.ietf",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether answers carry RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-09.",
    },
    Setting {
        name: "headers.retry_after",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether refusals carry Retry-After.",
    },
    Setting {
        name: "admin.max_connections",
        shape: Shape::Count,
        default: Some("100"),
        help: "The most connections of operators at a time; one more is closed at once.",
    },
    Setting {
        name: "tls.poll_interval",
        shape: Shape::Duration,
        default: Some("3s"),
        help: "How often the files of certificates are compared with what is in force.",
    },
    Setting {
        name: "api.dynamic_metadata",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether answers carry dynamic metadata for the caller's logs.",
    },
    Setting {
        name: "api.exact_reset",
        shape: Shape::Switch,
        default: Some("false"),
        help: "Whether times until reset are sent to the nanosecond instead of rounded up to whole seconds.",
    },
    Setting {
        name: "store.memory_limit",
        shape: Shape::Size,
        default: Some("auto"),
        help: "The most memory that counters may take; auto is half of what this process may use.",
    },
    Setting {
        name: "store.on_full",
        shape: Shape::Word(&["deny", "allow"]),
        default: Some("deny"),
        help: "What becomes of a new key for which there is no memory: it is refused, or passes uncounted.",
    },
    Setting {
        name: "store.snapshot",
        shape: Shape::PathOrOff,
        default: Some("off"),
        help: "The file that counters are written to, so that they outlive the process.",
    },
    Setting {
        name: "store.snapshot_every",
        shape: Shape::Duration,
        default: Some("10s"),
        help: "How often they are written, besides when the process leaves.",
    },
    Setting {
        name: "drain.delay",
        shape: Shape::Duration,
        default: Some("5s"),
        help: "How long to go on answering after SIGTERM while no longer ready.",
    },
    Setting {
        name: "drain.timeout",
        shape: Shape::Duration,
        default: Some("25s"),
        help: "How long leaving may take in all, the delay included.",
    },
    Setting {
        name: "log.level",
        shape: Shape::LogFilter,
        default: Some("info"),
        help: "What to log: error, warn, info, debug, trace or off, also per module, as in info,tollgate::rules=debug.",
    },
    Setting {
        name: "log.format",
        shape: Shape::Word(&["text", "json"]),
        default: Some("text"),
        help: "How to write logs.",
    },
    Setting {
        name: "log.denials",
        shape: Shape::Denials,
        default: Some("off"),
        help: "How many denials to log each second, as in 10/s, with rule, descriptor and limit; off logs none.",
    },
];

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
            Self::Mode => "MODE",
            Self::Names => "NAME[,NAME]...",
            Self::Count => "N",
            Self::Duration => "TIME",
            Self::Switch => "BOOL",
            Self::Path | Self::PathOrOff => "PATH",
            Self::Size => "SIZE",
            Self::Number { .. } => "NUMBER",
            Self::Word(_) => "WORD",
            Self::HeaderName => "NAME",
            Self::LogFilter => "LEVEL",
            Self::Denials => "RATE",
        }
    }

    /// What is allowed.
    pub fn expected(self) -> String {
        match self {
            Self::Address => "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081".to_owned(),
            Self::Socket => {
                "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or a socket, as in unix:/run/tollgate.sock".to_owned()
            }
            Self::Mode => "a mode of a file, as in 0660".to_owned(),
            Self::Names => "a comma list of host names, URIs and IP addresses, or off".to_owned(),
            Self::Count => format!("a number from 1 to {COUNT_MAX}"),
            Self::Duration => "a length of time, as in 250ms, 5s or 1m 30s".to_owned(),
            Self::Switch => "true or false".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::PathOrOff => "a path, or off".to_owned(),
            Self::Size => {
                "a size of at least 1MiB and at most this machine's memory, as in 512MiB or 2GiB, or auto"
                    .to_owned()
            }
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
            Self::Mode => mode(text).is_some(),
            Self::Names => names(text).is_some(),
            Self::Count => is_count(text),
            Self::Duration => duration(text).is_some(),
            Self::Switch => matches!(text, "true" | "false"),
            Self::Path | Self::PathOrOff => !text.is_empty(),
            Self::Size => size(text).is_some(),
            Self::Number { most } => text.parse::<u64>().is_ok_and(|number| number <= most),
            Self::Word(words) => words.contains(&text),
            Self::HeaderName => axum::http::HeaderName::try_from(text).is_ok(),
            Self::Denials => text.parse::<Denials>().is_ok(),
            Self::LogFilter => logs::filter(text).is_ok(),
        }
    }
}

/// Reads a number of bytes. `auto` is half of what this process may use.
pub(super) fn size(text: &str) -> Option<u64> {
    let machine = store::machine_memory();
    if text == "auto" {
        return Some(machine.map_or(BYTES_UNKNOWN, |bytes| bytes / 2).max(store::BYTES_MIN));
    }
    let bytes = text.parse::<ByteSize>().ok()?.as_u64();
    (store::BYTES_MIN <= bytes && machine.is_none_or(|machine| bytes <= machine)).then_some(bytes)
}

/// Reads a length of time.
pub(super) fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}
