//! The values of all settings become the settings of the components, if they agree with each other.

use tollgate_sources::RuleSourceKind;

use crate::{
    api::admin::{EffectiveSetting, SettingOrigin},
    persistence,
    settings::{
        Admin, CertificateName, Drain, ListenerTlsFiles, Settings, TlsSettings,
        catalog::{CATALOG, Counters, SettingsDraft, TlsFiles},
        conflicts::Conflicts,
        value_type::{LimitStoreKind, OFF, ProgramPart, Setting, StoreKind},
    },
};

impl SettingsDraft {
    /// The settings of all components. `given` has the value of each setting as text.
    pub(super) fn settings(self, given: Vec<EffectiveSetting>) -> Result<Settings, Vec<String>> {
        let redis = redis_kind(&given);
        let each = CATALOG.iter().zip(&given);
        let unused = each.filter_map(|(setting, given)| self.unused(setting, given, redis));
        let mut conflicts = Conflicts(unused.collect());
        let rules = self.rule_source(&mut conflicts);
        let limits = self.limit_settings(&mut conflicts);
        let shared_store = (self.store.kind == StoreKind::Redis)
            .then(|| self.redis_settings("store.kind redis", &mut conflicts));
        let Self {
            grpc,
            http,
            admin,
            metrics,
            limiter,
            memory,
            api,
            rlqs,
            check,
            headers,
            denial,
            drain,
            log,
            ..
        } = self;
        let is_redis = self.store.kind == StoreKind::Redis;
        let poll_interval = self.certificates.poll_interval;
        let memory_limit = self.store.memory_limit;
        let Counters { on_full, snapshot, snapshot_every } = self.counters;
        let settings = Settings {
            rules,
            tls: TlsSettings {
                grpc: self.grpc_tls.read("grpc.tls_", &admin.limits_san, &mut conflicts),
                http: self.http_tls.read("http.tls_", &admin.limits_san, &mut conflicts),
                poll_interval,
            },
            limits,
            shared_store,
            cluster: if is_redis {
                None
            } else {
                self.links.read(self.cluster, poll_interval, &mut conflicts)
            },
            store: persistence::PersistenceSettings { memory_limit, on_full, snapshot, snapshot_every },
            traces: None,
            backend: None,
            without_effect: Vec::new(),
            given,
            grpc,
            http,
            admin,
            metrics,
            limiter,
            memory,
            api,
            rlqs,
            check,
            headers,
            denial,
            drain,
            log,
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
            ProgramPart::Rules(RuleSourceKind::Url) if has_limits(LimitStoreKind::Url) => None,
            ProgramPart::Rules(kind) => self.rules.unread(kind),
            ProgramPart::Limits(None) => {
                self.limits.source.is_none().then_some("needs limits.source, which is not set")
            }
            ProgramPart::Limits(Some(LimitStoreKind::Redis)) => {
                (!has_limits(LimitStoreKind::Redis)).then_some("needs limits.source redis, which is not set")
            }
            ProgramPart::Limits(Some(LimitStoreKind::Url)) => {
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
}

/// The kind of store that is Redis, with the variable of another server that says so.
fn redis_kind(given: &[EffectiveSetting]) -> &'static str {
    let kind = given.iter().find(|setting| setting.name == "store.kind");
    match kind.map(|kind| kind.from) {
        Some(SettingOrigin::Reference) => {
            "store.kind redis, which REDIS_URL stands for unless TOLLGATE_STORE__KIND is memory"
        }
        Some(
            SettingOrigin::Default | SettingOrigin::File | SettingOrigin::Environment | SettingOrigin::Flag,
        )
        | None => "store.kind redis",
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
        let [domain, descriptors] =
            [("domain", self.check.domain.is_some()), ("descriptors", self.check.descriptors.is_some())];
        conflicts.require("check.", &[(domain, descriptors), (descriptors, domain)]);
        let Admin { listen, token_file, .. } = &self.admin;
        if token_file.is_none() && !listen.ip().to_canonical().is_loopback() {
            let what = "is not a loopback address, so admin.token_file must be set: admin requests can reset counters";
            conflicts.add(format!("admin.listen: {listen} {what}"));
        }
        let listeners = [&self.tls.grpc, &self.tls.http].into_iter().flatten();
        if !self.admin.limits_san.is_empty()
            && listeners.filter_map(|tls| tls.client_ca.as_ref()).count() == 0
        {
            let needed = "grpc.tls_client_ca or http.tls_client_ca";
            conflicts.add(format!("admin.limits_san needs {needed}, which are not set"));
        }
        if self.rlqs.enabled && self.shared_store.is_some() {
            // Each replica would give clients the whole limit.
            conflicts.add(format!("rlqs.enabled does not go with {redis}: counters are divided in memory"));
        }
        let Drain { delay, timeout, .. } = self.drain;
        if delay > timeout {
            let what = "drain.delay is longer than drain.timeout, which includes it";
            conflicts.add(format!("{what}: {delay:?} and {timeout:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::tests::{flags, problems};

    #[test]
    fn allowed_names_need_client_certificates() {
        let names = [("admin.limits_san", "billing.shop")];
        let problem = "admin.limits_san needs grpc.tls_client_ca or http.tls_client_ca, which are not set";
        assert_eq!(problems(&flags(&names)), [problem]);
    }

    #[test]
    fn quota_service_needs_counters_in_memory() {
        let enabled = ("rlqs.enabled", "true");
        let redis = [enabled, ("store.kind", "redis"), ("store.redis.urls", "redis://a:1")];
        let problem = "rlqs.enabled does not go with store.kind redis: counters are divided in memory";
        assert_eq!(problems(&flags(&redis)), [problem]);
    }
}
