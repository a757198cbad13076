//! The catalog of all settings.

use std::{net::SocketAddr, num::NonZeroU16, path::PathBuf, time::Duration};

use axum::http::HeaderName;
use tollgate_limiter::limiter;
use tollgate_shared_store::is_prefix;
use tollgate_sources::{RuleLocation, RuleSourceKind, url::UrlTemplate, xds};
use tollgate_store::OnFull;
use tollgate_telemetry::logs::{self, LogFormat};

use crate::{
    api::{self, denial_body::DefaultBody, forward_auth, headers::Listed, recorder::RecordedValues},
    settings::{
        listeners::{CertificateName, ListenAddress},
        memory::{ConnectionShare, MemoryShare},
        value_type::{
            COUNT_MAX, LimitStoreKind, Parser, ProgramPart, RedisMode, Setting, StoreKind, URL,
            advertised_address, boolean, bytes, certificate_names, connections, count, file_mode, host_names,
            host_ports, integer, one_of, or_auto, or_off, pairs, path, rate, read, redis_urls, size,
            socket_address, text, time, time_between, word,
        },
    },
};

mod table;

use table::{section, settings};

/// The accepted texts of single settings, for messages.
const LISTEN_ADDRESS: &str = "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or a socket, as in unix:/run/tollgate.sock";
const TEMPLATE: &str = "key=text, key={header} or key={header|filter}, entries separated by commas, descriptors by semicolons; filters are first_segment, path, first, last, nth-trusted:N, without_port, lower and whole, and optional for a header that may be missing";
const REDIS_PREFIX: &str = "1 to 64 visible characters without braces, brackets, `*`, `?` and `\\`";
const PROBLEM_TYPE: &str = "a URI of at most 1024 visible ASCII characters";
const LOG_LEVEL: &str = "error, warn, info, debug, trace or off, also per module";

/// The bounds of `store.redis.timeout`.
pub(super) const REDIS_TIMEOUT_MIN: Duration = millis(1);
pub(super) const REDIS_TIMEOUT_MAX: Duration = secs(60);
/// The most connections to each Redis server.
pub(super) const REDIS_CONNECTIONS_MAX: u64 = 64;

settings! {
    "rules." Always "Rules" struct rules: Rules {
        source: RuleSourceKind = one_of(&[("files", RuleSourceKind::Files), ("xds", RuleSourceKind::Xds)]) => "files"
            "Source of the rules: files, also one at a URL, or xds for a control plane.";
        path as "rules": Option<RuleLocation> = or_off(read("PATH|URL", RuleLocation::EXPECTED)) => "off"
            "Rule file, directory of rule files, or the URL of a rule file. Must be set unless rules.source is xds, which does not read it.";
        poll_interval: Duration = time() => "3s"
            "Interval between comparisons of the rule files with the active rules, in addition to file system events.";
        required: bool = boolean() => "true"
            "Whether rules.path must exist at the start, and the replica is ready only once rules are loaded. Otherwise /healthcheck answers 200 from the start.";
        overlay: Option<PathBuf> = or_off(path()) => "off"
            "File that adds algorithms and other keys to the rules of a control plane; it is compared every rules.poll_interval too.";
    }
    "rules.url." RulesUrl "Rules from a URL" struct url: RulesUrl {
        interval: Duration = time_between(secs(1), secs(24 * 60 * 60)) => "30s"
            "Time between two requests for the rules, up to a fifth of which is left out at random. A request that fails is repeated sooner.";
        timeout: Duration = time_between(millis(100), secs(5 * 60)) => "10s"
            "Maximum time for a whole answer, connection and redirects included.";
        max_bytes: u64 = bytes(1 << 10..=16 << 20) => "16MiB"
            "Maximum size of the rules.";
        ca: Option<PathBuf> = or_off(path()) => "off"
            "CA certificates that the certificate of the server must be signed by, in PEM; off for those of the system.";
        cert: Option<PathBuf> = or_off(path()) => "off"
            "Certificate chain to show to the server, in PEM; read again for each request.";
        key: Option<PathBuf> = or_off(path()) => "off"
            "Private key of the certificate, in PEM.";
        server_name: Option<String> = or_off(word()) => "off"
            "Name that the certificate of the server must have; off for the host of the URL.";
        token_file: Option<PathBuf> = or_off(path()) => "off"
            "File with a bearer token for the server; read again for each request.";
        redirects: u32 = integer("N", "a number", 0..=10) => "0"
            "Maximum number of redirects that are followed for an answer. Another host gets neither the token nor the certificate, another folder no token, and none leads from https to http.";
        plaintext: bool = boolean() => "false"
            "Whether an http URL may name another host than a loopback address. The rules and the token can then be read and changed on the way.";
        copy: Option<PathBuf> = or_off(path()) => "off"
            "File in which the last rules that were loaded are kept, for a start without the server.";
    }
    "rules.xds." RulesXds "Rules from a control plane" struct xds: Xds {
        url: Option<String> = or_off(text(URL, "http://HOST:PORT or https://HOST:PORT", xds::is_url)) => "off"
            "Address of the control plane: http://HOST:PORT, or https://HOST:PORT for TLS.";
        node_id: String = word() => "tollgate"
            "Name of this client, by which the control plane chooses the rules.";
        node_metadata: Vec<(String, String)> = pairs() => "off"
            "Metadata of this client, for the control plane to choose by: NAME=VALUE, separated by commas or in several flags.";
        headers: Vec<(String, String)> = pairs() => "off"
            "Headers of the stream to the control plane: NAME=VALUE, separated by commas or in several flags.";
        ca: Option<PathBuf> = or_off(path()) => "off"
            "CA certificates that the certificate of the control plane must be signed by, in PEM; off for those of the system.";
        cert: Option<PathBuf> = or_off(path()) => "off"
            "Certificate chain to show to the control plane, in PEM; read again for each connection.";
        key: Option<PathBuf> = or_off(path()) => "off"
            "Private key of the certificate, in PEM.";
        server_name: Option<String> = or_off(word()) => "off"
            "Name that the certificate of the control plane must have; off for the host of rules.xds.url.";
        max_message: u64 = bytes(64 << 10..=1 << 30) => "64MiB"
            "Maximum size of a response of the control plane, which has all rules.";
        retry_min: Duration = time_between(millis(10), secs(3600)) => "500ms"
            "First delay before a lost control plane is called again; each further one is twice as long, and up to half of it is left out at random.";
        retry_max: Duration = time_between(millis(10), secs(3600)) => "30s"
            "Largest delay before a lost control plane is called again.";
    }
    "grpc." Always "gRPC" struct grpc: Grpc {
        listen: ListenAddress = read("ADDRESS:PORT", LISTEN_ADDRESS) => "0.0.0.0:8081"
            "Address of the gRPC listener: an IP address and a port, or unix:/path/to.sock.";
        socket_mode: u32 = file_mode() => "0660"
            "Mode of a Unix socket, as in chmod.";
        max_connections: usize = connections(ConnectionShare::GRPC) => "auto"
            "Maximum number of gRPC connections; further ones are closed at once. auto: as many as fit into 16 % of the memory at 64 KiB each, from 100 to 10000.";
        max_concurrent_streams: u32 = count(COUNT_MAX) => "1000"
            "Maximum number of concurrent calls on one gRPC connection; clients hold back further calls.";
        max_connection_age: Duration = time() => "30m"
            "Maximum age of a gRPC connection, give or take a fifth; then GOAWAY asks the client to reconnect.";
        max_connection_age_grace: Duration = time() => "5m"
            "Time for calls that are open at that age to finish.";
        keepalive_interval: Duration = time() => "1m"
            "Interval between keepalive pings on a gRPC connection.";
        keepalive_timeout: Duration = time() => "20s"
            "Time to wait for the keepalive answer before the connection is closed.";
        handshake_timeout: Duration = time() => "10s"
            "Time for the handshake of a new gRPC connection, TLS included.";
    }
    "grpc.tls_" Always "gRPC" struct grpc_tls: TlsFiles {
        cert: Option<PathBuf> = or_off(path()) => "off"
            "Certificate chain of the listener, in PEM; without it the listener speaks plaintext.";
        key: Option<PathBuf> = or_off(path()) => "off"
            "Private key of the certificate, in PEM.";
        client_ca: Option<PathBuf> = or_off(path()) => "off"
            "CA certificates that client certificates must be signed by, in PEM. Without them, clients need no certificate.";
        client_san: Vec<CertificateName> = certificate_names() => "off"
            "Names of which a client certificate must have at least one: hosts, URIs or IP addresses, separated by commas.";
    }
    "http." Always "HTTP" struct http: Http {
        listen: SocketAddr = socket_address() => "0.0.0.0:8080"
            "Address of the HTTP listener, for probes and POST /json.";
        max_connections: usize = connections(ConnectionShare::HTTP) => "auto"
            "Maximum number of HTTP connections. auto: as many as fit into 4 % of the memory at 32 KiB each, from 100 to 1000.";
        header_timeout: Duration = time() => "30s"
            "Time for the TLS handshake, and for the header of each HTTP request, also on the admin listener; an idle connection is closed after it.";
        hosts: Vec<String> = host_names() => "off"
            "Names, without ports, under which POST /json and /v1 may be asked, beside addresses, localhost, names without a dot and names that end with .svc or .svc.cluster.local. If there are any, /check requires one of all these, and GET /check under one of these names requires no header of a gateway.";
    }
    "http.tls_" Always "HTTP" use http_tls: TlsFiles {
        cert: Option<PathBuf> = or_off(path()) => "off"
            "Certificate chain of the listener, in PEM; without it the listener speaks plaintext.";
        key: Option<PathBuf> = or_off(path()) => "off"
            "Private key of the certificate, in PEM.";
        client_ca: Option<PathBuf> = or_off(path()) => "off"
            "CA certificates that client certificates must be signed by, in PEM. Without them, clients need no certificate.";
        client_san: Vec<CertificateName> = certificate_names() => "off"
            "Names of which a client certificate must have at least one: hosts, URIs or IP addresses, separated by commas.";
    }
    "admin." Always "Admin" struct admin: Admin {
        listen: SocketAddr = socket_address() => "127.0.0.1:6070"
            "Address of the admin listener; any address but a loopback one requires admin.token_file.";
        token_file: Option<PathBuf> = or_off(path()) => "off"
            "File with the bearer token that admin requests must contain; read for each request, so that it can be replaced.";
        limits_san: Vec<CertificateName> = certificate_names() => "off"
            "Names that let a client certificate call for limits of keys without the token, on listeners with tls_client_ca.";
        record: Option<RecordedValues> = or_off(one_of(&[("hashed", RecordedValues::Hashed), ("plain", RecordedValues::Plain)])) => "off"
            "Whether /record may show the requests that are decided: with hashes of the values of descriptors, or with the values.";
        max_connections: usize = count(COUNT_MAX) => "100"
            "Maximum number of connections to the admin listener; a further one closes the connection that has been idle for longest.";
    }
    "metrics." Always "Metrics" struct metrics: Metrics {
        listen: SocketAddr = socket_address() => "0.0.0.0:9090"
            "Address of the metrics listener, from which Prometheus scrapes /metrics.";
        max_connections: usize = count(COUNT_MAX) => "100"
            "Maximum number of connections to the metrics listener; a further one closes the connection that has been idle for longest.";
        names_per_rule: usize = integer("NUMBER", "a number", 0..=10_000) => "100"
            "Maximum number of names in metrics of a rule with value_to_metric or detailed_metric; further names count as other.";
        top_keys: usize = integer("NUMBER", "a number", 0..=100_000) => "1000"
            "Number of keys tracked to find the most denied ones, for /top; 0 disables tracking.";
        reference_names: bool = boolean() => "false"
            "Whether the metrics of rules are also served under the names of envoyproxy/ratelimit.";
    }
    "limiter." Always "Decisions" use limiter: limiter::Modes {
        quota_mode: bool = boolean() => "false"
            "Refuse a request only if all its descriptors are refused, as if all rules had quota_mode.";
        shadow_mode: bool = boolean() => "false"
            "Let requests pass that would be refused; the statuses of their descriptors still show the decision.";
    }
    "check." Always "Decisions by headers (/check)" use check: forward_auth::ForwardAuthSettings {
        domain: Option<String> = or_off(word()) => "off"
            "Domain of the rules for requests to /check of the HTTP listener.";
        descriptors: Option<forward_auth::HeaderTemplate> = or_off(read("TEMPLATE", TEMPLATE)) => "off"
            "Descriptors of these requests: entries key={header} or key=text, separated by commas, descriptors by semicolons. {header|filter} takes a part of the value; without a filter, the last address of X-Forwarded-For and the path of a URI. A request that lacks a header gets 400; {header|optional} leaves its descriptor out instead. Without descriptors there is no /check.";
        denied_status: u16 = integer("STATUS", "a status", 400..=599) => "429"
            "Status of a refused request; auth_request of NGINX needs 403.";
        failure_status: u16 = integer("STATUS", "a status", 200..=599) => "503"
            "Status of a request that cannot be decided; 200 lets it pass.";
    }
    "headers." Always "Response headers" use headers: api::headers::HeaderSettings {
        x_ratelimit: bool = boolean() => "false"
            "Add the headers X-RateLimit-Limit, -Remaining and -Reset to responses.";
        ratelimit: bool = boolean() => "false"
            "Add the headers RateLimit-Limit, -Remaining and -Reset of envoyproxy/ratelimit to responses.";
        limit_name: String = text("NAME", "the name of an HTTP header", |text| HeaderName::try_from(text).is_ok()) => "RateLimit-Limit"
            "Name of the RateLimit-Limit header.";
        remaining_name: String = text("NAME", "the name of an HTTP header", |text| HeaderName::try_from(text).is_ok()) => "RateLimit-Remaining"
            "Name of the RateLimit-Remaining header.";
        reset_name: String = text("NAME", "the name of an HTTP header", |text| HeaderName::try_from(text).is_ok()) => "RateLimit-Reset"
            "Name of the RateLimit-Reset header.";
        ietf: Option<Listed> = or_off(one_of(&[("tightest", Listed::Tightest), ("all", Listed::All)])) => "off"
            "Add the headers RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-11 to responses, with the tightest limit or with all limits of the call.";
        window_max: Duration = time_between(secs(1), secs(100 * 365 * 86_400)) => "8784h"
            "Longest window (w) and time until reset (t) in these two headers; longer ones are left out.";
        partition_key: bool = boolean() => "false"
            "Add to these two headers a hash of the key that is limited (pk).";
        retry_after: bool = boolean() => "false"
            "Add the header Retry-After to refusals.";
        retry_jitter: Duration = time_between(Duration::ZERO, secs(3_600)) => "0s"
            "Up to this time is added at random to the time to retry of each refusal, so that clients that were refused together do not return together.";
        ai_retry: bool = boolean() => "false"
            "Add the headers retry-after-ms and, where waiting does not help, x-should-retry: false to refusals, for clients of AI services.";
        ai_retry_max: Duration = time_between(Duration::ZERO, secs(86_400)) => "60s"
            "Longest wait that helps these clients.";
    }
    "denial." Always "Bodies of refusals" use denial: api::denial_body::DenialBodySettings {
        body: Option<DefaultBody> = or_off(one_of(&[("problem", DefaultBody::Problem)])) => "off"
            "Body of refusals by rules that have no denial_body: problem for application/problem+json with the names of the limits and the time to retry.";
        problem_type: String = text("URI", PROBLEM_TYPE, is_uri) => "https://iana.org/assignments/http-problem-types#quota-exceeded"
            "Type of the problem that a limit is exceeded, a URI.";
        degraded_problem_type: String = text("URI", PROBLEM_TYPE, is_uri) => "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            "Type of the problem if the request was refused without the owner of its counter, which could not be reached.";
    }
    "tls." Always "Certificate files" struct certificates: CertificateReload {
        poll_interval: Duration = time() => "3s"
            "Interval between comparisons of the certificate files with the active certificates.";
    }
    "api." Always "Requests and responses" use api: api::ApiSettings {
        dynamic_metadata: bool = boolean() => "false"
            "Add dynamic metadata to responses, for the access logs of the caller.";
        exact_reset: bool = boolean() => "false"
            "Send the time until reset with nanoseconds instead of rounding up to whole seconds.";
        max_descriptors: usize = count(COUNT_MAX) => "256"
            "Maximum number of descriptors in a request; larger requests are refused with INVALID_ARGUMENT.";
        max_entries: usize = count(COUNT_MAX) => "128"
            "Maximum number of entries in a descriptor; requests with larger descriptors are refused with INVALID_ARGUMENT.";
        max_requests: usize = count(COUNT_MAX) => "256"
            "Maximum number of requests in a call of tollgate.v1; larger calls are refused with INVALID_ARGUMENT.";
        request_id_window: Duration = time_between(secs(1), secs(24 * 60 * 60)) => "60s"
            "Time for which a charge or refund with a request_id is remembered at least, so that a repeated one counts once.";
    }
    "rlqs." Always "Rate limit quota service" use rlqs: tollgate_quota::QuotaSettings {
        enabled: bool = boolean() => "false"
            "Whether Envoy's rate limit quota service is served on the gRPC port. Only with store.kind memory.";
        memory: u64 = size(MemoryShare::QUOTAS) => "auto"
            "Maximum memory for streams of quotas, their buckets and the divisions of these. Once half is used, a caller gets at most a quarter of what others leave; beyond it streams are refused with RESOURCE_EXHAUSTED, and buckets get no assignment. auto: 5 % of the memory available to the process.";
        max_pairs: usize = count(COUNT_MAX) => "32"
            "Maximum number of pairs of a bucket; buckets with more get no assignment.";
        max_id_bytes: usize = count(COUNT_MAX) => "8192"
            "Maximum size of the keys and values of a bucket in bytes; larger buckets get no assignment.";
    }
    "memory." Always "Memory of requests and replies" struct memory: Memory {
        requests: u64 = size(MemoryShare::REQUESTS) => "auto"
            "Maximum memory for incomplete requests, and for those that wait for their decision; beyond it the oldest incomplete ones are refused. auto: 10 % of the memory available to the process.";
        replies: u64 = size(MemoryShare::REPLIES) => "auto"
            "Maximum memory for unsent replies; beyond it, further calls of slow clients wait. auto: 10 % of the memory available to the process.";
    }
    "store." Always "Counters" struct store: Store {
        kind: StoreKind = one_of(&[("memory", StoreKind::Memory), ("redis", StoreKind::Redis)]) => "memory"
            "Place of the counters: memory, or redis for servers of Redis or Valkey that all replicas share.";
        memory_limit: u64 = size(MemoryShare::COUNTERS) => "auto"
            "Maximum memory for counters, or with store.kind redis for their last known values. auto: 50 % of the memory available to the process.";
    }
    "store.redis." Redis "Counters in Redis or Valkey" struct redis: Redis {
        urls: Vec<String> = redis_urls() => "off"
            "Addresses of the servers, or of the sentinels: redis://HOST:PORT, or rediss://HOST:PORT for TLS, separated by commas or in several flags.";
        mode: RedisMode = one_of(&[("standalone", RedisMode::Standalone), ("sentinel", RedisMode::Sentinel), ("cluster", RedisMode::Cluster)]) => "standalone"
            "Kind of servers: standalone for the first address, sentinel for the master that sentinels name, or cluster.";
        sentinel_service: String = word() => "mymaster"
            "Name of the service whose master the sentinels name.";
        username: Option<String> = or_off(word()) => "off"
            "User of the access control list of the servers; off for the default user.";
        password_file: Option<PathBuf> = or_off(path()) => "off"
            "File with the password for the servers. A changed password is used at the next tls.poll_interval.";
        sentinel_username: Option<String> = or_off(word()) => "off"
            "User of the access control list of the sentinels; off for the default user.";
        sentinel_password_file: Option<PathBuf> = or_off(path()) => "off"
            "File with the password for the sentinels.";
        ca: Option<PathBuf> = or_off(path()) => "off"
            "CA certificates that the servers' certificates must be signed by, in PEM; off for those of the system.";
        cert: Option<PathBuf> = or_off(path()) => "off"
            "Certificate chain to show to the servers, in PEM.";
        key: Option<PathBuf> = or_off(path()) => "off"
            "Private key of the certificate, in PEM.";
        connections: usize = count(REDIS_CONNECTIONS_MAX) => "1"
            "Connections to each server.";
        timeout: Duration = time_between(REDIS_TIMEOUT_MIN, REDIS_TIMEOUT_MAX) => "500ms"
            "Maximum time to wait for the servers; at most half of the caller's timeout is used.";
    }
    "store.redis." RedisCounters "Counters in Redis or Valkey" struct redis_counters: RedisCounters {
        prefix: String = text("TEXT", REDIS_PREFIX, is_prefix) => "tollgate:"
            "First part of every key. Replicas with the same prefix share their counters.";
        unready_without_store: bool = boolean() => "false"
            "Whether the replica is not ready while the servers cannot be used. Otherwise it decides as on_owner_unavailable of each rule says.";
    }
    "limits." Always "Limits of keys from a store" struct limits: Limits {
        source: Option<LimitStoreKind> = one_of(&[("none", None), ("redis", Some(LimitStoreKind::Redis)), ("url", Some(LimitStoreKind::Url))]) => "none"
            "Store that names limits of keys, for rules with own: {from: source}: redis for the servers of store.redis, or url.";
    }
    "limits." LimitsUrl "Limits of keys from a store" struct limit_url: LimitUrl {
        url: Option<UrlTemplate> = or_off(read(URL, UrlTemplate::EXPECTED)) => "off"
            "URL of the limit of a key. The settings of rules.url apply too, but interval and copy.";
    }
    "limits." Limits "Limits of keys from a store" struct limit_calls: LimitCalls {
        wait: Duration = time_between(Duration::ZERO, secs(1)) => "5ms"
            "Maximum time to wait for the limit of a key that is not cached; then its rule decides.";
    }
    "limits.redis." LimitsRedis "Limits of keys from a store" struct limit_redis: LimitRedis {
        prefix: String = text("TEXT", REDIS_PREFIX, is_prefix) => "limits:"
            "First part of the key of each limit.";
    }
    "limits.cache." Limits "Limits of keys from a store" struct limit_cache: LimitCacheSize {
        entries: usize = count(100_000_000) => "1000000"
            "Size of the cache in entries of 120 bytes. A key without a limit takes 72 bytes, another one about 180.";
        ttl: Duration = time_between(millis(100), secs(24 * 60 * 60)) => "30s"
            "Time after which a limit is read again when it is used.";
        absent_ttl: Duration = time_between(millis(100), secs(24 * 60 * 60)) => "30s"
            "Time after which a key without a limit is looked up again.";
    }
    "store." Memory "Counters" struct counters: Counters {
        on_full: OnFull = one_of(&[("deny", OnFull::Deny), ("allow", OnFull::Allow)]) => "deny"
            "Decision for a new key when the memory for counters is full: deny it, or allow it uncounted.";
        snapshot as "snapshot": Option<PathBuf> = or_off(path()) => "off"
            "Snapshot file to which counters are written, so that they survive a restart.";
        snapshot_every: Duration = time() => "10s"
            "Interval between snapshots; another one is written at shutdown.";
    }
    "cluster." Cluster "Cluster" struct links: Links {
        listen: Option<SocketAddr> = or_off(socket_address()) => "off"
            "Address of the listener for other replicas; off for a single replica.";
        advertise: Option<String> = or_auto(advertised_address()) => "auto"
            "Address that other replicas connect to: HOST:PORT, or an IP address with the port of cluster.listen. auto: cluster.listen, or if that is a wildcard address, the local address of the route to the seeds.";
        seed: Vec<String> = host_ports() => "off"
            "Addresses of other replicas: HOST:PORT, separated by commas or in several flags; a name may resolve to several addresses.";
        secret_file: Option<PathBuf> = or_off(path()) => "off"
            "File with the shared secrets of the members, one per line: the first is presented, all are accepted.";
        cert: Option<PathBuf> = or_off(path()) => "off"
            "Certificate chain for links to other replicas, in PEM, valid for client and server use; replaces the secret.";
        key: Option<PathBuf> = or_off(path()) => "off"
            "Private key of the certificate, in PEM.";
        ca: Option<PathBuf> = or_off(path()) => "off"
            "CA certificates that member certificates must be signed by, in PEM.";
    }
    "cluster." Cluster "Cluster" use cluster: tollgate_cluster::Tuning {
        forward_budget_max: Duration = time_between(millis(1), secs(60)) => "500ms"
            "Maximum time to wait for another replica; at most half of the caller's timeout is used.";
        backup_interval: Option<Duration> = or_off(time_between(millis(20), secs(10))) => "100ms"
            "Interval between backups of changed counters to their backup owner; a crash loses at most this much.";
        forget_after: Duration = time_between(secs(2), secs(60 * 60)) => "30s"
            "Time without contact after which a replica is declared dead and its slots are recovered.";
        lease_from: Option<u64> = or_off(count(COUNT_MAX)) => "500"
            "Forwarded requests per second for one key from which a replica is granted a lease on part of the limit.";
    }
    "drain." Always "Shutdown" struct drain: Drain {
        delay: Duration = time() => "5s"
            "Time to continue serving after SIGTERM while not ready.";
        timeout: Duration = time() => "25s"
            "Maximum duration of the shutdown, drain.delay and the last snapshot included.";
    }
    "log." Always "Log" use log: logs::LogSettings {
        level: String = text("LEVEL", LOG_LEVEL, |text| logs::filter(text).is_ok()) => "info"
            "Log level: error, warn, info, debug, trace or off, also per module, as in info,tollgate_rules=debug. Libraries log errors only, unless their module is named, as in info,h2=warn.";
        format: LogFormat = one_of(&[("text", LogFormat::Text), ("json", LogFormat::Json)]) => "text"
            "Log format: text or json.";
        denials: Option<NonZeroU16> = rate() => "off"
            "Maximum number of denials logged per second, as in 10/s, with rule, descriptor and limit; off logs none.";
    }
}

impl Setting {
    /// The setting of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        CATALOG.iter().find(|setting| setting.name == name)
    }
}

/// A character that no URI has would be wrong in the type of a problem.
fn is_uri(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    (1..=1024).contains(&text.len()) && text.bytes().all(is_allowed)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
