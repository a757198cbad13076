//! Keys that are refused for longer each time: in answers, for operators, over restarts and in a cluster.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::{
    admin::ok_json,
    harness::{
        Service, cluster_view, descriptor, http, replica, request, request_for, until_linked, with_hits,
    },
};

/// Two refusals in a row refuse for two minutes, then four, at most an hour.
const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: login
    rate_limit: &login
      algorithm: token_bucket
      unit: minute
      requests_per_unit: 1
      penalty: {after: 2, first: 2m, max: 1h, forget_after: 24h}
  - {key: shadow, shadow_mode: true, rate_limit: *login}
  - key: other
    rate_limit: {algorithm: fixed_window, unit: day, requests_per_unit: 0}
";

const MINUTE: Duration = Duration::from_secs(60);

fn login(user: &str) -> String {
    format!("/counters?domain=shop&key=login={user}")
}

/// The seconds after which a login would pass; `None` if it has passed.
async fn try_login(service: &Service, user: &str) -> Option<i64> {
    let status = service.status(request_for("shop", "login", user)).await;
    (status.code == Code::OverLimit as i32).then(|| status.duration_until_reset.unwrap().seconds)
}

/// Logs in, and is refused until a penalty begins. Returns its length in seconds.
async fn provoke(service: &Service, user: &str) -> Option<i64> {
    assert_eq!(try_login(service, user).await, None);
    assert_eq!(try_login(service, user).await, Some(60));
    try_login(service, user).await
}

#[tokio::test]
async fn login_is_refused_for_longer_each_time_and_then_forgotten() {
    let service = Service::start(RULES).await;
    for minutes in [2, 4, 8] {
        assert_eq!(provoke(&service, "eve").await, Some(60 * i64::from(minutes)));
        service.advance(minutes * MINUTE - Duration::from_secs(1));
        assert_eq!(try_login(&service, "eve").await, Some(1), "a refusal does not lengthen the penalty");
        assert_eq!(try_login(&service, "ann").await, None, "others are not refused");
        service.advance(Duration::from_secs(1));
    }
    service.advance(24 * 60 * MINUTE);
    assert_eq!(provoke(&service, "eve").await, Some(120));
}

#[tokio::test]
async fn operators_see_a_penalty_and_end_it() {
    let service = Service::start(RULES).await;
    let unused = ok_json(&service, "GET", &login("eve"), "").await;
    assert_eq!((&unused["penalty"], &unused["kept"]), (&Value::Null, &json!(false)));
    assert_eq!(
        unused["limit"],
        "1 per minute, algorithm: token_bucket, burst: 1, \
         penalty: {after: 2, first: 2m, factor: 2, max: 1h, forget_after: 24h}"
    );
    assert_eq!(provoke(&service, "eve").await, Some(120));
    service.advance(MINUTE);
    let expected = json!({
        "ends_after_ms": 60_000, "penalties": 1, "refusals": 0, "forgotten_after_ms": 24 * 3_600_000 - 60_000,
    });
    let shown = ok_json(&service, "GET", &login("eve"), "").await;
    assert_eq!(
        (&shown["penalty"], &shown["remaining"], &shown["passes"]),
        (&expected, &json!(0), &json!(false))
    );
    let explained = ok_json(&service, "GET", &login("eve").replace("counters", "explain"), "").await;
    let part = &explained["descriptors"][0];
    assert_eq!(part["counter"]["before"]["penalty"], expected, "{part}");
    assert_eq!((&part["code"], &part["verdict"]["retry_after_ms"]), (&json!("OVER_LIMIT"), &json!(60_000)));

    let reset = ok_json(&service, "DELETE", &login("eve"), "").await;
    assert_eq!((&reset["before"]["penalty"], &reset["penalty"]), (&expected, &Value::Null));
    assert_eq!((&reset["remaining"], &reset["kept"]), (&json!(1), &json!(false)));
    assert_eq!(provoke(&service, "eve").await, Some(120), "the next one is the first one again");
    let (_, metrics) = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap();
    assert!(metrics.contains("\ntollgate_penalties_total 2\n"), "{metrics}");
    // A counter that is set has no penalty either.
    ok_json(&service, "PUT", &login("eve"), r#"{"used": 1}"#).await;
    assert_eq!(try_login(&service, "eve").await, Some(60));
}

#[tokio::test]
async fn peek_and_refund_leave_a_penalty_alone() {
    let service = Service::start(RULES).await;
    assert_eq!(try_login(&service, "eve").await, None);
    let ask = |hits, is_negative_hits| {
        let mut asked = with_hits(request_for("shop", "login", "eve"), hits);
        asked.descriptors[0].is_negative_hits = is_negative_hits;
        asked
    };
    for _ in 0..5 {
        assert_eq!(service.status(ask(0, false)).await.code, Code::OverLimit as i32);
    }
    assert_eq!(try_login(&service, "eve").await, Some(60), "peeks are no refusals");
    assert_eq!(try_login(&service, "eve").await, Some(120));
    let refunded = service.status(ask(1, true)).await;
    assert_eq!((refunded.code, refunded.limit_remaining), (Code::Ok as i32, 0));
    assert_eq!(service.status(ask(0, false)).await.duration_until_reset.unwrap().seconds, 120);
    assert_eq!(try_login(&service, "eve").await, Some(120));
}

#[tokio::test]
async fn pass_that_another_rule_takes_back_does_not_end_a_row() {
    let service = Service::start(RULES).await;
    assert_eq!((try_login(&service, "eve").await, try_login(&service, "eve").await), (None, Some(60)));
    service.advance(MINUTE);
    let both = request("shop", vec![descriptor(&[("login", "eve")]), descriptor(&[("other", "x")])]);
    let answer = service.call(both).await.unwrap();
    assert_eq!(answer.statuses.iter().map(|status| status.code).collect::<Vec<_>>(), [1, 2]);
    let two = service.status(with_hits(request_for("shop", "login", "eve"), 2)).await;
    assert_eq!(two.code, Code::OverLimit as i32, "the second refusal in a row");
    assert_eq!(try_login(&service, "eve").await, Some(120));
}

#[tokio::test]
async fn rule_in_shadow_mode_counts_refusals_and_lets_pass() {
    let service = Service::start(RULES).await;
    for _ in 0..4 {
        assert_eq!(service.status(request_for("shop", "shadow", "eve")).await.code, Code::Ok as i32);
    }
    let shown = ok_json(&service, "GET", "/counters?domain=shop&key=shadow=eve", "").await;
    assert_eq!(
        (&shown["penalty"]["penalties"], &shown["penalty"]["ends_after_ms"]),
        (&json!(1), &json!(120_000)),
        "{shown}"
    );
}

/// A rule in quota mode, and one that another rule replaces, each with a penalty.
const BESIDE_OTHERS: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: team
    quota_mode: true
    rate_limit: &login
      name: login
      algorithm: token_bucket
      unit: minute
      requests_per_unit: 1
      penalty: {after: 2, first: 2m}
  - {key: spare, quota_mode: true, rate_limit: {algorithm: fixed_window, unit: day, requests_per_unit: 100}}
  - {key: empty, quota_mode: true, rate_limit: {algorithm: fixed_window, unit: day, requests_per_unit: 0}}
  - {key: login, rate_limit: *login}
  - key: staff
    rate_limit: {replaces: [{name: login}], algorithm: fixed_window, unit: day, requests_per_unit: 100}
";

/// Whether a call with these descriptors of `eve` passes, and the seconds after which the first one would; `None` if it
/// has passed.
async fn call(service: &Service, keys: &[&str]) -> (bool, Option<i64>) {
    let descriptors = keys.iter().map(|key| descriptor(&[(*key, "eve")])).collect();
    let answer = service.call(request("shop", descriptors)).await.unwrap();
    let first = answer.statuses[0].clone();
    let refused = first.code == Code::OverLimit as i32;
    let wait = refused.then(|| first.duration_until_reset.unwrap().seconds);
    (answer.overall_code == Code::Ok as i32, wait)
}

#[tokio::test]
async fn refusals_in_quota_mode_count_though_the_call_passes() {
    let service = Service::start(BESIDE_OTHERS).await;
    assert_eq!(call(&service, &["team", "spare"]).await, (true, None));
    assert_eq!(call(&service, &["team", "spare"]).await, (true, Some(60)));
    assert_eq!(call(&service, &["team", "spare"]).await, (true, Some(120)), "the second refusal in a row");
    assert_eq!(call(&service, &["team", "empty"]).await, (false, Some(120)), "all quotas refuse");
    service.advance(2 * MINUTE - Duration::from_secs(1));
    assert_eq!(call(&service, &["team", "spare"]).await, (true, Some(1)), "the limit has room meanwhile");
    service.advance(Duration::from_secs(1));
    assert_eq!(
        call(&service, &["team", "empty"]).await,
        (true, None),
        "a quota that is left lets the call pass"
    );

    // Refusals of calls that all quotas refuse count as well, and a pass in quota mode ends a row.
    assert_eq!(call(&service, &["team", "empty"]).await, (false, Some(60)));
    service.advance(MINUTE);
    assert_eq!(call(&service, &["team", "empty"]).await, (true, None));
    assert_eq!(call(&service, &["team", "empty"]).await, (false, Some(60)));
    assert_eq!(call(&service, &["team", "empty"]).await, (false, Some(240)), "the second penalty");
}

#[tokio::test]
async fn replaced_rule_counts_nothing_and_refuses_nothing() {
    let service = Service::start(BESIDE_OTHERS).await;
    assert_eq!(call(&service, &["login"]).await, (true, None));
    assert_eq!(call(&service, &["login"]).await, (false, Some(60)));
    for _ in 0..3 {
        assert_eq!(call(&service, &["login", "staff"]).await, (true, None), "it is not asked");
    }
    // Those calls were neither refusals nor passes of the replaced rule: its row goes on.
    service.advance(MINUTE);
    assert_eq!(call(&service, &["login", "staff"]).await, (true, None));
    let two = service.status(with_hits(request_for("shop", "login", "eve"), 2)).await;
    assert_eq!(two.code, Code::OverLimit as i32, "the second refusal in a row");
    assert_eq!(call(&service, &["login"]).await, (false, Some(120)));
    assert_eq!(call(&service, &["login", "staff"]).await, (true, None), "its penalty refuses nothing");
    assert_eq!(call(&service, &["login"]).await, (false, Some(120)), "and is not ended");
}

#[tokio::test]
async fn penalty_in_a_snapshot_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counters");
    let settings = [("store.snapshot", path.to_str().unwrap())];
    let service = Service::start_with(RULES, &settings).await;
    assert_eq!(provoke(&service, "eve").await, Some(120));
    service.terminate().await;
    service.task.await.unwrap().unwrap();
    // Its clock begins where that of the first one did.
    let service = Service::start_with(RULES, &settings).await;
    assert_eq!(try_login(&service, "eve").await, Some(120));
    service.advance(2 * MINUTE);
    assert_eq!(provoke(&service, "eve").await, Some(240));
}

/// The users of these numbers, some of which belong to each replica.
fn users() -> impl Iterator<Item = String> {
    (0..12).map(|number| format!("user {number}"))
}

#[tokio::test]
async fn penalty_moves_with_its_counter_in_a_cluster() {
    let secret: TempDir = tempfile::tempdir().unwrap();
    let rules = RULES.replace("first: 2m", "first: 40m");
    let first = replica(&rules, &secret, "off").await;
    let address = cluster_view(&first).await["members"][0]["address"].as_str().unwrap().to_owned();
    for user in users() {
        assert!(provoke(&first, &user).await.is_some_and(|wait| wait > 2_000), "{user}");
    }
    // About half of the counters move to the second replica.
    let second = replica(&rules, &secret, &address).await;
    until_linked(&first).await;
    until_linked(&second).await;
    for (user, replica) in users().zip([&first, &second].into_iter().cycle()) {
        assert!(try_login(replica, &user).await.is_some_and(|wait| wait > 2_000), "{user}");
        let page = login(&user.replace(' ', "%20"));
        let shown = ok_json(replica, "GET", &page, "").await;
        assert_eq!(shown["penalty"]["penalties"], 1, "{shown}");
    }
    let ended = "user%200";
    ok_json(&second, "DELETE", &login(ended), "").await;
    // The first replica leaves, and the second one gets all counters.
    first.terminate().await;
    first.task.await.unwrap().unwrap();
    for user in users().skip(1) {
        assert!(try_login(&second, &user).await.is_some_and(|wait| wait > 2_000), "{user}");
    }
    assert_eq!(try_login(&second, "user 0").await, None, "a reset ends a penalty in a cluster, too");
}
