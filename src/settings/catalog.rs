//! Every setting there is.

use std::time::Duration;

use crate::settings::Shape;

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
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "The certificate chain that clients are shown, in PEM; without one the listener speaks plaintext.",
    },
    Setting {
        name: "grpc.tls_key",
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "The key of that certificate, in PEM.",
    },
    Setting {
        name: "grpc.tls_client_ca",
        shape: Shape::OrOff(&Shape::Path),
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
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "The certificate chain that clients are shown, in PEM; without one the listener speaks plaintext.",
    },
    Setting {
        name: "http.tls_key",
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "The key of that certificate, in PEM.",
    },
    Setting {
        name: "http.tls_client_ca",
        shape: Shape::OrOff(&Shape::Path),
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
        shape: Shape::OrOff(&Shape::Path),
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
        shape: Shape::OrOff(&Shape::Path),
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
        name: "cluster.listen",
        shape: Shape::OrOff(&Shape::Address),
        default: Some("off"),
        help: "Where other replicas connect; off for a replica that counts by itself.",
    },
    Setting {
        name: "cluster.advertise",
        shape: Shape::Advertised,
        default: Some("auto"),
        help: "Where others are told to connect: HOST:PORT, or an IP address, which gets the port of cluster.listen; auto is that address, or where it is every address the one that leads to the seeds.",
    },
    Setting {
        name: "cluster.seed",
        shape: Shape::OrOff(&Shape::Places),
        default: Some("off"),
        help: "Where others may be: HOST:PORT, several separated by commas or in several flags; a name may stand for many.",
    },
    Setting {
        name: "cluster.secret_file",
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "The file of secrets that make a replica a member, one a line: the first is shown, any is trusted.",
    },
    Setting {
        name: "cluster.cert",
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "In place of a secret: the certificate chain that other replicas are shown, in PEM, for clients and for servers.",
    },
    Setting {
        name: "cluster.key",
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "The key of that certificate, in PEM.",
    },
    Setting {
        name: "cluster.ca",
        shape: Shape::OrOff(&Shape::Path),
        default: Some("off"),
        help: "Who must have signed the certificate of a member, in PEM.",
    },
    Setting {
        name: "cluster.forward_budget_max",
        shape: Shape::Within { least: Duration::from_millis(1), most: Duration::from_secs(60) },
        default: Some("500ms"),
        help: "The longest that a request waits for another replica; never more than half of what its caller waits.",
    },
    Setting {
        name: "cluster.backup_interval",
        shape: Shape::OrOff(&Shape::Within {
            least: Duration::from_millis(20),
            most: Duration::from_secs(10),
        }),
        default: Some("100ms"),
        help: "How often counters that have changed go to the replica that would hold them next: what a crash can forget.",
    },
    Setting {
        name: "cluster.forget_after",
        shape: Shape::Within { least: Duration::from_secs(2), most: Duration::from_secs(60 * 60) },
        default: Some("30s"),
        help: "After so long a silence a replica is treated as dead, and others take over what it held.",
    },
    Setting {
        name: "cluster.lease_from",
        shape: Shape::OrOff(&Shape::Count),
        default: Some("500"),
        help: "Parts of a limit are lent to a replica that sends on requests for one key so often a second.",
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
