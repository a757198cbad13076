//! `tollgate simulate --envoys`: divides a limit over Envoys as the rate limit quota service does, and reports what
//! each of them would refuse.

use std::{
    mem,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytesize::ByteSize;
use clap::ArgMatches;
use prost::Message as _;
use tollgate_counter::{
    descriptor::{self, Entry, Key, Secret},
    resilience::CallerOrigin,
    time::{Clock, SECOND, Timestamp},
};
use tollgate_limiter::limiter::Limiter;
use tollgate_quota::{QuotaService, QuotaSettings, QuotaStream};
use tollgate_rules::{ActiveRules, KeyedRules, Rule, Rules, yaml::quote};
use tollgate_store::{
    Memory, OnFull,
    divider::{Dividers, SubscriberUsage},
};
use tollgate_wire::{
    descriptor_text,
    proto::envoy::{
        extensions::common::ratelimit::v3::rate_limit_descriptor::Entry as Pair,
        service::rate_limit_quota::v3::{
            BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
            rate_limit_quota_response::bucket_action::BucketAction,
            rate_limit_quota_usage_reports::BucketQuotaUsage,
        },
    },
    protobuf::FRAME_PREFIX_BYTES,
};

use crate::{
    check::unserved,
    command::CommandError,
    simulate::envoys::{
        client::EnvoyBucket,
        report::{EnvoyReport, EnvoysReport, RequestSpans},
    },
};

mod client;
mod report;

/// The greatest number of Envoys.
const ENVOYS_MAX: usize = 1_000;
/// The most requests a second of an Envoy.
const DEMAND_MAX: f64 = 1e7;
/// The time between two reports of an Envoy.
const REPORT_EVERY: u64 = 5 * SECOND;
/// The time from the begin of an Envoy to that of the next one, modulo the time between two reports. By the golden
/// ratio, so that the reports of any number of Envoys are spread over that time.
const BEGIN_STEP: u64 = REPORT_EVERY * 618 / 1_000;
/// The time between two decisions.
const TICK: u64 = SECOND / 100;
/// The time between two turns of dividers without a report.
const TURN_EVERY: u64 = SECOND / 20;
/// The most intervals of a report.
const BINS_MAX: u64 = 720;

/// The pairs of a bucket.
type Pairs = Vec<Pair>;

/// Reads the requests a second of an Envoy, as in `150`, or of each of several, as in `150x3`.
pub(super) fn demand(text: &str) -> Result<Vec<f64>, String> {
    let wanted = || {
        format!(
            "expected requests a second, as in 150, or of several Envoys, as in 150x3, from 0 to {DEMAND_MAX}"
        )
    };
    let (per_second, envoys) = text.split_once('x').unwrap_or((text, "1"));
    let per_second: f64 = per_second.parse().map_err(|_| wanted())?;
    let envoys: usize = envoys.parse().map_err(|_| wanted())?;
    let fits = (0.0..=DEMAND_MAX).contains(&per_second) && (1..=ENVOYS_MAX).contains(&envoys);
    if fits { Ok(vec![per_second; envoys]) } else { Err(wanted()) }
}

/// An Envoy with one bucket.
struct Envoy {
    per_second: f64,
    id: BucketId,
    stream: QuotaStream,
    bucket: EnvoyBucket,
    begins_at: Timestamp,
    // Requests that are due, in part.
    due: f64,
    // `None` until its first request, and after its bucket was abandoned.
    reports_at: Option<Timestamp>,
    report: EnvoyReport,
}

/// Envoys with the service that divides a limit over them.
struct EnvoysSimulation {
    service: Arc<QuotaService>,
    clock: Clock,
    domain: String,
    envoys: Vec<Envoy>,
    ends_at: Timestamp,
    bin_nanos: u64,
    spans: RequestSpans,
}

/// Simulates Envoys with buckets in `domain`.
pub(super) fn run(
    matches: &ArgMatches,
    rules: Rules,
    domain: String,
) -> Result<(String, ExitCode), CommandError> {
    let default = "it has a default";
    let start: Timestamp = *matches.get_one("start").expect(default);
    let duration: Duration = *matches.get_one("duration").expect(default);
    let memory_limit = matches.get_one::<ByteSize>("memory-limit").expect(default).as_u64();
    let path = matches.get_one::<PathBuf>("rules").expect("clap requires it");
    let demands = matches.get_many::<Vec<f64>>("envoys").expect("clap requires it");
    let demands: Vec<f64> = demands.flatten().copied().collect();
    let buckets = buckets(matches, demands.len()).map_err(CommandError::Usage)?;
    let clock = Clock::manual(start);
    // A constant secret, so that a run can be repeated exactly.
    let active_rules = Arc::new(ActiveRules::from_rules(rules, clock.now()));
    active_rules.set_secret(Secret::from_bytes([0; 16]));
    let memory = Arc::new(Memory::new(memory_limit, OnFull::Deny));
    let limiter = Limiter::new(active_rules.clone(), memory.clone(), clock.clone());
    let dividers = Arc::new(Dividers::new(memory));
    let service = Arc::new(QuotaService::new(limiter, dividers, clock.clone(), SETTINGS));
    let current = active_rules.current();
    let rule = rule_of(&current, &domain, &buckets)?;
    let ends_at = start.after(duration);
    let seconds = duration.as_secs().max(1);
    let bin_nanos = REPORT_EVERY * seconds.div_ceil(BINS_MAX * 5);
    let spans = RequestSpans::new(TICK);
    let mut simulation =
        EnvoysSimulation { service, clock, domain, envoys: Vec::new(), ends_at, bin_nanos, spans };
    for (per_second, entries) in demands.into_iter().zip(&buckets) {
        simulation.add(per_second, entries)?;
    }
    simulation.run()?;
    let each = simulation.envoys.into_iter().map(|envoy| envoy.report).collect();
    let report = EnvoysReport::new(path, rule, duration, bin_nanos / SECOND, &simulation.spans, each);
    let text = if matches.get_flag("json") {
        serde_json::to_string(&report).map_err(|error| error.to_string())?
    } else {
        report.text()
    };
    Ok((text, ExitCode::SUCCESS))
}

/// The bucket of each Envoy: the same for all, or one for each.
fn buckets(matches: &ArgMatches, envoys: usize) -> Result<Vec<Pairs>, String> {
    if envoys > ENVOYS_MAX {
        return Err(format!("--envoys has {envoys} Envoys; {ENVOYS_MAX} at most"));
    }
    let given: Vec<&Pairs> = matches.get_many("descriptor").into_iter().flatten().collect();
    match &*given {
        [] => Err("--envoys needs --descriptor, the bucket of the Envoys, as in tenant=acme".to_owned()),
        [one] => Ok(vec![(*one).clone(); envoys]),
        some if some.len() == envoys => Ok(some.iter().map(|one| (*one).clone()).collect()),
        some => Err(format!(
            "{} --descriptor for {envoys} Envoys; give one for all of them, or one for each",
            some.len()
        )),
    }
}

/// No bounds: the Envoys of a simulation are callers of their own.
const SETTINGS: QuotaSettings =
    QuotaSettings { enabled: true, memory: u64::MAX, max_pairs: usize::MAX, max_id_bytes: usize::MAX };

/// The rule of all buckets. They must have one counter, and a limit that the service divides.
fn rule_of<'r>(rules: &'r KeyedRules, domain: &str, buckets: &[Pairs]) -> Result<&'r Rule, String> {
    let mut shared: Option<(&Rule, Key)> = None;
    for bucket in buckets {
        let mut entries: Vec<Entry<'_>> =
            bucket.iter().map(|entry| Entry::new(&entry.key, &entry.value)).collect();
        // As the service looks them up.
        entries.sort_unstable_by_key(|entry| entry.key);
        let text = descriptor::format(entries.iter().map(|entry| (entry.key, entry.value)));
        let has_key_twice = entries.windows(2).any(|two| two[0].key == two[1].key);
        let is_text =
            |entry: &Entry<'_>| [entry.key, entry.value].iter().all(|part| str::from_utf8(part).is_ok());
        if has_key_twice || entries.iter().any(|entry| entry.value.is_empty() || !is_text(entry)) {
            return Err(format!(
                "{text} is no bucket: each pair is UTF-8, and has a value and a key of its own"
            ));
        }
        let found = rules.domain(domain).and_then(|domain| domain.find(&entries));
        let Some((found, limit)) = found.and_then(|found| Some((found, found.rule.limit()?))) else {
            return Err(format!("{text} has no limit in domain {}, so everything passes", quote(domain)));
        };
        if let Some(what) = unserved(found.rule) {
            return Err(format!("{}: {what}", found.rule.location));
        }
        let key = found.key(&entries, limit);
        if shared.is_some_and(|(_, other)| other != key) {
            return Err(format!("{text} has another counter than the buckets before it; simulate it alone"));
        }
        shared = Some((found.rule, key));
    }
    shared.map(|(rule, _)| rule).ok_or_else(|| "there is no bucket".to_owned())
}

impl EnvoysSimulation {
    /// Adds an Envoy.
    fn add(&mut self, per_second: f64, entries: &Pairs) -> Result<(), String> {
        let origin = CallerOrigin::Name(self.envoys.len().to_be_bytes().into());
        let stream = QuotaStream::open(self.service.clone(), &origin, None)
            .map_err(|status| status.message().to_owned())?;
        let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
        let pairs = entries.iter().map(|entry| (text(&entry.key), text(&entry.value)));
        let offset = BEGIN_STEP * self.envoys.len() as u64 % REPORT_EVERY;
        let name = descriptor_text::format(entries);
        self.envoys.push(Envoy {
            per_second,
            id: BucketId { bucket: pairs.collect() },
            stream,
            bucket: EnvoyBucket::default(),
            begins_at: self.clock.now().plus(offset),
            due: 1.0,
            reports_at: None,
            report: EnvoyReport::new(name, per_second),
        });
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        let start = self.clock.now();
        let mut now = start;
        while now < self.ends_at {
            if now.nanos_since(start).is_multiple_of(TURN_EVERY) {
                self.service.turn();
            }
            let is_new_bin = now.nanos_since(start).is_multiple_of(self.bin_nanos);
            let mut passed = 0;
            for envoy in &mut self.envoys {
                envoy.receive(now)?;
                envoy.bucket.refill(TICK, now);
                if is_new_bin {
                    envoy.report.begin_bin();
                }
                passed += envoy.decide(&self.domain, now)?;
                envoy.receive(now)?;
                envoy.report.set_share(envoy.bucket.share());
            }
            self.spans.add(passed);
            now = now.plus(TICK);
            self.clock.set(now);
        }
        Ok(())
    }
}

impl Envoy {
    /// Decides the requests that are due, and reports if it is time to. Returns how many pass.
    fn decide(&mut self, domain: &str, now: Timestamp) -> Result<u64, String> {
        if now < self.begins_at {
            return Ok(0);
        }
        let requests = self.due as u64;
        self.due += self.per_second * TICK as f64 / SECOND as f64 - requests as f64;
        let passed = self.bucket.ask(requests);
        self.report.add(requests, passed);
        let is_new = self.reports_at.is_none() && requests > 0;
        if is_new || self.reports_at.is_some_and(|at| at <= now) {
            let SubscriberUsage { allowed, denied, .. } = mem::take(&mut self.bucket.usage);
            let usage = BucketQuotaUsage {
                bucket_id: Some(self.id.clone()),
                time_elapsed: None,
                num_requests_allowed: allowed,
                num_requests_denied: denied,
            };
            let message =
                RateLimitQuotaUsageReports { domain: domain.to_owned(), bucket_quota_usages: vec![usage] };
            let received = self.stream.receive(&message.encode_to_vec());
            received.map_err(|status| status.message().to_owned())?;
            self.reports_at = Some(now.plus(REPORT_EVERY));
        }
        Ok(passed)
    }

    /// Takes the responses that have arrived.
    fn receive(&mut self, now: Timestamp) -> Result<(), String> {
        while let Poll::Ready(frame) = self.stream.poll_frame(&mut Context::from_waker(Waker::noop())) {
            let response = RateLimitQuotaResponse::decode(&frame[FRAME_PREFIX_BYTES..])
                .map_err(|error| error.to_string())?;
            for action in response.bucket_action.into_iter().filter_map(|action| action.bucket_action) {
                match action {
                    BucketAction::QuotaAssignmentAction(assigned) => self.bucket.assign(&assigned, now),
                    BucketAction::AbandonAction(_) => {
                        (self.bucket, self.reports_at) = (EnvoyBucket::default(), None);
                    }
                }
            }
        }
        Ok(())
    }
}
