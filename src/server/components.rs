//! The components behind the listeners, built in the order of their dependencies.

use std::sync::Arc;

use tokio::{sync::watch, task::JoinSet, time::sleep};
use tollgate_cluster::Cluster;
use tollgate_counter::{
    resilience::CallerRegistry,
    time::{Clock, ClockOutOfRange, ClockStep, FOLLOW_EVERY},
};
use tollgate_limiter::limiter::{self, Limiter};
use tollgate_quota::QuotaService;
use tollgate_remote::Remote;
use tollgate_rules::ActiveRules;
use tollgate_shared_store::{PasswordError, SharedStore};
use tollgate_store::{Memory, SWEEP_PARTS, SWEEP_ROUND, divider::Dividers};
use tollgate_wire::proto::DESCRIPTORS;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};
use tracing::warn;

use crate::{
    api::{
        admin::{self, state::AdminState},
        cross_site::Hosts,
        denial_body::DenialBodies,
        denial_log::DenialLog,
        http,
        reader::RequestReader,
        recorder::Recorder,
        reset_access::ResetAccess,
        service::Api,
    },
    persistence::Persistence,
    server::{
        bind::Server,
        lifecycle::{self, Phase},
        limits::LimitLookups,
        metrics::{self, replica::MetricsSources},
        replica,
        services::Services,
        tasks::{ServiceError, Tasks},
    },
    settings::{Settings, reference::BackendChoice},
};

/// Maximum size of a reflection message, in bytes: a name. Its stream keeps as much while it is open.
const REFLECTION_BYTES_MAX: usize = 4 * 1024;

/// Memory budget for large JSON bodies, in bytes.
const JSON_BODIES_BYTES_MAX: usize = 8 * 1024 * 1024;

/// One of this many connections of the HTTP listener is reserved for probes: calls of `/json` cannot use it.
const PROBE_SHARE: usize = 10;

/// What listeners and background tasks share.
pub(super) struct Components {
    settings: Settings,
    pub(super) admin: AdminState,
    metrics: MetricsSources,
    probe: lifecycle::Probe,
    pub(super) persistence: Persistence,
    limits: Option<LimitLookups>,
    // The samples for the operators' page.
    live: Arc<admin::page::Live>,
    api: Api,
    // Those of the quotas without a cluster.
    pub(super) dividers: Option<Arc<Dividers>>,
    callers: CallerRegistry,
}

impl Components {
    /// The components of `server`, which connect to the shared store if the settings have one.
    pub(super) fn new(
        server: &Server,
        active_rules: Arc<ActiveRules>,
        persistence: Persistence,
        cluster: Option<Cluster>,
        phase: watch::Receiver<Phase>,
        tasks: &mut Tasks,
    ) -> Result<Self, ServiceError> {
        let settings = server.settings.clone();
        let sections = &settings.sections;
        let clock = server.clock.clone();
        let connect = |settings| {
            SharedStore::start(settings, clock.clone(), active_rules.clone(), &mut tasks.background)
                .map_err(password_error)
        };
        let shared_store = settings.shared_store.clone().map(connect).transpose()?;
        let remote = match (&cluster, &shared_store) {
            (Some(cluster), _) => Some(Remote::new(Arc::new(cluster.clone()))),
            (None, Some(store)) => Some(Remote::new(Arc::new(store.clone()))),
            (None, None) => None,
        };
        let look_up = |settings| {
            LimitLookups::start(settings, shared_store.as_ref(), clock.clone(), &mut tasks.background)
                .map_err(password_error)
        };
        let limits = settings.limits.clone().map(look_up).transpose()?;
        let limiter = Limiter::new(active_rules.clone(), persistence.memory.clone(), clock.clone())
            .with_remote(remote)
            .with_limits(limits.as_ref().map(|limits| limits.cache.clone()))
            .with_modes(sections.limiter)
            .with_metrics(Arc::new(limiter::LimiterMetrics::new(sections.metrics.top_keys)));
        let is_alone = sections.rlqs.enabled && cluster.is_none();
        let own_dividers = is_alone.then(|| persistence.start_dividers(clock.now()));
        let dividers = own_dividers.as_ref().or(cluster.as_ref().map(Cluster::dividers)).cloned();
        let quotas = dividers.filter(|_| sections.rlqs.enabled).map(|dividers| {
            let quotas = QuotaService::new(limiter.clone(), dividers, clock.clone(), sections.rlqs);
            let Some(cluster) = &cluster else { return Arc::new(quotas) };
            let quotas = Arc::new(quotas.in_cluster(cluster.local_id().number(), Arc::new(cluster.clone())));
            let service = Arc::downgrade(&quotas);
            cluster.on_assignments(move |assignments| {
                if let Some(service) = service.upgrade() {
                    service.deliver(assignments);
                }
            });
            quotas
        });
        let api = Api {
            headers: Arc::new(sections.headers.clone()),
            denial_bodies: Arc::new(DenialBodies::new(&sections.denial)),
            denials: sections.log.denials.map(DenialLog::new).map(Arc::new),
            recorder: sections.admin.record.map(|values| Arc::new(Recorder::new(values))),
            traces: server.traces.clone(),
            reset_access: sections.admin.token_file.clone().map(admin::Token::new).map(ResetAccess::new),
            ..Api::new(limiter.clone(), sections.api)
        };
        let rule_source = settings.rules.source.described();
        let store_settings = settings.shared_store.as_ref();
        let probe = lifecycle::Probe {
            phase,
            active_rules: active_rules.clone(),
            cluster: cluster.clone(),
            shared_store: shared_store.clone(),
            unready_without_store: store_settings.is_some_and(|settings| settings.unready_without_store),
            rules_required: settings.rules.required,
        };
        let metrics = MetricsSources {
            active_rules: active_rules.clone(),
            memory: persistence.memory.clone(),
            limiter: limiter.metrics().clone(),
            api: api.metrics.clone(),
            listeners: server.stats.clone(),
            budgets: server.grpc.terms.budgets.clone(),
            logs: server.logs.clone(),
            clock: clock.clone(),
            cluster: cluster.clone(),
            shared_store: shared_store.clone(),
            limits: limits.as_ref().map(|limits| limits.cache.clone()),
            rule_source: rule_source.clone(),
            quotas: quotas.clone(),
            reference_names: sections.metrics.reference_names,
        };
        let admin = AdminState {
            rule_source,
            cluster,
            shared_store,
            active_rules,
            memory: persistence.memory.clone(),
            api: api.clone(),
            quotas,
            reader: RequestReader::new(sections.api.bounds(), JSON_BODIES_BYTES_MAX),
            settings: settings.given.clone().into(),
            logs: server.logs.clone(),
            metrics: Arc::new(metrics.clone()),
            history: Arc::default(),
            certificates: Arc::new(server.stats.clone()),
            readiness: Arc::new(probe.clone()),
            started: clock.now(),
            clock,
            alone: settings.backend.as_ref().and_then(BackendChoice::alone),
        };
        Ok(Self {
            settings,
            callers: CallerRegistry::new(admin.clock.clone()),
            admin,
            metrics,
            probe,
            persistence,
            limits,
            live: Arc::default(),
            api,
            dividers: own_dividers,
        })
    }

    /// Starts what runs next to the listeners.
    pub(super) fn spawn_background(&self, background: &mut JoinSet<()>) {
        let Self { settings, admin, persistence, probe, .. } = self;
        let AdminState { clock, active_rules, cluster, .. } = admin;
        let source = settings.rules.source.clone();
        background.spawn(source.run(clock.clone(), active_rules.clone(), admin.rule_source.clone()));
        let stopping = || lifecycle::wait_for_phase(probe.phase.clone(), Phase::Stopping);
        background.spawn(self.live.clone().run(admin.clone(), stopping()));
        let metrics = admin.metrics.clone();
        let history = admin.history.clone();
        background.spawn(async move { history.record(metrics).await });
        if let Some(recorder) = admin.api.recorder.clone() {
            let stopping = stopping();
            background.spawn(async move {
                stopping.await;
                recorder.stop();
            });
        }
        if let Some(limits) = self.limits.clone() {
            background.spawn(limits.run());
        }
        if let Some(quotas) = admin.quotas.clone() {
            background.spawn(quotas.run());
        }
        background.spawn(self.api.clone().follow_rules(active_rules.clone()));
        background.spawn(sweep(persistence.memory.clone(), clock.clone()));
        let rules = active_rules.clone();
        background.spawn(persistence.clone().write_periodically(clock.clone(), move || rules.secret()));
        if let Some(cluster) = cluster.clone() {
            background.spawn(replica::announce_rules(cluster, active_rules.clone()));
        }
    }

    /// Keeps the clock of counters in step with the system clock, until that is out of range.
    pub(super) fn follow_system_clock(&self) -> impl Future<Output = ClockOutOfRange> + use<> {
        let AdminState { clock, memory, cluster, .. } = &self.admin;
        follow_system_clock(clock.clone(), memory.clone(), cluster.clone())
    }

    /// Waits until requests can be decided.
    pub(super) async fn ready(&self) {
        if self.settings.rules.required {
            self.admin.active_rules.loaded().await;
        }
        if let Some(cluster) = &self.admin.cluster {
            cluster.joined().await;
        }
        if let Some(store) = &self.admin.shared_store {
            store.until_known().await;
        }
    }

    /// Waits until calls can be decided, or the first rules are refused, so that callers learn of it.
    pub(super) async fn answerable(&self) {
        if self.settings.rules.required {
            self.admin.active_rules.tried().await;
        }
        if self.admin.active_rules.status().last_error.is_none() {
            self.ready().await;
        }
    }

    /// The services of the gRPC listener.
    pub(super) fn grpc_services(&self, background: &mut JoinSet<()>) -> Result<Services, ServiceError> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let quotas = self.admin.quotas.clone();
        let names = lifecycle::health_names(quotas.is_some());
        let clock = self.admin.clock.clone();
        background.spawn(lifecycle::report_health(reporter, names, self.probe.clone(), clock));
        Ok(self.services(grpc_routes(health)?, quotas))
    }

    /// The services of the HTTP listener.
    pub(super) fn http_services(&self, opened: watch::Receiver<bool>) -> Services {
        let connections_max = self.settings.sections.http.max_connections;
        let calls_max = connections_max - connections_max.div_ceil(PROBE_SHARE).min(connections_max - 1);
        let api = self.api.clone();
        let reader = self.admin.reader.clone();
        let check = self.settings.sections.check.clone();
        let hosts = Hosts::new(self.settings.sections.http.hosts.clone());
        let router = http::router(api, self.probe.clone(), reader, check, hosts, calls_max, opened);
        self.services(router, None)
    }

    /// The services of the admin listener.
    pub(super) fn admin_services(&self) -> Services {
        let limits = http::limits_router(self.api.clone(), self.admin.reader.clone());
        let more = admin::page::router(self.live.clone()).merge(limits);
        let router = admin::router(self.admin.clone(), self.settings.sections.admin.token_file.clone(), more);
        self.services(router, None)
    }

    /// The services of the metrics listener.
    pub(super) fn metrics_services(&self) -> Services {
        self.services(metrics::router(self.metrics.clone()), None)
    }

    fn services(&self, router: axum::Router, quotas: Option<Arc<QuotaService>>) -> Services {
        Services::new(router, self.api.clone(), quotas, self.callers.clone())
    }
}

/// Evicts idle counters, one part of the slots at a time, for as long as it is polled.
async fn sweep(memory: Arc<Memory>, clock: Clock) {
    let pause = SWEEP_ROUND / SWEEP_PARTS as u32;
    for part in (0..SWEEP_PARTS).cycle() {
        sleep(clock.now().until_tick(pause)).await;
        memory.sweep_part(part, clock.now());
    }
}

/// Keeps the clock of counters in step with the system clock. A system clock out of range ends it: nothing is decided
/// by such a clock, and the libraries that write dates panic.
async fn follow_system_clock(clock: Clock, memory: Arc<Memory>, cluster: Option<Cluster>) -> ClockOutOfRange {
    loop {
        sleep(clock.now().until_tick(FOLLOW_EVERY)).await;
        if let Err(out_of_range) = clock.require_in_range() {
            return out_of_range;
        }
        let step = clock.follow(|lead| {
            memory.give_up_lead(lead);
            if let Some(cluster) = &cluster {
                cluster.give_up_lead(lead);
            }
        });
        match step {
            Some(ClockStep::Back(lead)) => {
                warn!(
                    ?lead,
                    "system clock jumped ahead and was corrected, cutting counters with times in the future"
                );
            }
            Some(ClockStep::Forward(by)) => {
                warn!(?by, "system clock jumped ahead, counters follow it")
            }
            None => {}
        }
    }
}

/// The gRPC services other than the rate limit service.
pub(super) fn grpc_routes(health: HealthServer<impl Health>) -> Result<axum::Router, ServiceError> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let failed = |error: tonic_reflection::server::Error| format!("gRPC reflection failed: {error}");
    // Many tools, such as ghz, ask in the first version only.
    let v1 = reflection().build_v1().map_err(failed)?;
    let v1alpha = reflection().build_v1alpha().map_err(failed)?;
    // tonic allocates the announced length, so the size must be bounded.
    let routes = Routes::new(health)
        .add_service(v1.max_decoding_message_size(REFLECTION_BYTES_MAX))
        .add_service(v1alpha.max_decoding_message_size(REFLECTION_BYTES_MAX));
    Ok(routes.prepare().into_axum_router())
}

/// Says which setting names the file of a password of the shared store that cannot be read.
fn password_error(error: PasswordError) -> String {
    format!("store.redis.password_file: {error}")
}
