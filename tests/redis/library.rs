//! Programs that embed the limiter, with the counters in the store.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, routing::get};
use futures_util::future::join_all;
use http::{Request, StatusCode};
use tollgate_limiter::{
    limiter::{Checked, HoldError, Limiter},
    shared_limiter::SharedLimiter,
    tower::{Question, RateLimitLayer},
};
use tollgate_shared_store::{ConnectError, PasswordSource, SharedStoreSettings, SharedStoreState};
use tollgate_store::SettleOutcome;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    replica::until,
    server::{PATIENCE, Server},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100, algorithm: sliding_log}
  - key: allowed
    rate_limit: {unit: day, requests_per_unit: 2, algorithm: sliding_log, on_owner_unavailable: allow}
  - key: denied
    rate_limit: {unit: day, requests_per_unit: 100, algorithm: sliding_log, on_owner_unavailable: deny}
";
const MINUTE: Duration = Duration::from_secs(60);
const USER: [(&str, &str); 1] = [("user", "ada")];

async fn connect(server: &Server) -> SharedLimiter {
    let settings = SharedStoreSettings { timeout: PATIENCE, ..SharedStoreSettings::new([server.url()]) };
    SharedLimiter::connect(Limiter::from_yaml(RULES).unwrap(), settings).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_limiters_pass_exactly_the_limit() {
    let server = Server::start(&[]);
    let limiters = join_all((0..3).map(|_| async { Arc::new(connect(&server).await) })).await;
    let callers = (0..30_usize).map(|caller| {
        let limiter = limiters[caller % 3].clone();
        tokio::spawn(async move {
            let mut passed = 0;
            for _ in 0..5 {
                passed += u64::from(limiter.check("shop", &USER, 1).await.unwrap().passes);
            }
            passed
        })
    });
    let passed: u64 = join_all(callers).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(passed, 100);
    let refused = limiters[0].peek("shop", &USER).await.unwrap();
    assert!(!refused.passes && refused.retry_after.is_some() && !refused.degraded);
    assert_eq!(limiters[1].refund("shop", &USER, 10).await.unwrap().remaining, 10);
    // The others hear of a refund over a channel of the server. Until then they may refuse without asking it.
    until("the refund is announced", async || limiters[2].peek("shop", &USER).await.unwrap().remaining == 10)
        .await;
}

#[tokio::test]
async fn reservation_is_settled_by_another_limiter() {
    let server = Server::start(&[]);
    let (one, other) = (connect(&server).await, connect(&server).await);
    let reservation = one.reserve("shop", &USER, 80, MINUTE).await.unwrap();
    assert_eq!(reservation.checked.remaining, 20);
    assert!(other.reserve("shop", &USER, 80, MINUTE).await.unwrap().id.is_none());
    let settled = other.settle("shop", &USER, &reservation.id.unwrap(), 30).await.unwrap().unwrap();
    assert_eq!((settled.outcome, settled.reserved, settled.remaining), (SettleOutcome::Open, 80, 70));
}

#[tokio::test]
async fn stopped_server_leaves_decisions_to_the_rule_until_it_returns() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let settings = SharedStoreSettings {
        timeout: Duration::from_millis(200),
        ..SharedStoreSettings::new([server.url()])
    };
    let limiter = SharedLimiter::connect(Limiter::from_yaml(RULES).unwrap(), settings).await.unwrap();
    let check = async |key| limiter.check("shop", &[(key, "a")], 1).await.unwrap();
    assert!(check("allowed").await.passes);
    server.kill();
    let Checked { passes, degraded, .. } = check("allowed").await;
    assert_eq!((passes, degraded), (true, true));
    let Checked { passes, degraded, .. } = check("denied").await;
    assert_eq!((passes, degraded), (false, true));
    let reserved = limiter.reserve("shop", &USER, 1, MINUTE).await;
    assert_eq!(reserved.unwrap_err(), HoldError::OwnerUnreachable);
    assert!(matches!(limiter.state(), SharedStoreState::Unavailable(_)));

    server.restart();
    until("the store can be used", async || limiter.state() == SharedStoreState::Ready).await;
    until("the server decides", async || !check("denied").await.degraded).await;
    assert_eq!(check("allowed").await.remaining, 0, "the server has kept the counter");
}

/// A question about the key that the path names.
fn question(request: &Request<Body>) -> Option<Question> {
    let key = request.uri().path().trim_start_matches('/').to_owned();
    Some(Question { domain: "shop".to_owned(), entries: vec![(key, "a".to_owned())], hits: 1 })
}

/// A program whose service the limiter guards. Returns the status of a request for a path.
fn program(limiter: SharedLimiter) -> impl AsyncFn(&'static str) -> StatusCode {
    let service = Router::new().route("/{key}", get(async || ()));
    let service = RateLimitLayer::new(Arc::new(limiter), question).layer(service);
    async move |path| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        service.clone().call(request).await.unwrap().status()
    }
}

#[tokio::test]
async fn tower_layers_of_two_programs_share_a_limit() {
    let server = Server::start(&[]);
    let programs = [program(connect(&server).await), program(connect(&server).await)];
    for get in &programs {
        assert_eq!(get("/allowed").await, StatusCode::OK);
    }
    for get in &programs {
        assert_eq!(get("/allowed").await, StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn tower_layer_with_too_many_waiting_requests_answers_503() {
    const REQUESTS: usize = 40_000;
    let server = Server::start(&[]);
    let settings =
        SharedStoreSettings { timeout: Duration::from_secs(2), ..SharedStoreSettings::new([server.url()]) };
    let limiter = SharedLimiter::connect(Limiter::from_yaml(RULES).unwrap(), settings).await.unwrap();
    let get = program(limiter);
    server.signal("STOP");
    let statuses = join_all((0..REQUESTS).map(|_| get("/allowed"))).await;
    let count = |expected| statuses.iter().filter(|status| **status == expected).count();
    // Those that have waited for the store pass, as the rule says.
    let (passed, unavailable) = (count(StatusCode::OK), count(StatusCode::SERVICE_UNAVAILABLE));
    assert!(passed > 0 && unavailable > 0 && passed + unavailable == REQUESTS, "{passed}, {unavailable}");
}

#[tokio::test]
async fn replaced_rules_apply_to_counters_in_the_store() {
    let server = Server::start(&[]);
    let (one, other) = (connect(&server).await, connect(&server).await);
    assert_eq!(one.check("shop", &USER, 90).await.unwrap().remaining, 10);
    assert!(other.replace_rules("domain: shop\ndescriptors: 3\n").is_err());
    other.replace_rules(&RULES.replace("100", "95")).unwrap();
    assert_eq!(other.peek("shop", &USER).await.unwrap().remaining, 5);
}

#[tokio::test]
async fn invalid_settings_are_refused_before_connecting() {
    let refused = async |settings| {
        let connected = SharedLimiter::connect(Limiter::from_yaml(RULES).unwrap(), settings).await;
        connected.unwrap_err()
    };
    let settings = |urls: &[&str]| SharedStoreSettings::new(urls.iter().copied());
    let one = settings(&["redis://127.0.0.1:1"]);
    assert!(matches!(refused(settings(&[])).await, ConnectError::NoUrl));
    let error = refused(settings(&["redis://:secret@127.0.0.1:1"])).await;
    assert!(matches!(error, ConnectError::Url(_)) && !error.to_string().contains("secret"), "{error}");
    assert!(matches!(refused(settings(&["redis://a", "rediss://b"])).await, ConnectError::MixedTls));
    assert!(matches!(
        refused(SharedStoreSettings { connections: 0, ..one.clone() }).await,
        ConnectError::NoConnection
    ));
    let error = refused(SharedStoreSettings { prefix: "{a}".to_owned(), ..one.clone() }).await;
    assert_eq!(
        error.to_string(),
        r#""{a}" is not a prefix of keys: 1 to 64 visible ASCII characters, without { } * ? [ ] and \"#
    );
    let mut no_password = one;
    no_password.passwords.server = Some(PasswordSource::File("/nonexistent/password".into()));
    assert!(matches!(refused(no_password).await, ConnectError::Password(_)));
}
