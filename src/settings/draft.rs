//! The values of all settings become the settings of the components, if they agree with each other.

use crate::{
    api::admin::{EffectiveSetting, Origin},
    limiter::Modes,
    settings::{
        Admin, Certificates, Drain, Settings,
        catalog::{CATALOG, Counters, Draft},
        rules::Source,
        value_type::{OFF, Part, Setting},
    },
    store,
};

/// The place of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// This process.
    Memory,
    /// Servers that replicas share.
    Redis,
}

/// What is wrong with settings that are valid one by one.
#[derive(Default)]
pub(super) struct Conflicts(pub(super) Vec<String>);

/// The name of a setting in its section, and whether it has a value.
pub(super) type Named<'n> = (&'n str, bool);

impl Conflicts {
    pub(super) fn add(&mut self, conflict: impl Into<String>) {
        self.0.push(conflict.into());
    }

    /// Settings that need another one, which must have a value too: their names follow `prefix`.
    pub(super) fn require(&mut self, prefix: &str, needs: &[(Named<'_>, Named<'_>)]) {
        for ((name, _), (needed, _)) in needs.iter().filter(|((_, is_set), (_, is_met))| *is_set && !is_met) {
            self.add(format!("{prefix}{name} needs {prefix}{needed}, which is not set"));
        }
    }
}

impl Draft {
    /// The settings of all components. `given` has the value of each setting as text.
    pub(super) fn settings(self, given: Vec<EffectiveSetting>) -> Result<Settings, Vec<String>> {
        let mut conflicts = Conflicts(
            CATALOG.iter().zip(&given).filter_map(|(setting, given)| self.unused(setting, given)).collect(),
        );
        let Self { grpc, http, admin, metrics, memory, api, check, headers, drain, log, .. } = self;
        let is_redis = self.store.kind == StoreKind::Redis;
        let poll_interval = self.certificates.poll_interval;
        let memory_limit = self.store.memory_limit;
        let Counters { on_full, snapshot, snapshot_every } = self.counters;
        let settings = Settings {
            rules: self.rules.read(self.xds, &mut conflicts),
            tls: Certificates {
                grpc: self.grpc_tls.read("grpc.tls_", &mut conflicts),
                http: self.http_tls.read("http.tls_", &mut conflicts),
                poll_interval,
            },
            shared_store: is_redis.then(|| self.redis.read(memory_limit, poll_interval, &mut conflicts)),
            cluster: if is_redis { None } else { self.cluster.read(poll_interval, &mut conflicts) },
            store: store::Settings { memory_limit, on_full, snapshot, snapshot_every },
            limiter: Modes { quota: self.limiter.quota_mode, shadow: self.limiter.shadow_mode },
            traces: None,
            without_effect: Vec::new(),
            given,
            grpc,
            http,
            admin,
            metrics,
            memory,
            api,
            check,
            headers,
            drain,
            log,
        };
        settings.check(&mut conflicts);
        if conflicts.0.is_empty() { Ok(settings) } else { Err(conflicts.0) }
    }

    /// Why a setting that an operator gave has no effect beside the others.
    fn unused(&self, setting: &Setting, given: &EffectiveSetting) -> Option<String> {
        let is_redis = self.store.kind == StoreKind::Redis;
        let is_alone = self.cluster.listen.is_none() && given.value != setting.default;
        let why = match setting.part {
            Part::Always => None,
            Part::Xds => {
                (self.rules.source != Source::Xds).then_some("needs rules.source xds, which is not set")
            }
            Part::Redis => (!is_redis).then_some("needs store.kind redis, which is not set"),
            Part::Memory | Part::Cluster if is_redis => {
                Some("does not go with store.kind redis: the counters are not in this process")
            }
            Part::Memory => None,
            Part::Cluster => is_alone.then_some("needs cluster.listen, which is not set"),
        };
        let is_given = !matches!(given.from, Origin::Default | Origin::Reference) && given.value != OFF;
        why.filter(|_| is_given).map(|why| format!("{} {why}", setting.name))
    }
}

impl Settings {
    fn check(&self, conflicts: &mut Conflicts) {
        let [domain, descriptors] =
            [("domain", self.check.domain.is_some()), ("descriptors", self.check.descriptors.is_some())];
        conflicts.require("check.", &[(domain, descriptors), (descriptors, domain)]);
        let Admin { listen, token_file, .. } = &self.admin;
        if token_file.is_none() && !listen.ip().to_canonical().is_loopback() {
            let what = "is not a loopback address, so admin.token_file must be set: admin requests can reset counters";
            conflicts.add(format!("admin.listen: {listen} {what}"));
        }
        let Drain { delay, timeout } = self.drain;
        if delay > timeout {
            let what = "drain.delay is longer than drain.timeout, which includes it";
            conflicts.add(format!("{what}: {delay:?} and {timeout:?}"));
        }
    }
}
