//! Denials in the log.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    layer::{Context, Layer, SubscriberExt},
    registry,
};

use crate::harness::{Service, descriptor, request, request_for, with_hits};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: each_user, unit: minute, requests_per_unit: 1, algorithm: fixed_window}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: plan
    descriptors:
      - key: seat
        rate_limit: {unit: minute, requests_per_unit: 0}
";

/// The denials in the log of this thread, each as its fields.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.0.get("message").is_some_and(|message| message == "denied") {
            self.0.lock().unwrap().push(fields.0);
        }
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl Log {
    /// Captures the log of this thread, on which the test and its service run, while the guard lives.
    fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(registry().with(log.clone()));
        (log, guard)
    }

    fn field(&self, name: &str) -> Vec<Option<String>> {
        self.0.lock().unwrap().iter().map(|fields| fields.get(name).cloned()).collect()
    }
}

#[tokio::test]
async fn denial_log_has_rule_descriptor_limit_and_retry_after() {
    let (log, _guard) = Log::capture();
    let service = Service::start_on_this_thread(RULES, &[("log.denials", "10/s")]).await;
    service.call(with_hits(request_for("shop", "user", "ada\nx"), 1)).await.unwrap();
    assert!(log.field("rule").is_empty(), "a passing call is not logged");
    service.call(with_hits(request_for("shop", "user", "ada\nx"), 1)).await.unwrap();
    service.call(request("shop", vec![descriptor(&[("plan", "a"), ("seat", "1")])])).await.unwrap();

    let fields = log.0.lock().unwrap().clone();
    let event_fields = |names: [&str; 7], values: [&str; 7]| -> BTreeMap<String, String> {
        names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), value.to_owned())).collect()
    };
    let names = ["message", "domain", "rule", "descriptor", "limit", "call_passes", "left_out"];
    let mut user =
        event_fields(names, ["denied", "\"shop\"", "\"each_user\"", "\"user=ada\\nx\"", "1", "false", "0"]);
    user.insert("retry_after".to_owned(), "36.0".to_owned());
    let seat = event_fields(
        names,
        ["denied", "\"shop\"", "\"shop.plan.seat\"", "\"plan=a,seat=1\"", "0", "false", "0"],
    );
    assert_eq!(fields, [user, seat]);
}

#[tokio::test]
async fn denial_log_keeps_its_rate_limit() {
    let (log, _guard) = Log::capture();
    let service = Service::start_on_this_thread(RULES, &[("log.denials", "2/s")]).await;
    let mut client = service.client().await;
    for _ in 0..2 {
        for _ in 0..6 {
            client.should_rate_limit(with_hits(request_for("shop", "user", "ada"), 1)).await.unwrap();
        }
        service.advance(Duration::from_secs(1));
    }
    let left_out = log.field("left_out").into_iter().flatten();
    assert_eq!(left_out.collect::<Vec<_>>(), ["0", "0", "3", "0"], "of 5 denials, then of 6");
}

#[tokio::test]
async fn denial_log_marks_shadow_mode_and_skips_shadow_rules() {
    let (log, _guard) = Log::capture();
    let overrides = [("log.denials", "10/s"), ("limiter.shadow_mode", "true")];
    let service = Service::start_on_this_thread(RULES, &overrides).await;
    service.call(request_for("shop", "trial", "x")).await.unwrap();
    service.call(with_hits(request_for("shop", "user", "ada"), 2)).await.unwrap();
    assert_eq!(log.field("call_passes"), [Some("true".to_owned())]);
    assert_eq!(log.field("retry_after"), [None], "two hits never pass");
}

#[tokio::test]
async fn denial_log_is_off_by_default() {
    let (log, _guard) = Log::capture();
    let service = Service::start_on_this_thread(RULES, &[]).await;
    service.call(with_hits(request_for("shop", "user", "ada"), 2)).await.unwrap();
    assert!(log.field("rule").is_empty());
}
