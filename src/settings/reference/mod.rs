//! The environment of envoyproxy/ratelimit as a source of settings, so that a deployment of it can start this program.

use std::net::SocketAddr;

use tollgate_counter::named;
use tollgate_shared_store::Passwords;

use crate::settings::{
    Sections,
    catalog::{REDIS_CONNECTIONS_MAX, REDIS_TIMEOUT_MAX, REDIS_TIMEOUT_MIN},
    value_type::{StoreKind, duration},
};

use self::VariableSyntax::{Converted, Joined, Nothing, Redis, Same, With};

/// What an operator can do if the store of the variables cannot be used.
const WAYS_OUT: &str = "name a server of Redis in REDIS_URL as HOST:PORT, or set TOLLGATE_CLUSTER__LISTEN for counters in the memory of a cluster, or TOLLGATE_STORE__KIND=memory for those of one replica";

/// The variables that name the store.
const STORE: [&str; 5] = ["BACKEND_TYPE", "REDIS_URL", "REDIS_TYPE", "REDIS_SOCKET_TYPE", "REDIS_TLS"];
/// The host of listeners without one.
const ANY_HOST: &str = "0.0.0.0";

/// How a variable is read.
enum VariableSyntax {
    /// The value as that of a setting, because both have one syntax.
    Same(&'static str),
    /// The value as that of a setting, after a conversion; `None` if the value is not allowed.
    Converted(&'static str, fn(&str) -> Option<String>),
    /// The value as that of a setting, but only if this switch is on.
    With(&'static str, &'static str),
    /// A login: `PASSWORD` or `USER:PASSWORD`.
    Login(Login),
    /// A value that is read together with others; what reads them says which have no effect.
    Joined,
    /// The variable has no effect, for this reason.
    Nothing(&'static str),
    /// The value as the inner syntax says, but only for counters in Redis.
    Redis(&'static VariableSyntax),
}

const GRPC_TLS: &str = "GRPC_SERVER_USE_TLS";
const XDS_TLS: &str = "CONFIG_GRPC_XDS_SERVER_USE_TLS";
const NO_STATSD: &str = "metrics are for Prometheus";
const NO_MEMCACHED: &str = "counters are in memory or in Redis";
const FILES_WATCHED: &str = "files are always watched, and hidden ones are never read";
const OPENTELEMETRY: &str = "traces have the variables of OpenTelemetry, OTEL_*";
const ONE_STORE: &str = "all counters are in one store";

/// Every variable of the reference.
const VARIABLES: &[(&str, VariableSyntax)] = &[
    ("HOST", Joined),
    ("PORT", Joined),
    ("GRPC_HOST", Joined),
    ("GRPC_PORT", Joined),
    ("GRPC_UDS", Joined),
    ("DEBUG_HOST", Nothing("the admin listener is on the loopback; admin.listen changes that")),
    ("DEBUG_PORT", Converted("admin.listen", |port| Some(format!("127.0.0.1:{port}")))),
    ("GRPC_MAX_CONNECTION_AGE", Same("grpc.max_connection_age")),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Same("grpc.max_connection_age_grace")),
    (GRPC_TLS, Joined),
    ("GRPC_SERVER_TLS_CERT", With(GRPC_TLS, "grpc.tls_cert")),
    ("GRPC_SERVER_TLS_KEY", With(GRPC_TLS, "grpc.tls_key")),
    ("GRPC_CLIENT_TLS_CACERT", With(GRPC_TLS, "grpc.tls_client_ca")),
    ("GRPC_CLIENT_TLS_SAN", With(GRPC_TLS, "grpc.tls_client_san")),
    ("LOG_LEVEL", Converted("log.level", log_level)),
    ("LOG_FORMAT", Same("log.format")),
    ("CONFIG_TYPE", Joined),
    (
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        Converted("rules.required", |text| switch(text).map(|on| (!on).to_string())),
    ),
    ("MERGE_DOMAIN_CONFIG", Nothing("rules of one domain are always merged")),
    ("RUNTIME_ROOT", Joined),
    ("RUNTIME_SUBDIRECTORY", Joined),
    ("RUNTIME_APPDIRECTORY", Joined),
    ("RUNTIME_IGNOREDOTFILES", Nothing(FILES_WATCHED)),
    ("RUNTIME_WATCH_ROOT", Nothing(FILES_WATCHED)),
    ("CONFIG_GRPC_XDS_NODE_ID", Same("rules.xds.node_id")),
    ("CONFIG_GRPC_XDS_NODE_METADATA", Same("rules.xds.node_metadata")),
    ("CONFIG_GRPC_XDS_SERVER_URL", Joined),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", Nothing("it has no effect there either")),
    (
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        Converted("rules.xds.headers", |text| Some(text.replace(':', "="))),
    ),
    (XDS_TLS, Joined),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", With(XDS_TLS, "rules.xds.cert")),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", With(XDS_TLS, "rules.xds.key")),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", With(XDS_TLS, "rules.xds.ca")),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", With(XDS_TLS, "rules.xds.server_name")),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Same("rules.xds.retry_min")),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Same("rules.xds.retry_max")),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", Nothing("delays double")),
    ("XDS_CLIENT_BACKOFF_JITTER", Nothing("delays always have jitter")),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Joined),
    ("USE_PROMETHEUS", Nothing("metrics are always served")),
    ("PROMETHEUS_ADDR", Converted("metrics.listen", address)),
    ("PROMETHEUS_PATH", Nothing("the path is /metrics")),
    ("PROMETHEUS_MAPPER_YAML", Nothing("names and labels are those of the reference's own mapping")),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", Nothing("times are in seconds")),
    ("USE_STATSD", Nothing(NO_STATSD)),
    ("STATSD_HOST", Nothing(NO_STATSD)),
    ("STATSD_PORT", Nothing(NO_STATSD)),
    ("STATSD_PROTOCOL", Nothing(NO_STATSD)),
    ("STATS_FLUSH_INTERVAL", Nothing(NO_STATSD)),
    ("USE_DOG_STATSD", Nothing(NO_STATSD)),
    ("USE_DOG_STATSD_MOGRIFIERS", Nothing(NO_STATSD)),
    ("EXTRA_TAGS", Nothing("labels are added by Prometheus")),
    ("DISABLE_STATS", Nothing("metrics are always counted")),
    ("BACKEND_TYPE", Joined),
    ("EXPIRATION_JITTER_MAX_SECONDS", Nothing("counters expire when they are idle")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Nothing("store.memory_limit bounds counters")),
    ("NEAR_LIMIT_RATIO", Nothing("it is always 0.8")),
    ("CACHE_KEY_PREFIX", Redis(&Same("store.redis.prefix"))),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Nothing("on_denied: charge_none of a domain does this")),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Converted("headers.ratelimit", boolean)),
    ("LIMIT_LIMIT_HEADER", Same("headers.limit_name")),
    ("LIMIT_REMAINING_HEADER", Same("headers.remaining_name")),
    ("LIMIT_RESET_HEADER", Same("headers.reset_name")),
    ("SHADOW_MODE", Converted("limiter.shadow_mode", boolean)),
    ("QUOTA_MODE", Converted("limiter.quota_mode", boolean)),
    ("RESPONSE_DYNAMIC_METADATA", Converted("api.dynamic_metadata", boolean)),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Nothing("FORCE_START_WITHOUT_INITIAL_CONFIG decides")),
    ("REDIS_PERSECOND", Redis(&Nothing(ONE_STORE))),
    ("REDIS_SOCKET_TYPE", Joined),
    ("REDIS_TYPE", Joined),
    ("REDIS_URL", Joined),
    ("REDIS_TLS", Joined),
    ("REDIS_POOL_SIZE", Redis(&Converted("store.redis.connections", redis_connections))),
    ("REDIS_AUTH", Redis(&VariableSyntax::Login(Login::Servers))),
    ("REDIS_SENTINEL_AUTH", Redis(&VariableSyntax::Login(Login::Sentinels))),
    ("REDIS_TLS_CACERT", Redis(&With("REDIS_TLS", "store.redis.ca"))),
    ("REDIS_TLS_CLIENT_CERT", Redis(&With("REDIS_TLS", "store.redis.cert"))),
    ("REDIS_TLS_CLIENT_KEY", Redis(&With("REDIS_TLS", "store.redis.key"))),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Redis(&Nothing("names are always verified"))),
    ("REDIS_TIMEOUT", Redis(&Converted("store.redis.timeout", redis_timeout))),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Redis(&Converted("store.redis.unready_without_store", boolean))),
    ("TRACING_ENABLED", Nothing(OPENTELEMETRY)),
    ("TRACING_SERVICE_NAME", Nothing(OPENTELEMETRY)),
    ("TRACING_SERVICE_NAMESPACE", Nothing(OPENTELEMETRY)),
    ("TRACING_SERVICE_INSTANCE_ID", Nothing(OPENTELEMETRY)),
    ("TRACING_EXPORTER_PROTOCOL", Nothing(OPENTELEMETRY)),
    ("TRACING_SAMPLING_RATE", Nothing(OPENTELEMETRY)),
];

/// The beginnings of variables that are named even if they are not in the table. All other variables are not of this
/// server.
const PREFIXES: &[(&str, &str)] = &[
    ("GRPC_SERVER_", "the reference does not read it either"),
    ("GRPC_CLIENT_TLS_", "the reference does not read it either"),
    ("CONFIG_GRPC_XDS_", "the reference does not read it either"),
    ("XDS_CLIENT_", "the reference does not read it either"),
    ("RUNTIME_", "the reference does not read it either"),
    ("REDIS_PERSECOND_", ONE_STORE),
    ("REDIS_", "Redis connects again by itself, and calls share connections"),
    ("MEMCACHE_", NO_MEMCACHED),
];

/// A value for a setting, and the variable that it comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) setting: &'static str,
    pub(super) value: String,
    pub(super) variable: String,
}

/// What the environment means here.
#[derive(Debug, Default)]
pub(super) struct Translation {
    pub(super) settings: Vec<Given>,
    /// Passwords for the shared store. No setting has one, so that none is displayed.
    pub(super) passwords: Passwords,
    /// Variables that have no effect, each with the reason.
    pub(super) without_effect: Vec<String>,
    /// Values that are not allowed.
    pub(super) problems: Vec<String>,
    /// Where the counters are; `None` if the variables name no store that can be used.
    pub(super) choice: Option<BackendChoice>,
}

named! {
    /// Where the counters are, by its name in the log.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Backend {
        /// The memory of this replica.
        Memory = "memory",
        /// The memory of all replicas of a cluster.
        Cluster = "cluster",
        /// Servers that replicas share.
        Redis = "redis",
    }
}

/// Where the counters are, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendChoice {
    /// Where the counters are.
    pub backend: Backend,
    /// Why the counters are there.
    pub reason: &'static str,
}

impl BackendChoice {
    /// Why each replica counts by itself; `None` if replicas share their counters.
    pub fn alone(&self) -> Option<&'static str> {
        (self.backend == Backend::Memory).then_some(self.reason)
    }

    /// A variable of counters in Redis, which has no effect.
    fn unused(&self, variable: &str) -> String {
        format!("{variable} (counters are in memory: {})", self.reason)
    }
}

/// Translates the variables of the reference. `own` has the settings of the other sources, which decide how variables are
/// read; `store` is the store that an operator has set.
pub(super) fn translate(
    environment: &[(String, String)],
    own: &Sections,
    store: Option<StoreKind>,
) -> Translation {
    let mut translator = Translator { environment, own, store, translation: Translation::default() };
    let chosen = translator.choose();
    translator.translation.choice = chosen.as_ref().ok().copied();
    for (variable, value) in environment {
        match VARIABLES.iter().find(|(name, _)| name == variable) {
            Some((_, rule)) => translator.apply(variable, value, rule),
            None => {
                let prefix = PREFIXES.iter().find(|(prefix, _)| variable.starts_with(prefix));
                let named = prefix.map(|(_, why)| format!("{variable} ({why})"));
                translator.translation.without_effect.extend(named);
            }
        }
    }
    translator.joined();
    match chosen {
        Ok(choice) => translator.give_store(choice),
        Err(problem) => translator.translation.problems.push(problem),
    }
    translator.translation
}

/// Reads the variables of a process.
struct Translator<'e> {
    environment: &'e [(String, String)],
    own: &'e Sections,
    store: Option<StoreKind>,
    translation: Translation,
}

impl<'e> Translator<'e> {
    /// The value of a variable; `None` if it is empty, as the reference's own defaults are.
    fn value(&self, variable: &str) -> Option<&'e str> {
        let found = self.environment.iter().find(|(name, _)| name == variable);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn is_on(&self, variable: &str) -> bool {
        self.value(variable).and_then(switch).unwrap_or(false)
    }

    /// Refuses the value of a switch that is no boolean.
    fn check_switch(&mut self, variable: &str) {
        if let Some(wrong) = self.value(variable).filter(|value| switch(value).is_none()) {
            self.translation
                .problems
                .push(format!("{variable}: `{wrong}` is not allowed; true and false are"));
        }
    }

    fn give(&mut self, setting: &'static str, value: impl Into<String>, variable: &str) {
        let value = value.into();
        let variable = variable.to_owned();
        self.translation.settings.push(Given { setting, value, variable });
    }

    fn apply(&mut self, variable: &str, value: &str, rule: &VariableSyntax) {
        // The reference's own defaults are empty texts.
        if value.is_empty() {
            return;
        }
        match rule {
            VariableSyntax::Joined => {}
            VariableSyntax::Login(login) => self.log_in(variable, value, *login),
            VariableSyntax::Same(setting) => self.give(setting, value, variable),
            VariableSyntax::With(needed, setting) if self.is_on(needed) => {
                self.give(setting, value, variable);
            }
            VariableSyntax::With(needed, _) => {
                self.translation.without_effect.push(format!("{variable} ({needed} is not true)"));
            }
            VariableSyntax::Converted(setting, convert) => match convert(value) {
                Some(value) => self.give(setting, value, variable),
                None => self.translation.problems.push(format!("{variable}: `{value}` is not allowed")),
            },
            VariableSyntax::Nothing(why) => {
                self.translation.without_effect.push(format!("{variable} ({why})"));
            }
            VariableSyntax::Redis(rule) => match self.translation.choice {
                Some(BackendChoice { backend: Backend::Redis, .. }) => self.apply(variable, value, rule),
                Some(choice) => self.translation.without_effect.push(choice.unused(variable)),
                // It cannot be told, which is an error.
                None => {}
            },
        }
    }

    /// Settings that several variables make up.
    fn joined(&mut self) {
        for (setting, host, port, default, from) in [
            ("http.listen", "HOST", "PORT", "8080", "HOST, PORT"),
            ("grpc.listen", "GRPC_HOST", "GRPC_PORT", "8081", "GRPC_HOST, GRPC_PORT"),
        ] {
            let host = self.value(host);
            let port = self.value(port);
            if host.is_some() || port.is_some() {
                let address = joined_address(host.unwrap_or(ANY_HOST), port.unwrap_or(default));
                self.give(setting, address, from);
            }
        }
        for switch in [GRPC_TLS, XDS_TLS] {
            self.check_switch(switch);
        }
        if let Some(path) = self.value("GRPC_UDS") {
            self.give("grpc.listen", format!("unix:{path}"), "GRPC_UDS");
        }
        self.give("metrics.reference_names", "true", "--compat");
        match self.value("CONFIG_TYPE").unwrap_or("FILE") {
            "FILE" => {
                let of = |variable: &str, default| {
                    self.value(variable).unwrap_or(default).trim_end_matches('/').to_owned()
                };
                let root = of("RUNTIME_ROOT", "/srv/runtime_data/current");
                let parts = [root, of("RUNTIME_SUBDIRECTORY", ""), of("RUNTIME_APPDIRECTORY", "config")];
                let parts = parts.into_iter().filter(|part| !part.is_empty());
                self.give("rules.path", parts.collect::<Vec<_>>().join("/"), "RUNTIME_ROOT");
            }
            "GRPC_XDS_SOTW" => {
                let scheme = if self.is_on(XDS_TLS) { "https" } else { "http" };
                let server = self.value("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or("localhost:18000");
                self.give("rules.source", "xds", "CONFIG_TYPE");
                self.give("rules.xds.url", format!("{scheme}://{server}"), "CONFIG_GRPC_XDS_SERVER_URL");
                if self.value("CONFIG_GRPC_XDS_NODE_ID").is_none() {
                    self.give("rules.xds.node_id", "default", "CONFIG_GRPC_XDS_NODE_ID");
                }
                // 0 stands for the default.
                if let Some(bytes) =
                    self.value("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES").filter(|bytes| *bytes != "0")
                {
                    self.give("rules.xds.max_message", bytes, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES");
                }
            }
            other => self
                .translation
                .problems
                .push(format!("CONFIG_TYPE: `{other}` is not allowed; FILE and GRPC_XDS_SOTW are")),
        }
    }

    /// Where the counters are. Settings of an operator decide before the variables of the reference. An error says why
    /// the store of the variables cannot be used.
    fn choose(&self) -> Result<BackendChoice, String> {
        let has_cluster = self.own.links.listen.is_some();
        let in_memory = if has_cluster { Backend::Cluster } else { Backend::Memory };
        let (backend, reason) = match self.store {
            Some(StoreKind::Redis) => (Backend::Redis, "store.kind is redis"),
            Some(StoreKind::Memory) => (in_memory, "store.kind is memory"),
            None if has_cluster => (in_memory, "cluster.listen is set"),
            None => self.reference_backend()?,
        };
        Ok(BackendChoice { backend, reason })
    }

    fn reference_backend(&self) -> Result<(Backend, &'static str), String> {
        let backend = self.value("BACKEND_TYPE");
        if let Some(other) = backend.filter(|backend| *backend != "redis") {
            return Err(format!("BACKEND_TYPE: `{other}` is not a store of Tollgate; {WAYS_OUT}"));
        }
        match self.value("REDIS_URL") {
            None if backend.is_none() => Ok((Backend::Memory, "REDIS_URL is not set")),
            None => Err(format!("BACKEND_TYPE: `redis` without REDIS_URL is a Unix socket; {WAYS_OUT}")),
            Some(_) if has_only_invalid_names(&self.servers().1) => {
                Ok((Backend::Memory, "the host of REDIS_URL is below .invalid, so it does not exist"))
            }
            Some(_) => Ok((Backend::Redis, "REDIS_URL names a server")),
        }
    }

    /// The service of sentinels, if `REDIS_TYPE` says so, and the servers of `REDIS_URL`.
    fn servers(&self) -> (Option<&'e str>, Vec<&'e str>) {
        let mut servers: Vec<_> =
            self.value("REDIS_URL").into_iter().flat_map(|urls| urls.split(',')).map(str::trim).collect();
        let has_service = self.redis_type() == "sentinel" && !servers.is_empty();
        (has_service.then(|| servers.remove(0)), servers)
    }

    fn redis_type(&self) -> String {
        self.value("REDIS_TYPE").unwrap_or("single").to_ascii_lowercase()
    }

    /// The settings of the store.
    fn give_store(&mut self, choice: BackendChoice) {
        if choice.backend != Backend::Redis {
            let given = STORE.into_iter().filter(|name| self.value(name).is_some());
            let unused: Vec<_> = given.map(|name| choice.unused(name)).collect();
            self.translation.without_effect.extend(unused);
            return;
        }
        if self.store.is_none() {
            self.give("store.kind", "redis", "REDIS_URL");
        }
        match &*self.redis_type() {
            "single" => self.give("store.redis.mode", "standalone", "REDIS_TYPE"),
            mode @ ("sentinel" | "cluster") => self.give("store.redis.mode", mode, "REDIS_TYPE"),
            other => self.translation.problems.push(format!(
                "REDIS_TYPE: `{other}` is not allowed; single, sentinel and cluster are, or {WAYS_OUT}"
            )),
        }
        self.check_switch("REDIS_TLS");
        let (service, servers) = self.servers();
        if let Some(service) = service {
            self.give("store.redis.sentinel_service", service, "REDIS_URL");
            if servers.is_empty() {
                self.translation
                    .problems
                    .push("REDIS_URL: sentinels are NAME,HOST:PORT[,HOST:PORT]...".to_owned());
            }
        }
        if servers.is_empty() {
            return;
        }
        let socket = self.value("REDIS_SOCKET_TYPE").filter(|kind| !kind.starts_with("tcp"));
        let path = servers.iter().find(|server| server.starts_with('/'));
        for (variable, value) in [("REDIS_SOCKET_TYPE", socket), ("REDIS_URL", path.copied())] {
            if let Some(value) = value {
                self.translation
                    .problems
                    .push(format!("{variable}: `{value}`: connections are TCP only; {WAYS_OUT}"));
                return;
            }
        }
        let scheme = if self.is_on("REDIS_TLS") { "rediss" } else { "redis" };
        let mut urls = Vec::with_capacity(servers.len());
        for server in servers {
            let (given, rest) = server.split_once("://").unwrap_or(("redis", server));
            let scheme = if given == "redis" { scheme } else { given };
            // A password with an escaped character is refused as a URL.
            let login = rest.rsplit_once('@').filter(|(login, _)| {
                server.contains("://") && login.contains(':') && !login.contains('%') && urls.is_empty()
            });
            let address = match login {
                None => rest,
                Some((login, address)) => {
                    if self.value("REDIS_AUTH").is_none() {
                        self.log_in("REDIS_URL", login, Login::Servers);
                    }
                    address
                }
            };
            urls.push(format!("{scheme}://{address}"));
        }
        self.give("store.redis.urls", urls.join(","), "REDIS_URL");
    }

    /// A user and a password. No message contains the value.
    fn log_in(&mut self, variable: &str, value: &str, login: Login) {
        let redis = &self.own.redis;
        let (user_setting, file_setting, file) = match login {
            Login::Servers => ("store.redis.username", "store.redis.password_file", &redis.password_file),
            Login::Sentinels => (
                "store.redis.sentinel_username",
                "store.redis.sentinel_password_file",
                &redis.sentinel_password_file,
            ),
        };
        if file.is_some() {
            self.translation.without_effect.push(format!("{variable} ({file_setting} has the password)"));
            return;
        }
        let (user, password) = value.split_once(':').unwrap_or(("", value));
        if password.is_empty() || user.contains(char::is_whitespace) {
            self.translation
                .problems
                .push(format!("{variable}: the value is neither PASSWORD nor USER:PASSWORD"));
            return;
        }
        if !user.is_empty() {
            self.give(user_setting, user, variable);
        }
        let place = match login {
            Login::Servers => &mut self.translation.passwords.server,
            Login::Sentinels => &mut self.translation.passwords.sentinel,
        };
        *place = Some(password.to_owned());
    }
}

/// What a password is for.
#[derive(Clone, Copy)]
enum Login {
    Servers,
    Sentinels,
}

/// Whether these servers stand for none. An address without servers is an error instead.
fn has_only_invalid_names(servers: &[&str]) -> bool {
    !servers.is_empty() && servers.iter().all(|server| is_invalid(server))
}

/// Whether the name of a server is one that never exists (RFC 6761).
fn is_invalid(server: &str) -> bool {
    let (_, rest) = server.rsplit_once('@').or(server.split_once("://")).unwrap_or(("", server));
    let host = rest.split([':', '/']).next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    host == "invalid" || host.ends_with(".invalid")
}

fn joined_address(host: &str, port: &str) -> String {
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// An address, of which the host may be left out.
fn address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let address = joined_address(if host.is_empty() { ANY_HOST } else { host }, port);
    address.parse::<SocketAddr>().ok().map(|_| address)
}

fn log_level(text: &str) -> Option<String> {
    let level = text.to_ascii_lowercase();
    let level = match &*level {
        "panic" | "fatal" => "error",
        "warning" => "warn",
        level @ ("error" | "warn" | "info" | "debug" | "trace") => level,
        _another => return None,
    };
    Some(level.to_owned())
}

/// A boolean as Go reads it.
fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _another => None,
    }
}

/// The reference bounds only its wait for a connection, and 0 means no bound there. Here the longest one stands for what
/// is longer.
fn redis_timeout(text: &str) -> Option<String> {
    let given = duration(text)?;
    let timeout = if given.is_zero() { REDIS_TIMEOUT_MAX } else { given };
    let within = timeout.clamp(REDIS_TIMEOUT_MIN, REDIS_TIMEOUT_MAX);
    Some(if within == given { text.to_owned() } else { format!("{}ms", within.as_millis()) })
}

/// Calls of the reference wait for a connection of their own, so its pools are larger than what is of use here.
fn redis_connections(text: &str) -> Option<String> {
    let given: u64 = text.parse().ok().filter(|connections| *connections > 0)?;
    Some(given.min(REDIS_CONNECTIONS_MAX).to_string())
}

fn boolean(text: &str) -> Option<String> {
    switch(text).map(|on| on.to_string())
}

#[cfg(test)]
mod tests;
