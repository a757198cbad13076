//! The catalog of all settings.

use std::time::Duration;

use crate::settings::{
    MemoryShare, Setting,
    value_type::{
        ADVERTISED_ADDRESS, CERTIFICATE_NAMES, COUNT, DENIAL_RATE, DESCRIPTOR_TEMPLATE, HEADER_NAME,
        HOST_PORTS, LISTEN_ADDRESS, LOG_FILTER, PAIRS, PATH, REDIS_PREFIX, REDIS_URLS, SOCKET_ADDRESS,
        ValueType::{Bool, Bytes, CountOrAuto, FileMode, OneOf, OrAuto, OrOff, Size, Time, TimeRange},
        WORD, XDS_URL, count, number, status,
    },
};

/// Makes the catalog of rows: name, type of the value, default and help.
macro_rules! settings {
    ($($name:literal: $value_type:expr => $default:literal $help:literal;)*) => {
        /// All settings, in the order of the documentation.
        pub const CATALOG: &[Setting] =
            &[$(Setting { name: $name, value_type: $value_type, default: $default, help: $help }),*];
    };
}

settings! {
    "rules.source": OneOf(&["files", "xds"]) => "files"
        "Source of the rules: files, or xds for a control plane.";
    "rules.path": OrOff(&PATH) => "off"
        "Rule file, or directory of rule files. Must be set unless rules.source is xds, which does not read it.";
    "rules.poll_interval": Time => "3s"
        "Interval between comparisons of the rule files with the active rules, in addition to file system events.";
    "rules.required": Bool => "true"
        "Whether the replica is ready only once rules are loaded. Otherwise /healthcheck answers 200 from the start.";
    "rules.overlay": OrOff(&PATH) => "off"
        "File that adds algorithms and other keys to the rules of a control plane; it is compared every rules.poll_interval too.";
    "rules.xds.url": OrOff(&XDS_URL) => "off"
        "Address of the control plane: http://HOST:PORT, or https://HOST:PORT for TLS.";
    "rules.xds.node_id": WORD => "tollgate"
        "Name of this client, by which the control plane chooses the rules.";
    "rules.xds.node_metadata": OrOff(&PAIRS) => "off"
        "Metadata of this client, for the control plane to choose by: NAME=VALUE, separated by commas or in several flags.";
    "rules.xds.headers": OrOff(&PAIRS) => "off"
        "Headers of the stream to the control plane: NAME=VALUE, separated by commas or in several flags.";
    "rules.xds.ca": OrOff(&PATH) => "off"
        "CA certificates that the certificate of the control plane must be signed by, in PEM; off for those of the system.";
    "rules.xds.cert": OrOff(&PATH) => "off"
        "Certificate chain to show to the control plane, in PEM; read again for each connection.";
    "rules.xds.key": OrOff(&PATH) => "off"
        "Private key of the certificate, in PEM.";
    "rules.xds.server_name": OrOff(&WORD) => "off"
        "Name that the certificate of the control plane must have; off for the host of rules.xds.url.";
    "rules.xds.max_message": Bytes { min: 64 << 10, max: 1 << 30 } => "64MiB"
        "Maximum size of a response of the control plane, which has all rules.";
    "rules.xds.retry_min": TimeRange { min: Duration::from_millis(10), max: Duration::from_secs(3600) } => "500ms"
        "First delay before a lost control plane is called again; each further one is twice as long, and up to half of it is left out at random.";
    "rules.xds.retry_max": TimeRange { min: Duration::from_millis(10), max: Duration::from_secs(3600) } => "30s"
        "Largest delay before a lost control plane is called again.";
    "grpc.listen": LISTEN_ADDRESS => "0.0.0.0:8081"
        "Address of the gRPC listener: an IP address and a port, or unix:/path/to.sock.";
    "grpc.socket_mode": FileMode => "0660"
        "Mode of a Unix socket, as in chmod.";
    "grpc.tls_cert": OrOff(&PATH) => "off"
        "Certificate chain of the listener, in PEM; without it the listener speaks plaintext.";
    "grpc.tls_key": OrOff(&PATH) => "off"
        "Private key of the certificate, in PEM.";
    "grpc.tls_client_ca": OrOff(&PATH) => "off"
        "CA certificates that client certificates must be signed by, in PEM. Without them, clients need no certificate.";
    "grpc.tls_client_san": OrOff(&CERTIFICATE_NAMES) => "off"
        "Names of which a client certificate must have at least one: hosts, URIs or IP addresses, separated by commas.";
    "grpc.max_connections": CountOrAuto(MemoryShare::GrpcConnections) => "auto"
        "Maximum number of gRPC connections; further ones are closed at once. auto: as many as fit into 16 % of the memory at 64 KiB each, from 100 to 10000.";
    "grpc.max_concurrent_streams": COUNT => "1000"
        "Maximum number of concurrent calls on one gRPC connection; clients hold back further calls.";
    "grpc.max_connection_age": Time => "30m"
        "Maximum age of a gRPC connection, give or take a fifth; then GOAWAY asks the client to reconnect.";
    "grpc.max_connection_age_grace": Time => "5m"
        "Time for calls that are open at that age to finish.";
    "grpc.keepalive_interval": Time => "1m"
        "Interval between keepalive pings on a gRPC connection.";
    "grpc.keepalive_timeout": Time => "20s"
        "Time to wait for the keepalive answer before the connection is closed.";
    "grpc.handshake_timeout": Time => "10s"
        "Time for the handshake of a new gRPC connection, TLS included.";
    "http.listen": SOCKET_ADDRESS => "0.0.0.0:8080"
        "Address of the HTTP listener, for probes and POST /json.";
    "http.tls_cert": OrOff(&PATH) => "off"
        "Certificate chain of the listener, in PEM; without it the listener speaks plaintext.";
    "http.tls_key": OrOff(&PATH) => "off"
        "Private key of the certificate, in PEM.";
    "http.tls_client_ca": OrOff(&PATH) => "off"
        "CA certificates that client certificates must be signed by, in PEM. Without them, clients need no certificate.";
    "http.tls_client_san": OrOff(&CERTIFICATE_NAMES) => "off"
        "Names of which a client certificate must have at least one: hosts, URIs or IP addresses, separated by commas.";
    "http.max_connections": CountOrAuto(MemoryShare::HttpConnections) => "auto"
        "Maximum number of HTTP connections. auto: as many as fit into 4 % of the memory at 32 KiB each, from 100 to 1000.";
    "http.header_timeout": Time => "30s"
        "Time for the TLS handshake, and for the header of each HTTP request, also on the admin listener; an idle connection is closed after it.";
    "admin.listen": SOCKET_ADDRESS => "127.0.0.1:6070"
        "Address of the admin listener; any address but a loopback one requires admin.token_file.";
    "admin.token_file": OrOff(&PATH) => "off"
        "File with the bearer token that admin requests must contain; read for each request, so that it can be replaced.";
    "metrics.listen": SOCKET_ADDRESS => "0.0.0.0:9090"
        "Address of the metrics listener, from which Prometheus scrapes /metrics.";
    "metrics.max_connections": COUNT => "100"
        "Maximum number of connections to the metrics listener; further ones are closed at once.";
    "metrics.names_per_rule": number(10_000) => "100"
        "Maximum number of names in metrics of a rule with value_to_metric or detailed_metric; further names count as other.";
    "metrics.top_keys": number(100_000) => "1000"
        "Number of keys tracked to find the most denied ones, for /top; 0 disables tracking.";
    "metrics.reference_names": Bool => "false"
        "Whether the metrics of rules are also served under the names of envoyproxy/ratelimit.";
    "limiter.quota_mode": Bool => "false"
        "Refuse a request only if all its descriptors are refused, as if all rules had quota_mode.";
    "limiter.shadow_mode": Bool => "false"
        "Let requests pass that would be refused; the statuses of their descriptors still show the decision.";
    "check.domain": OrOff(&WORD) => "off"
        "Domain of the rules for requests to /check of the HTTP listener.";
    "check.descriptors": OrOff(&DESCRIPTOR_TEMPLATE) => "off"
        "Descriptors of these requests: entries key={header} or key=text, separated by commas, descriptors by semicolons. A descriptor without one of its headers is left out. Without them there is no /check.";
    "check.denied_status": status(400) => "429"
        "Status of a refused request; auth_request of NGINX needs 403.";
    "check.failure_status": status(200) => "503"
        "Status of a request that cannot be decided; 200 lets it pass.";
    "headers.x_ratelimit": Bool => "false"
        "Add the headers X-RateLimit-Limit, -Remaining and -Reset to responses.";
    "headers.ratelimit": Bool => "false"
        "Add the headers RateLimit-Limit, -Remaining and -Reset of envoyproxy/ratelimit to responses.";
    "headers.limit_name": HEADER_NAME => "RateLimit-Limit"
        "Name of the RateLimit-Limit header.";
    "headers.remaining_name": HEADER_NAME => "RateLimit-Remaining"
        "Name of the RateLimit-Remaining header.";
    "headers.reset_name": HEADER_NAME => "RateLimit-Reset"
        "Name of the RateLimit-Reset header.";
    "headers.ietf": Bool => "false"
        "Add the headers RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-09 to responses.";
    "headers.retry_after": Bool => "false"
        "Add the header Retry-After to refusals.";
    "admin.record": OrOff(&OneOf(&["hashed", "plain"])) => "off"
        "Whether /record may show the requests that are decided: with hashes of the values of descriptors, or with the values.";
    "admin.max_connections": COUNT => "100"
        "Maximum number of connections to the admin listener; further ones are closed at once.";
    "tls.poll_interval": Time => "3s"
        "Interval between comparisons of the certificate files with the active certificates.";
    "api.dynamic_metadata": Bool => "false"
        "Add dynamic metadata to responses, for the access logs of the caller.";
    "api.exact_reset": Bool => "false"
        "Send the time until reset with nanoseconds instead of rounding up to whole seconds.";
    "api.max_descriptors": COUNT => "256"
        "Maximum number of descriptors in a request; larger requests are refused with INVALID_ARGUMENT.";
    "api.max_entries": COUNT => "128"
        "Maximum number of entries in a descriptor; requests with larger descriptors are refused with INVALID_ARGUMENT.";
    "api.max_requests": COUNT => "256"
        "Maximum number of requests in a call of tollgate.v1; larger calls are refused with INVALID_ARGUMENT.";
    "api.request_id_window": TimeRange { min: Duration::from_secs(1), max: Duration::from_secs(24 * 60 * 60) } => "60s"
        "Time for which a charge with a request_id is remembered at least, so that a repeated one counts once.";
    "memory.requests": Size(MemoryShare::Requests) => "auto"
        "Maximum memory for incomplete requests; beyond it the oldest are refused. auto: 10 % of the memory available to the process.";
    "memory.replies": Size(MemoryShare::Replies) => "auto"
        "Maximum memory for unsent replies; beyond it, further calls of slow clients wait. auto: 10 % of the memory available to the process.";
    "store.kind": OneOf(&["memory", "redis"]) => "memory"
        "Place of the counters: memory, or redis for servers of Redis or Valkey that all replicas share.";
    "store.redis.urls": OrOff(&REDIS_URLS) => "off"
        "Addresses of the servers, or of the sentinels: redis://HOST:PORT, or rediss://HOST:PORT for TLS, separated by commas or in several flags.";
    "store.redis.mode": OneOf(&["standalone", "sentinel", "cluster"]) => "standalone"
        "Kind of servers: standalone for the first address, sentinel for the master that sentinels name, or cluster.";
    "store.redis.sentinel_service": WORD => "mymaster"
        "Name of the service whose master the sentinels name.";
    "store.redis.username": OrOff(&WORD) => "off"
        "User of the access control list of the servers; off for the default user.";
    "store.redis.password_file": OrOff(&PATH) => "off"
        "File with the password for the servers. A changed password is used at the next tls.poll_interval.";
    "store.redis.sentinel_password_file": OrOff(&PATH) => "off"
        "File with the password for the sentinels.";
    "store.redis.ca": OrOff(&PATH) => "off"
        "CA certificates that the servers' certificates must be signed by, in PEM; off for those of the system.";
    "store.redis.cert": OrOff(&PATH) => "off"
        "Certificate chain to show to the servers, in PEM.";
    "store.redis.key": OrOff(&PATH) => "off"
        "Private key of the certificate, in PEM.";
    "store.redis.connections": count(64) => "1"
        "Connections to each server.";
    "store.redis.timeout": TimeRange { min: Duration::from_millis(1), max: Duration::from_secs(60) } => "500ms"
        "Maximum time to wait for the servers; at most half of the caller's timeout is used.";
    "store.redis.prefix": REDIS_PREFIX => "tollgate:"
        "First part of every key. Replicas with the same prefix share their counters.";
    "store.redis.unready_without_store": Bool => "false"
        "Whether the replica is not ready while the servers cannot be used. Otherwise it decides as on_owner_unavailable of each rule says.";
    "store.memory_limit": Size(MemoryShare::Counters) => "auto"
        "Maximum memory for counters, or with store.kind redis for their last known values. auto: 50 % of the memory available to the process.";
    "store.on_full": OneOf(&["deny", "allow"]) => "deny"
        "Decision for a new key when the memory for counters is full: deny it, or allow it uncounted.";
    "store.snapshot": OrOff(&PATH) => "off"
        "Snapshot file to which counters are written, so that they survive a restart.";
    "store.snapshot_every": Time => "10s"
        "Interval between snapshots; another one is written at shutdown.";
    "cluster.listen": OrOff(&SOCKET_ADDRESS) => "off"
        "Address of the listener for other replicas; off for a single replica.";
    "cluster.advertise": OrAuto(&ADVERTISED_ADDRESS) => "auto"
        "Address that other replicas connect to: HOST:PORT, or an IP address with the port of cluster.listen. auto: cluster.listen, or if that is a wildcard address, the local address of the route to the seeds.";
    "cluster.seed": OrOff(&HOST_PORTS) => "off"
        "Addresses of other replicas: HOST:PORT, separated by commas or in several flags; a name may resolve to several addresses.";
    "cluster.secret_file": OrOff(&PATH) => "off"
        "File with the shared secrets of the members, one per line: the first is presented, all are accepted.";
    "cluster.cert": OrOff(&PATH) => "off"
        "Certificate chain for links to other replicas, in PEM, valid for client and server use; replaces the secret.";
    "cluster.key": OrOff(&PATH) => "off"
        "Private key of the certificate, in PEM.";
    "cluster.ca": OrOff(&PATH) => "off"
        "CA certificates that member certificates must be signed by, in PEM.";
    "cluster.forward_budget_max": TimeRange { min: Duration::from_millis(1), max: Duration::from_secs(60) } => "500ms"
        "Maximum time to wait for another replica; at most half of the caller's timeout is used.";
    "cluster.backup_interval": OrOff(&TimeRange { min: Duration::from_millis(20), max: Duration::from_secs(10) }) => "100ms"
        "Interval between backups of changed counters to their backup owner; a crash loses at most this much.";
    "cluster.forget_after": TimeRange { min: Duration::from_secs(2), max: Duration::from_secs(60 * 60) } => "30s"
        "Time without contact after which a replica is declared dead and its slots are recovered.";
    "cluster.lease_from": OrOff(&COUNT) => "500"
        "Forwarded requests per second for one key from which a replica is granted a lease on part of the limit.";
    "drain.delay": Time => "5s"
        "Time to continue serving after SIGTERM while not ready.";
    "drain.timeout": Time => "25s"
        "Maximum duration of the shutdown, drain.delay and the last snapshot included.";
    "log.level": LOG_FILTER => "info"
        "Log level: error, warn, info, debug, trace or off, also per module, as in info,tollgate::rules=debug. Libraries log errors only, unless their module is named, as in info,h2=warn.";
    "log.format": OneOf(&["text", "json"]) => "text"
        "Log format: text or json.";
    "log.denials": DENIAL_RATE => "off"
        "Maximum number of denials logged per second, as in 10/s, with rule, descriptor and limit; off logs none.";
}
