//! Fuzz targets of rate limit calls: decided here, decided with another replica, and their headers.

use std::{
    collections::VecDeque,
    fmt::{self, Display, Formatter},
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use prost::{DecodeError, Message as _};
use tokio::{
    runtime::{self, Runtime},
    time::{sleep, timeout as within},
};
use tollgate_cluster::{Cluster, Trust, link};
use tollgate_counter::{files::fuzz::temporary, lock::lock, resilience::Caller, time::Clock};
use tollgate_limiter::limiter::{Limiter, LimiterError, RequestError};
use tollgate_remote::Remote;
use tollgate_rules::ActiveRules;
use tollgate_store::{Memory, OnFull, SLOTS};
use tollgate_telemetry::traces::Traces;
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};

use crate::api::{
    call::{ApiKind, Call, CallReply, Handled, Method, timeout_from_headers},
    error::Error,
    fuzz::{NOW, active_rules, api, api_of, headers_and_rest, runtime},
    service::{Api, ApiSettings},
};

/// The longest time that a test waits for replicas.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most messages in a [`Log`].
const LOG_MESSAGES_MAX: usize = 1_000;

/// Headers up to an empty line, and the bytes of a message: they mean to the decoder what they mean to `prost`, and
/// `prost` reads the reply.
pub fn rls(bytes: &[u8]) {
    let (headers, message) = headers_and_rest(bytes);
    let api = api();
    let call = Call {
        method: Method::ShouldRateLimit,
        message,
        metadata: Some(&headers),
        precision: api.precision(),
        api: ApiKind::Envoy,
    };
    let decoded = RateLimitRequest::decode(message);
    match api.batch(&Caller::default()).handle(call) {
        Ok(Handled::Ready(reply)) => check_reply(&decoded.expect("a decided request is valid"), &reply),
        Ok(Handled::Waiting(_)) => unreachable!("there is no other replica"),
        Err(error) => check_error(decoded, &error),
    }
}

fn check_error(decoded: Result<RateLimitRequest, DecodeError>, error: &Error) {
    // The bounds may be exceeded before the message turns out to be malformed.
    let Ok(request) = decoded else { return assert!(["MALFORMED", "TOO_LARGE"].contains(&error.reason)) };
    match error.reason {
        "TOO_LARGE" => {
            let bounds = ApiSettings::default().bounds();
            let has_large = request.descriptors.iter().any(|each| each.entries.len() > bounds.entries);
            assert!(has_large || request.descriptors.len() > bounds.descriptors);
        }
        "EMPTY_DOMAIN" => assert!(request.domain.is_empty()),
        "NO_DESCRIPTORS" => assert!(request.descriptors.is_empty()),
        "UNKNOWN_UNIT" => {
            let mut limits = request.descriptors.iter().map(|descriptor| descriptor.limit).enumerate();
            let error_of = |(descriptor, limit): (usize, Option<RateLimitOverride>)| {
                Some(Error::from(RequestError::Unit { descriptor, number: limit?.unit }))
            };
            assert!(limits.any(|limit| error_of(limit).as_ref() == Some(error)), "{error}");
        }
        _another => unreachable!("of another API: {error}"),
    }
}

fn check_reply(request: &RateLimitRequest, reply: &CallReply) {
    let response = RateLimitResponse::decode(reply.message()).expect("a reply is valid");
    assert_eq!(response.statuses.len(), request.descriptors.len());
    assert_eq!(Some(response.overall_code() == Code::Ok), reply.passes);
    assert_eq!(response.encode_to_vec(), reply.message());
}

/// A message whose counters are partly owned by another replica: it is decided as a replica without others would.
pub fn remote_rls(message: &[u8]) {
    let mut current = lock(&REPLICAS);
    let replicas = current.get_or_insert_with(Replicas::start);
    let call = Call {
        method: Method::ShouldRateLimit,
        message,
        metadata: None,
        precision: replicas.clustered.precision(),
        api: ApiKind::Envoy,
    };
    replicas.log.add(message);
    let forwards = Caller::default();
    let handle = |api: &Api| replicas.runtime.block_on(api.handle(call, &forwards));
    let clustered = match handle(&replicas.clustered) {
        // Nothing is charged.
        Err(error) if error == LimiterError::Overloaded.into() => return,
        clustered => clustered.map_err(|error| error.to_string()),
    };
    let alone = handle(&replicas.alone).map_err(|error| error.to_string());
    // Replicas do not hear each other while this process stands still, which no message causes.
    let degraded = if clustered == alone { 0 } else { replicas.cluster.stats().degraded };
    if degraded > 0 {
        eprintln!("{degraded} checks were decided without their owner: begins again with new replicas");
        *current = None;
        return;
    }
    assert_eq!(clustered, alone, "after these messages:\n{}", replicas.log);
}

/// A replica that shares its slots with another one, and a replica that is alone, with the same keys.
struct Replicas {
    runtime: Runtime,
    cluster: Cluster,
    clustered: Api,
    alone: Api,
    log: Log,
}

/// The newest messages, oldest first. Counters are retained between inputs, so a failure may need those before it.
#[derive(Default)]
struct Log(VecDeque<Vec<u8>>);

impl Log {
    fn add(&mut self, message: &[u8]) {
        if self.0.len() >= LOG_MESSAGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(message.to_vec());
    }
}

impl Display for Log {
    /// One line for each message, escaped.
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|message| writeln!(out, "{}", message.escape_ascii()))
    }
}

static REPLICAS: Mutex<Option<Replicas>> = Mutex::new(None);

impl Replicas {
    fn start() -> Self {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("the machine has resources for a runtime");
        let (cluster, clustered, alone) = runtime.block_on(async {
            let rules = active_rules();
            let (first, memory, address) = replica(rules.clone(), &[]).await;
            first.joined().await;
            let (second, other, _) = replica(active_rules(), &[address]).await;
            let moved = async {
                second.joined().await;
                let owned = |memory: &Memory| memory.each_slot().filter(|slot| memory.owns(*slot)).count();
                while owned(&other) < SLOTS / 4 || owned(&memory) + owned(&other) < SLOTS {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            within(JOIN_TIMEOUT, moved).await.expect("both replicas get slots");
            let alone = Arc::new(Memory::new(1 << 30, OnFull::Deny));
            let [clustered, alone] =
                [memory, alone].map(|memory| Limiter::new(rules.clone(), memory, Clock::manual(NOW)));
            let clustered = clustered.with_remote(Some(Remote::new(Arc::new(first.clone()))));
            (first, api_of(clustered), api_of(alone))
        });
        Self { runtime, cluster, clustered, alone, log: Log::default() }
    }
}

/// A replica that runs on the current runtime, with its counters and its address.
async fn replica(rules: Arc<ActiveRules>, seeds: &[String]) -> (Cluster, Arc<Memory>, String) {
    let secret_file = Some(temporary("secret", b"a secret that both replicas share"));
    let poll_interval = Duration::from_secs(1);
    let settings = tollgate_cluster::ClusterSettings {
        link: link::LinkSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            seeds: seeds.to_vec(),
            trust: Trust { files: None, secret_file, poll_interval },
        },
        // No answer is degraded, and no hits are lent, so the decisions are those of a single replica.
        tuning: tollgate_cluster::Tuning {
            forward_budget_max: Duration::from_secs(60),
            forget_after: Duration::from_secs(600),
            ..tollgate_cluster::Tuning::FOR_TESTS
        },
    };
    let memory = Arc::new(Memory::new(1 << 30, OnFull::Deny).shared());
    let bound = Cluster::bind(settings, memory.clone(), Vec::new(), rules, Clock::manual(NOW)).await;
    let (cluster, listening) = bound.expect("a port of the loopback is free");
    let address = listening.address().to_string();
    tokio::spawn(cluster.clone().run(listening));
    (cluster, memory, address)
}

/// Lines with headers: they change no decision, and a timeout is one that gRPC allows.
pub fn headers(lines: &[u8]) {
    let (headers, _) = headers_and_rest(lines);
    if let Some(timeout) = timeout_from_headers(&headers) {
        assert!(timeout <= Duration::from_secs(99_999_999 * 3_600));
    }
    // The domain `d`, and a descriptor with the entry `user`.
    const MESSAGE: &[u8] = b"\n\x01d\x12\x08\n\x06\n\x04user";
    let handle = |api: Api| {
        let call = Call {
            method: Method::ShouldRateLimit,
            message: MESSAGE,
            metadata: Some(&headers),
            precision: api.precision(),
            api: ApiKind::Envoy,
        };
        let reply = runtime().block_on(api.handle(call, &Caller::default()));
        reply.expect("the message is valid")
    };
    assert_eq!(handle(Api { traces: Some(TRACES.clone()), ..api() }), handle(api()));
}

static TRACES: LazyLock<Traces> = LazyLock::new(Traces::discarded);
