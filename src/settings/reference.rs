//! The environment of envoyproxy/ratelimit as a source of settings, so that a deployment of it can start this program.

mod counters;
mod translation;
mod values;

pub use translation::{Backend, BackendChoice};
pub(super) use translation::{Given, Own, Translation};

use counters::Login;
use translation::Variables;
use values::{
    ANY_HOST, address, boolean, joined_address, log_level, redis_connections, redis_timeout, switch,
};

/// How a variable is read.
enum VariableSyntax {
    /// The value as that of a setting, because both have one syntax.
    Same(&'static str),
    /// As the value of a setting, after a conversion; `None` if the value is not allowed.
    Converted(&'static str, fn(&str) -> Option<String>),
    /// The value as that of a setting, but only if this switch is on.
    With(&'static str, &'static str),
    /// As `PASSWORD` or `USER:PASSWORD`.
    Login(Login),
    /// Together with others; what reads them says which have no effect.
    Joined,
    /// Has no effect, because of this.
    Nothing(&'static str),
    /// As the rule says, but only for counters in Redis.
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
    ("HOST", VariableSyntax::Joined),
    ("PORT", VariableSyntax::Joined),
    ("GRPC_HOST", VariableSyntax::Joined),
    ("GRPC_PORT", VariableSyntax::Joined),
    ("GRPC_UDS", VariableSyntax::Joined),
    (
        "DEBUG_HOST",
        VariableSyntax::Nothing("the admin listener is on the loopback; admin.listen changes that"),
    ),
    ("DEBUG_PORT", VariableSyntax::Converted("admin.listen", |port| Some(format!("127.0.0.1:{port}")))),
    ("GRPC_MAX_CONNECTION_AGE", VariableSyntax::Same("grpc.max_connection_age")),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", VariableSyntax::Same("grpc.max_connection_age_grace")),
    (GRPC_TLS, VariableSyntax::Joined),
    ("GRPC_SERVER_TLS_CERT", VariableSyntax::With(GRPC_TLS, "grpc.tls_cert")),
    ("GRPC_SERVER_TLS_KEY", VariableSyntax::With(GRPC_TLS, "grpc.tls_key")),
    ("GRPC_CLIENT_TLS_CACERT", VariableSyntax::With(GRPC_TLS, "grpc.tls_client_ca")),
    ("GRPC_CLIENT_TLS_SAN", VariableSyntax::With(GRPC_TLS, "grpc.tls_client_san")),
    ("LOG_LEVEL", VariableSyntax::Converted("log.level", log_level)),
    ("LOG_FORMAT", VariableSyntax::Same("log.format")),
    ("CONFIG_TYPE", VariableSyntax::Joined),
    (
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        VariableSyntax::Converted("rules.required", |text| switch(text).map(|on| (!on).to_string())),
    ),
    ("MERGE_DOMAIN_CONFIG", VariableSyntax::Nothing("rules of one domain are always merged")),
    ("RUNTIME_ROOT", VariableSyntax::Joined),
    ("RUNTIME_SUBDIRECTORY", VariableSyntax::Joined),
    ("RUNTIME_APPDIRECTORY", VariableSyntax::Joined),
    ("RUNTIME_IGNOREDOTFILES", VariableSyntax::Nothing(FILES_WATCHED)),
    ("RUNTIME_WATCH_ROOT", VariableSyntax::Nothing(FILES_WATCHED)),
    ("CONFIG_GRPC_XDS_NODE_ID", VariableSyntax::Same("rules.xds.node_id")),
    ("CONFIG_GRPC_XDS_NODE_METADATA", VariableSyntax::Same("rules.xds.node_metadata")),
    ("CONFIG_GRPC_XDS_SERVER_URL", VariableSyntax::Joined),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        VariableSyntax::Nothing("it has no effect there either"),
    ),
    (
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        VariableSyntax::Converted("rules.xds.headers", |text| Some(text.replace(':', "="))),
    ),
    (XDS_TLS, VariableSyntax::Joined),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", VariableSyntax::With(XDS_TLS, "rules.xds.cert")),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", VariableSyntax::With(XDS_TLS, "rules.xds.key")),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", VariableSyntax::With(XDS_TLS, "rules.xds.ca")),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", VariableSyntax::With(XDS_TLS, "rules.xds.server_name")),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", VariableSyntax::Same("rules.xds.retry_min")),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", VariableSyntax::Same("rules.xds.retry_max")),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", VariableSyntax::Nothing("delays double")),
    ("XDS_CLIENT_BACKOFF_JITTER", VariableSyntax::Nothing("delays always have jitter")),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", VariableSyntax::Joined),
    ("USE_PROMETHEUS", VariableSyntax::Nothing("metrics are always served")),
    ("PROMETHEUS_ADDR", VariableSyntax::Converted("metrics.listen", address)),
    ("PROMETHEUS_PATH", VariableSyntax::Nothing("the path is /metrics")),
    (
        "PROMETHEUS_MAPPER_YAML",
        VariableSyntax::Nothing("names and labels are those of the reference's own mapping"),
    ),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", VariableSyntax::Nothing("times are in seconds")),
    ("USE_STATSD", VariableSyntax::Nothing(NO_STATSD)),
    ("STATSD_HOST", VariableSyntax::Nothing(NO_STATSD)),
    ("STATSD_PORT", VariableSyntax::Nothing(NO_STATSD)),
    ("STATSD_PROTOCOL", VariableSyntax::Nothing(NO_STATSD)),
    ("STATS_FLUSH_INTERVAL", VariableSyntax::Nothing(NO_STATSD)),
    ("USE_DOG_STATSD", VariableSyntax::Nothing(NO_STATSD)),
    ("USE_DOG_STATSD_MOGRIFIERS", VariableSyntax::Nothing(NO_STATSD)),
    ("EXTRA_TAGS", VariableSyntax::Nothing("labels are added by Prometheus")),
    ("DISABLE_STATS", VariableSyntax::Nothing("metrics are always counted")),
    ("BACKEND_TYPE", VariableSyntax::Joined),
    ("EXPIRATION_JITTER_MAX_SECONDS", VariableSyntax::Nothing("counters expire when they are idle")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", VariableSyntax::Nothing("store.memory_limit bounds counters")),
    ("NEAR_LIMIT_RATIO", VariableSyntax::Nothing("it is always 0.8")),
    ("CACHE_KEY_PREFIX", VariableSyntax::Redis(&VariableSyntax::Same("store.redis.prefix"))),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        VariableSyntax::Nothing("on_denied: charge_none of a domain does this"),
    ),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", VariableSyntax::Converted("headers.ratelimit", boolean)),
    ("LIMIT_LIMIT_HEADER", VariableSyntax::Same("headers.limit_name")),
    ("LIMIT_REMAINING_HEADER", VariableSyntax::Same("headers.remaining_name")),
    ("LIMIT_RESET_HEADER", VariableSyntax::Same("headers.reset_name")),
    ("SHADOW_MODE", VariableSyntax::Converted("limiter.shadow_mode", boolean)),
    ("QUOTA_MODE", VariableSyntax::Converted("limiter.quota_mode", boolean)),
    ("RESPONSE_DYNAMIC_METADATA", VariableSyntax::Converted("api.dynamic_metadata", boolean)),
    (
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        VariableSyntax::Nothing("FORCE_START_WITHOUT_INITIAL_CONFIG decides"),
    ),
    ("REDIS_PERSECOND", VariableSyntax::Redis(&VariableSyntax::Nothing(ONE_STORE))),
    ("REDIS_SOCKET_TYPE", VariableSyntax::Joined),
    ("REDIS_TYPE", VariableSyntax::Joined),
    ("REDIS_URL", VariableSyntax::Joined),
    ("REDIS_TLS", VariableSyntax::Joined),
    (
        "REDIS_POOL_SIZE",
        VariableSyntax::Redis(&VariableSyntax::Converted("store.redis.connections", redis_connections)),
    ),
    ("REDIS_AUTH", VariableSyntax::Redis(&VariableSyntax::Login(Login::Servers))),
    ("REDIS_SENTINEL_AUTH", VariableSyntax::Redis(&VariableSyntax::Login(Login::Sentinels))),
    ("REDIS_TLS_CACERT", VariableSyntax::Redis(&VariableSyntax::With("REDIS_TLS", "store.redis.ca"))),
    ("REDIS_TLS_CLIENT_CERT", VariableSyntax::Redis(&VariableSyntax::With("REDIS_TLS", "store.redis.cert"))),
    ("REDIS_TLS_CLIENT_KEY", VariableSyntax::Redis(&VariableSyntax::With("REDIS_TLS", "store.redis.key"))),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        VariableSyntax::Redis(&VariableSyntax::Nothing("names are always verified")),
    ),
    (
        "REDIS_TIMEOUT",
        VariableSyntax::Redis(&VariableSyntax::Converted("store.redis.timeout", redis_timeout)),
    ),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        VariableSyntax::Redis(&VariableSyntax::Converted("store.redis.unready_without_store", boolean)),
    ),
    ("TRACING_ENABLED", VariableSyntax::Nothing(OPENTELEMETRY)),
    ("TRACING_SERVICE_NAME", VariableSyntax::Nothing(OPENTELEMETRY)),
    ("TRACING_SERVICE_NAMESPACE", VariableSyntax::Nothing(OPENTELEMETRY)),
    ("TRACING_SERVICE_INSTANCE_ID", VariableSyntax::Nothing(OPENTELEMETRY)),
    ("TRACING_EXPORTER_PROTOCOL", VariableSyntax::Nothing(OPENTELEMETRY)),
    ("TRACING_SAMPLING_RATE", VariableSyntax::Nothing(OPENTELEMETRY)),
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

/// Translates the variables of the reference.
pub(super) fn translate(environment: &[(String, String)], own: Own) -> Translation {
    let variables = Variables(environment);
    let mut translation = Translation::default();
    let choice = counters::choose(variables, own);
    let reader = VariableReader { variables, own, choice: choice.as_ref().ok() };
    for (variable, value) in environment {
        match VARIABLES.iter().find(|(name, _)| name == variable) {
            Some((_, rule)) => reader.apply(variable, value, rule, &mut translation),
            None => {
                let prefix = PREFIXES.iter().find(|(prefix, _)| variable.starts_with(prefix));
                let named = prefix.map(|(_, why)| format!("{variable} ({why})"));
                translation.without_effect.extend(named);
            }
        }
    }
    reader.joined(&mut translation);
    match choice {
        Ok(choice) => {
            counters::translate(variables, own, &choice, &mut translation);
            translation.choice = Some(choice);
        }
        Err(problem) => translation.problems.push(problem),
    }
    translation
}

struct VariableReader<'e> {
    variables: Variables<'e>,
    own: Own,
    /// `None` if it cannot be told, which is an error.
    choice: Option<&'e BackendChoice>,
}

impl VariableReader<'_> {
    fn apply(&self, variable: &str, value: &str, rule: &VariableSyntax, translation: &mut Translation) {
        // The reference's own defaults are empty texts.
        if value.is_empty() {
            return;
        }
        match rule {
            VariableSyntax::Joined => {}
            VariableSyntax::Login(login) => counters::log_in(variable, value, *login, self.own, translation),
            VariableSyntax::Same(setting) => translation.give(setting, value, variable),
            VariableSyntax::With(needed, setting) if self.variables.is_on(needed) => {
                translation.give(setting, value, variable);
            }
            VariableSyntax::With(needed, _) => {
                translation.without_effect.push(format!("{variable} ({needed} is not true)"));
            }
            VariableSyntax::Converted(setting, convert) => match convert(value) {
                Some(value) => translation.give(setting, value, variable),
                None => translation.problems.push(format!("{variable}: `{value}` is not allowed")),
            },
            VariableSyntax::Nothing(why) => translation.without_effect.push(format!("{variable} ({why})")),
            VariableSyntax::Redis(rule) => match self.choice {
                Some(BackendChoice { backend: Backend::Redis, .. }) => {
                    self.apply(variable, value, rule, translation);
                }
                Some(choice) => translation.without_effect.push(choice.unused(variable)),
                None => {}
            },
        }
    }

    /// Settings that several variables make up.
    fn joined(&self, translation: &mut Translation) {
        for (setting, host, port, default, from) in [
            ("http.listen", "HOST", "PORT", "8080", "HOST, PORT"),
            ("grpc.listen", "GRPC_HOST", "GRPC_PORT", "8081", "GRPC_HOST, GRPC_PORT"),
        ] {
            let host = self.variables.value(host);
            let port = self.variables.value(port);
            if host.is_some() || port.is_some() {
                let address = joined_address(host.unwrap_or(ANY_HOST), port.unwrap_or(default));
                translation.give(setting, address, from);
            }
        }
        for switch in [GRPC_TLS, XDS_TLS] {
            translation.problems.extend(self.variables.wrong_switch(switch));
        }
        if let Some(path) = self.variables.value("GRPC_UDS") {
            translation.give("grpc.listen", format!("unix:{path}"), "GRPC_UDS");
        }
        translation.give("metrics.reference_names", "true".to_owned(), "--compat");
        match self.variables.value("CONFIG_TYPE").unwrap_or("FILE") {
            "FILE" => {
                let of = |variable: &str, default| {
                    self.variables.value(variable).unwrap_or(default).trim_end_matches('/').to_owned()
                };
                let root = of("RUNTIME_ROOT", "/srv/runtime_data/current");
                let parts = [root, of("RUNTIME_SUBDIRECTORY", ""), of("RUNTIME_APPDIRECTORY", "config")];
                let parts = parts.into_iter().filter(|part| !part.is_empty());
                translation.give("rules.path", parts.collect::<Vec<_>>().join("/"), "RUNTIME_ROOT");
            }
            "GRPC_XDS_SOTW" => {
                let scheme = if self.variables.is_on(XDS_TLS) { "https" } else { "http" };
                let server = self.variables.value("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or("localhost:18000");
                translation.give("rules.source", "xds".to_owned(), "CONFIG_TYPE");
                translation.give(
                    "rules.xds.url",
                    format!("{scheme}://{server}"),
                    "CONFIG_GRPC_XDS_SERVER_URL",
                );
                if self.variables.value("CONFIG_GRPC_XDS_NODE_ID").is_none() {
                    translation.give("rules.xds.node_id", "default".to_owned(), "CONFIG_GRPC_XDS_NODE_ID");
                }
                // 0 stands for the default.
                if let Some(bytes) =
                    self.variables.value("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES").filter(|bytes| *bytes != "0")
                {
                    translation.give(
                        "rules.xds.max_message",
                        bytes.to_owned(),
                        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
                    );
                }
            }
            other => translation
                .problems
                .push(format!("CONFIG_TYPE: `{other}` is not allowed; FILE and GRPC_XDS_SOTW are")),
        }
    }
}

#[cfg(test)]
mod tests;
