//! The values of all settings become the settings of the components, if they agree with each other.

use std::{path::PathBuf, time::Duration};

use tollgate_cluster::{ClusterSettings, Files, TRUST_MISSING, Trust, Tuning, link};
use tollgate_limiter::limiter::LimitCacheSettings;
use tollgate_rules::FileSettings;
use tollgate_shared_store::{PasswordSource, PasswordSources, SharedStoreSettings, StoreMode, StoreTlsFiles};
use tollgate_sources::{
    ClientTlsFiles, RuleLocation, RuleSourceKind, RuleSourceSettings, SourceSettings,
    url::{Address, UrlSettings, UrlTemplate},
    xds::{self, XdsSettings},
};

use crate::{
    api::admin::{SettingOrigin, state::EffectiveSetting},
    persistence,
    settings::{
        Drain, Sections, Settings,
        catalog::{
            CATALOG, Counters, LimitCacheSize, LimitCalls, Links, Redis, RedisCounters, Rules, RulesUrl,
            TlsFiles, Xds,
        },
        listeners::{CertificateName, ListenerTlsFiles},
        value_type::{LimitStoreKind, OFF, ProgramPart, RedisMode, Setting, StoreKind},
    },
};

/// Limits of keys that a store names.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// The store.
    pub store: LimitStoreSettings,
    /// The cache.
    pub cache: LimitCacheSettings,
}

/// The store that names limits.
#[derive(Clone, Debug)]
pub enum LimitStoreSettings {
    /// Servers of Redis, and the first part of keys.
    Redis(Box<SharedStoreSettings>, String),
    /// A URL, and how it is asked for.
    Url(Box<UrlSettings>, UrlTemplate),
}

/// What is wrong with settings that are valid one by one.
#[derive(Default)]
struct Conflicts(Vec<String>);

/// The name of a setting in its section, and whether it has a value.
type Named<'n> = (&'n str, bool);

impl Conflicts {
    fn add(&mut self, conflict: impl Into<String>) {
        self.0.push(conflict.into());
    }

    /// Adds a conflict for each setting that has a value and needs another one that has none. Their names follow
    /// `prefix`.
    fn require(&mut self, prefix: &str, needs: &[(Named<'_>, Named<'_>)]) {
        for ((name, _), (needed, _)) in needs.iter().filter(|((_, is_set), (_, is_met))| *is_set && !is_met) {
            self.add(format!("{prefix}{name} needs {prefix}{needed}, which is not set"));
        }
    }
}

impl Sections {
    /// The settings of all components. `given` has the value of each setting as text.
    pub(super) fn settings(self, given: Vec<EffectiveSetting>) -> Result<Settings, Vec<String>> {
        let redis = redis_kind(&given);
        let each = CATALOG.iter().zip(&given);
        let unused = each.filter_map(|(setting, given)| self.unused(setting, given, redis));
        let mut conflicts = Conflicts(unused.collect());
        let rules = self.rule_source(&mut conflicts);
        let limits = self.limit_settings(&mut conflicts);
        let is_redis = self.store.kind == StoreKind::Redis;
        let shared_store = is_redis.then(|| self.redis_settings("store.kind redis", &mut conflicts));
        let limits_san = &self.admin.limits_san;
        let grpc_tls = self.grpc_tls.clone().read("grpc.tls_", limits_san, &mut conflicts);
        let http_tls = self.http_tls.clone().read("http.tls_", limits_san, &mut conflicts);
        let poll_interval = self.certificates.poll_interval;
        let links = (!is_redis).then(|| self.links.clone());
        let cluster = links.and_then(|links| links.read(self.cluster, poll_interval, &mut conflicts));
        let memory_limit = self.store.memory_limit;
        let Counters { on_full, snapshot, snapshot_every } = self.counters.clone();
        let settings = Settings {
            sections: self,
            grpc_tls,
            http_tls,
            rules,
            store: persistence::PersistenceSettings { memory_limit, on_full, snapshot, snapshot_every },
            cluster,
            shared_store,
            limits,
            traces: None,
            backend: None,
            without_effect: Vec::new(),
            given,
        };
        settings.check(redis, &mut conflicts);
        if conflicts.0.is_empty() { Ok(settings) } else { Err(conflicts.0) }
    }

    /// Why a setting that an operator gave has no effect with the others.
    fn unused(&self, setting: &Setting, given: &EffectiveSetting, redis: &str) -> Option<String> {
        let is_redis = self.store.kind == StoreKind::Redis;
        let is_alone = self.links.listen.is_none() && given.value != setting.default;
        let has_limits = |kind| self.limits.source == Some(kind);
        let in_redis;
        let why = match setting.part {
            ProgramPart::Always => None,
            // Limits at a URL are read by the same client.
            ProgramPart::RulesUrl if has_limits(LimitStoreKind::Url) => None,
            ProgramPart::RulesUrl => {
                let is_read = self.rules.source == RuleSourceKind::Files
                    && matches!(self.rules.path, Some(RuleLocation::Url(_)));
                (!is_read).then_some("needs a URL in rules.path, which is not set")
            }
            ProgramPart::RulesXds => {
                let is_read = self.rules.source == RuleSourceKind::Xds;
                (!is_read).then_some("needs rules.source xds, which is not set")
            }
            ProgramPart::Limits => {
                self.limits.source.is_none().then_some("needs limits.source, which is not set")
            }
            ProgramPart::LimitsRedis => {
                (!has_limits(LimitStoreKind::Redis)).then_some("needs limits.source redis, which is not set")
            }
            ProgramPart::LimitsUrl => {
                (!has_limits(LimitStoreKind::Url)).then_some("needs limits.source url, which is not set")
            }
            ProgramPart::Redis if has_limits(LimitStoreKind::Redis) => None,
            ProgramPart::Redis | ProgramPart::RedisCounters => {
                (!is_redis).then_some("needs store.kind redis, which is not set")
            }
            ProgramPart::Memory | ProgramPart::Cluster if is_redis => {
                in_redis = format!("does not go with {redis}: the counters are not in this process");
                Some(&*in_redis)
            }
            ProgramPart::Memory => None,
            ProgramPart::Cluster => is_alone.then_some("needs cluster.listen, which is not set"),
        };
        let is_given =
            !matches!(given.from, SettingOrigin::Default | SettingOrigin::Reference) && given.value != OFF;
        why.filter(|_| is_given).map(|why| format!("{} {why}", setting.name))
    }

    /// The servers of Redis, which `user` needs: a setting with its value.
    fn redis_settings(&self, user: &str, conflicts: &mut Conflicts) -> SharedStoreSettings {
        let redis = self.redis.clone();
        redis.check(user, conflicts);
        let [server, sentinel] =
            [redis.password_file, redis.sentinel_password_file].map(|path| path.map(PasswordSource::File));
        let poll_interval = self.certificates.poll_interval;
        let RedisCounters { prefix, unready_without_store } = self.redis_counters.clone();
        SharedStoreSettings {
            urls: redis.urls,
            mode: match redis.mode {
                RedisMode::Standalone => StoreMode::Standalone,
                RedisMode::Sentinel => StoreMode::Sentinel { service: redis.sentinel_service },
                RedisMode::Cluster => StoreMode::Cluster,
            },
            username: redis.username,
            sentinel_username: redis.sentinel_username,
            tls: StoreTlsFiles { ca: redis.ca, client: redis.cert.zip(redis.key) },
            passwords: PasswordSources { server, sentinel, poll_interval },
            unready_without_store,
            connections: redis.connections,
            timeout: redis.timeout,
            prefix,
            memory_limit: self.store.memory_limit,
            on_full: self.counters.on_full,
        }
    }

    /// `None` if no store names limits.
    fn limit_settings(&self, conflicts: &mut Conflicts) -> Option<LimitSettings> {
        let LimitCalls { wait } = self.limit_calls.clone();
        let LimitCacheSize { entries, ttl, absent_ttl } = self.limit_cache.clone();
        let store = match self.limits.source? {
            LimitStoreKind::Redis => {
                // Those of counters in Redis were checked already.
                let mut unused = Conflicts::default();
                let is_shared = self.store.kind == StoreKind::Redis;
                let conflicts = if is_shared { &mut unused } else { conflicts };
                let settings = self.redis_settings("limits.source redis", conflicts);
                LimitStoreSettings::Redis(Box::new(settings), self.limit_redis.prefix.clone())
            }
            LimitStoreKind::Url => {
                let Some(template) = self.limit_url.url.clone() else {
                    conflicts.add("limits.source url needs limits.url, which is not set");
                    return None;
                };
                let settings = self.url.clone().read("limits.url", template.example()?, conflicts);
                LimitStoreSettings::Url(Box::new(settings), template)
            }
        };
        Some(LimitSettings { store, cache: LimitCacheSettings { entries, ttl, absent_ttl, wait } })
    }

    /// The source of the rules.
    fn rule_source(&self, conflicts: &mut Conflicts) -> RuleSourceSettings {
        let Rules { source, path, poll_interval, required, overlay } = self.rules.clone();
        let file = |path| FileSettings { path, poll_interval };
        let source = match source {
            // A file may be at a URL.
            RuleSourceKind::Files | RuleSourceKind::Url => {
                if overlay.is_some() {
                    conflicts.add("rules.overlay needs rules.source xds, which is not set");
                }
                if path.is_none() {
                    conflicts
                        .add("rules.path: not set; use --rules, TOLLGATE_RULES__PATH or a settings file");
                }
                match path {
                    Some(RuleLocation::Url(address)) => {
                        SourceSettings::Url(Box::new(self.url.clone().read("rules.path", address, conflicts)))
                    }
                    Some(RuleLocation::Path(path)) => SourceSettings::Files(file(path)),
                    None => SourceSettings::Files(file(PathBuf::new())),
                }
            }
            RuleSourceKind::Xds => {
                SourceSettings::Xds(Box::new(self.xds.clone().read(conflicts)), overlay.map(file))
            }
        };
        RuleSourceSettings { source, required, path_must_exist: required }
    }
}

/// The kind of store that is Redis, with the variable of another server that says so.
fn redis_kind(given: &[EffectiveSetting]) -> &'static str {
    let is_kind = |setting: &EffectiveSetting| setting.name == "store.kind";
    if given.iter().any(|setting| is_kind(setting) && setting.from == SettingOrigin::Reference) {
        "store.kind redis, which REDIS_URL stands for unless TOLLGATE_STORE__KIND is memory"
    } else {
        "store.kind redis"
    }
}

impl TlsFiles {
    /// `None` without a certificate. The names of the settings begin with `prefix`.
    fn read(
        self,
        prefix: &str,
        limits_san: &[CertificateName],
        conflicts: &mut Conflicts,
    ) -> Option<ListenerTlsFiles> {
        let Self { cert, key, client_ca, client_san } = self;
        let has_cert = ("cert", cert.is_some());
        let has_key = ("key", key.is_some());
        let has_ca = ("client_ca", client_ca.is_some());
        let has_san = ("client_san", !client_san.is_empty());
        let needs = [(has_cert, has_key), (has_key, has_cert), (has_ca, has_cert), (has_san, has_ca)];
        conflicts.require(prefix, &needs);
        let limits_san = limits_san.to_vec();
        Some(ListenerTlsFiles { cert: cert?, key: key?, client_ca, client_san, limits_san })
    }
}

impl Settings {
    fn check(&self, redis: &str, conflicts: &mut Conflicts) {
        let Sections { admin, check, drain, rlqs, .. } = &self.sections;
        let [domain, descriptors] =
            [("domain", check.domain.is_some()), ("descriptors", check.descriptors.is_some())];
        conflicts.require("check.", &[(domain, descriptors), (descriptors, domain)]);
        let listen = admin.listen;
        if admin.token_file.is_none() && !listen.ip().to_canonical().is_loopback() {
            let what = "is not a loopback address, so admin.token_file must be set: admin requests can reset counters";
            conflicts.add(format!("admin.listen: {listen} {what}"));
        }
        let listeners = [&self.grpc_tls, &self.http_tls].into_iter().flatten();
        if !admin.limits_san.is_empty() && listeners.filter_map(|tls| tls.client_ca.as_ref()).count() == 0 {
            let needed = "grpc.tls_client_ca or http.tls_client_ca";
            conflicts.add(format!("admin.limits_san needs {needed}, which are not set"));
        }
        if rlqs.enabled && self.shared_store.is_some() {
            // Each replica would give clients the whole limit.
            conflicts.add(format!("rlqs.enabled does not go with {redis}: counters are divided in memory"));
        }
        let Drain { delay, timeout } = *drain;
        if delay > timeout {
            let what = "drain.delay is longer than drain.timeout, which includes it";
            conflicts.add(format!("{what}: {delay:?} and {timeout:?}"));
        }
    }
}

impl RulesUrl {
    /// How the address is asked for that the setting `name` has.
    fn read(self, name: &str, address: Address, conflicts: &mut Conflicts) -> UrlSettings {
        if !address.is_tls() && !address.is_loopback() && !self.plaintext {
            conflicts.add(format!(
                "{name}: {address} needs https://, a loopback address, or rules.url.plaintext true: anyone on the way can change the rules"
            ));
        }
        let files = ClientTlsFiles { ca: self.ca, client: None, server_name: self.server_name };
        let tls = tls_files("rules.url.", files, self.cert, self.key, name, address.is_tls(), conflicts);
        UrlSettings {
            address,
            interval: self.interval,
            timeout: self.timeout,
            bytes_max: usize::try_from(self.max_bytes).unwrap_or(usize::MAX),
            tls,
            token_file: self.token_file,
            redirects_max: self.redirects,
            plaintext: self.plaintext,
            copy: self.copy,
        }
    }
}

impl Xds {
    fn read(self, conflicts: &mut Conflicts) -> XdsSettings {
        if self.url.is_none() {
            conflicts.add("rules.source xds needs rules.xds.url, which is not set");
        }
        let url = self.url.unwrap_or_default();
        for (name, _) in self.headers.iter().filter(|(name, value)| !xds::is_header(name, value)) {
            conflicts.add(format!("rules.xds.headers: `{name}` is not a header of gRPC"));
        }
        let is_tls = url.starts_with("https:");
        let files = ClientTlsFiles { ca: self.ca, client: None, server_name: self.server_name };
        let tls = tls_files("rules.xds.", files, self.cert, self.key, "rules.xds.url", is_tls, conflicts);
        XdsSettings {
            url,
            node_id: self.node_id,
            node_metadata: self.node_metadata,
            headers: self.headers,
            tls,
            message_bytes_max: usize::try_from(self.max_message).unwrap_or(usize::MAX),
            retry_min: self.retry_min,
            retry_max: self.retry_max,
        }
    }
}

/// The files with the certificate and key of the client. The names of the settings begin with `prefix`; they need an
/// https URL in the setting `address`.
fn tls_files(
    prefix: &str,
    files: ClientTlsFiles,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    address: &str,
    is_tls: bool,
    conflicts: &mut Conflicts,
) -> ClientTlsFiles {
    let [has_cert, has_key] = [("cert", cert.is_some()), ("key", key.is_some())];
    conflicts.require(prefix, &[(has_cert, has_key), (has_key, has_cert)]);
    let of_tls = [("ca", files.ca.is_some()), has_cert, ("server_name", files.server_name.is_some())];
    for (name, _) in of_tls.iter().filter(|(_, is_set)| *is_set && !is_tls) {
        conflicts.add(format!("{prefix}{name} needs https:// in {address}"));
    }
    ClientTlsFiles { client: cert.zip(key), ..files }
}

impl Links {
    /// `None` without an address to listen on.
    fn read(
        self,
        tuning: Tuning,
        poll_interval: Duration,
        conflicts: &mut Conflicts,
    ) -> Option<ClusterSettings> {
        let Self { listen, advertise, seed: seeds, secret_file, cert, key, ca } = self;
        let listen = listen?;
        let certificates = [("cert", cert.is_some()), ("key", key.is_some()), ("ca", ca.is_some())];
        match certificates.iter().find(|(_, is_set)| *is_set) {
            Some(given) => conflicts.require("cluster.", &certificates.map(|needed| (*given, needed))),
            None if secret_file.is_none() => {
                conflicts.add(format!("cluster.listen: {}", TRUST_MISSING));
            }
            None => {}
        }
        let files = cert.zip(key).zip(ca).map(|((cert, key), ca)| Files { cert, key, ca });
        let trust = Trust { files, secret_file, poll_interval };
        Some(ClusterSettings { link: link::LinkSettings { listen, advertise, seeds, trust }, tuning })
    }
}

impl Redis {
    fn check(&self, user: &str, conflicts: &mut Conflicts) {
        if self.urls.is_empty() {
            conflicts.add(format!("{user} needs store.redis.urls, which is not set"));
        }
        let [cert, key] = [("cert", self.cert.is_some()), ("key", self.key.is_some())];
        conflicts.require("store.redis.", &[(cert, key), (key, cert)]);
        let with_tls = self.urls.iter().filter(|url| url.starts_with("rediss:")).count();
        if with_tls > 0 && with_tls < self.urls.len() {
            conflicts.add("store.redis.urls: either all or none are rediss://");
        }
        if with_tls < self.urls.len() && (self.ca.is_some() || self.cert.is_some()) {
            conflicts.add("store.redis.ca and store.redis.cert need rediss:// in store.redis.urls");
        }
    }
}

#[cfg(test)]
mod tests;
