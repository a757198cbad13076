//! The admin pages of replicas of one cluster.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::{
    admin::{admin, admin_with, ok_json},
    harness::{Service, request_for, until, with_hits},
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - {key: user, rate_limit: {algorithm: fixed_window, unit: hour, requests_per_unit: 10}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 10}}
  - {key: queue, rate_limit: {algorithm: leaky_queue, unit: hour, requests_per_unit: 10, burst: 9}}
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 10}}
";

/// Services of one cluster, and the file with its secret.
struct Cluster {
    replicas: Vec<Service>,
    _secret: TempDir,
}

impl Cluster {
    /// `number` replicas that agree on the owner of every slot.
    async fn start(number: usize) -> Self {
        let (folder, file) = secret();
        let mut replicas = vec![Service::start_with(RULES, &settings(&file, "off")).await];
        let seed = address(&replicas[0]).await;
        while replicas.len() < number {
            replicas.push(Service::start_with(RULES, &settings(&file, &seed)).await);
        }
        let cluster = Self { replicas, _secret: folder };
        until(async || {
            let mut views = Vec::new();
            for replica in &cluster.replicas {
                views.push(ok_json(replica, "GET", "/cluster", "").await);
            }
            let settled = views.iter().all(|view| {
                let serving = serving(view);
                view["moving"] == 0 && serving == number && view["view"] == views[0]["view"]
            });
            settled.then_some(())
        })
        .await;
        cluster
    }
}

fn secret() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "a secret that replicas share").unwrap();
    (folder, file.to_str().unwrap().to_owned())
}

fn settings<'a>(secret: &'a str, seed: &'a str) -> [(&'a str, &'a str); 3] {
    [("cluster.listen", "127.0.0.1:0"), ("cluster.secret_file", secret), ("cluster.seed", seed)]
}

async fn address(replica: &Service) -> String {
    let view = ok_json(replica, "GET", "/cluster", "").await;
    view["members"][0]["address"].as_str().unwrap().to_owned()
}

fn members(view: &Value) -> &[Value] {
    view["members"].as_array().unwrap()
}

fn serving(view: &Value) -> usize {
    members(view).iter().filter(|member| member["state"] == "serving").count()
}

#[tokio::test]
async fn every_replica_shows_same_members_and_slot_counts() {
    let cluster = Cluster::start(2).await;
    let mut held = 0;
    for replica in &cluster.replicas {
        let view = ok_json(replica, "GET", "/cluster", "").await;
        let own = members(&view).iter().find(|member| member["id"] == view["self"]).unwrap();
        assert_eq!((&own["holding"], &view["isolated"]), (&view["holding"], &json!(false)), "{view}");
        let all: u64 = members(&view).iter().map(|member| member["holding"].as_u64().unwrap()).sum();
        held += view["holding"].as_u64().unwrap();
        assert_eq!(all, 4_096, "{view}");
        until(async || {
            let view = ok_json(replica, "GET", "/cluster", "").await;
            (members(&view)[0]["rules"] == members(&view)[1]["rules"]).then_some(())
        })
        .await;
    }
    assert_eq!(held, 4_096);
}

#[tokio::test]
async fn counter_can_be_shown_and_changed_from_any_replica() {
    let cluster = Cluster::start(2).await;
    let [first, second] = &cluster.replicas[..] else { panic!("there are two") };
    // Some of these keys belong to the one replica, some to the other.
    for user in ["ann", "bob", "cid", "dan", "eve", "fay"] {
        for key in ["user", "bucket", "queue", "plain"] {
            let page = format!("/counters?domain=shop&key={key}={user}");
            first.call(with_hits(request_for("shop", key, user), 3)).await.unwrap();
            for replica in [first, second] {
                let shown = ok_json(replica, "GET", &page, "").await;
                assert_eq!((&shown["remaining"], &shown["kept"]), (&json!(7), &json!(true)), "{shown}");
                let explanation =
                    ok_json(replica, "GET", &page.replace("counters?", "explain?hits=8&"), "").await;
                let explanation = (&explanation["code"], &explanation["descriptors"][0]);
                assert_eq!(explanation.0, "OVER_LIMIT", "{}", explanation.1);
                assert_eq!(explanation.1["verdict"]["never"], Value::Null, "{}", explanation.1);
                assert!(
                    explanation.1["verdict"]["retry_after_ms"].as_u64().unwrap() > 0,
                    "{}",
                    explanation.1
                );
                let explanation =
                    ok_json(replica, "GET", &page.replace("counters?", "explain?hits=2&"), "").await;
                let explanation = (&explanation["code"], &explanation["descriptors"][0]);
                assert_eq!(
                    (explanation.0, &explanation.1["remaining"]),
                    (&json!("OK"), &json!(5)),
                    "{}",
                    explanation.1
                );
                let never = ok_json(replica, "GET", &page.replace("counters?", "explain?hits=11&"), "").await;
                assert_eq!(never["descriptors"][0]["verdict"]["never"], true, "{never}");
            }
            let reset = ok_json(second, "DELETE", &page, "").await;
            assert_eq!(
                (&reset["before"]["remaining"], &reset["remaining"]),
                (&json!(7), &json!(10)),
                "{reset}"
            );
            let set = ok_json(second, "PUT", &page, r#"{"used": 25}"#).await;
            assert_eq!((&set["before"]["remaining"], &set["remaining"]), (&json!(10), &json!(0)), "{set}");
            assert_eq!(first.status(request_for("shop", key, user)).await.code, 2, "{key}");
            let set = ok_json(first, "PUT", &page, r#"{"used": 4}"#).await;
            assert_eq!(set["remaining"], 6, "{set}");
            let status = second.status(with_hits(request_for("shop", key, user), 0)).await;
            assert_eq!(status.limit_remaining, 6, "{key}");
        }
    }
}

#[tokio::test]
async fn explanation_of_several_limits_is_equal_on_every_replica() {
    let cluster = Cluster::start(2).await;
    let [first, second] = &cluster.replicas[..] else { panic!("there are two") };
    for user in ["ann", "bob", "cid", "dan"] {
        first.call(with_hits(request_for("shop", "user", user), 8)).await.unwrap();
        for replica in [first, second] {
            // The same counter twice; and a counter above its limit.
            for (query, code, left) in [
                (format!("key=user={user}&key=user={user}"), "OK", [json!(1), json!(0)]),
                (format!("key=user={user}&key=bucket={user}&hits=3"), "OVER_LIMIT", [json!(2), json!(10)]),
            ] {
                let explanation = ok_json(replica, "GET", &format!("/explain?domain=shop&{query}"), "").await;
                assert_eq!(explanation["code"], code, "{explanation}");
                let each = [
                    &explanation["descriptors"][0]["remaining"],
                    &explanation["descriptors"][1]["remaining"],
                ];
                assert_eq!(each, [&left[0], &left[1]], "{explanation}");
            }
        }
    }
}

#[tokio::test]
async fn counter_of_unreachable_owner_answers_503_with_reason() {
    // Accepts connections and never sends a byte.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let seed = silent.local_addr().unwrap().to_string();
    let (_folder, file) = secret();
    let replica = Service::start_unready(RULES, &settings(&file, &seed)).await;
    until(async || (ok_json(&replica, "GET", "/rules", "").await["generation"] == 1).then_some(())).await;
    for (method, body) in [("GET", ""), ("DELETE", ""), ("PUT", r#"{"used": 1}"#)] {
        let (code, why) = admin(&replica, method, "/counters?domain=shop&key=user=ann", body).await;
        assert_eq!(code, 503, "{why}");
        assert!(why.contains("the owner of this counter cannot be reached"), "{why}");
    }
    let (code, why) = admin(&replica, "GET", "/explain?domain=shop&key=user=ann", "").await;
    assert_eq!((code, why.as_str()), (503, "still joining the cluster\n"));
    assert_eq!(replica.http("GET", "/readyz", "").await, (503, "still joining the cluster\n".to_owned()));
    let view = ok_json(&replica, "GET", "/cluster", "").await;
    assert_eq!(members(&view)[0]["state"], "joining");
}

#[tokio::test]
async fn declare_dead_removes_only_that_member_at_once() {
    let cluster = Cluster::start(2).await;
    let [first, second] = &cluster.replicas[..] else { panic!("there are two") };
    let id = |view: &Value| view["self"].as_str().unwrap().to_owned();
    let (own, others) =
        (id(&ok_json(first, "GET", "/cluster", "").await), id(&ok_json(second, "GET", "/cluster", "").await));
    let page = |member: &str| format!("/cluster/declare-dead?member={member}");
    for (query, code, why) in [
        (page(&own), 400, "is this replica itself"),
        (page("12345"), 400, "16 hexadecimal digits"),
        (page("00000000000000ab"), 404, "is not a known member"),
        ("/cluster/declare-dead".to_owned(), 400, "member"),
    ] {
        let (answered, answer) = admin(first, "POST", &query, "").await;
        assert_eq!(answered, code, "{answer}");
        assert!(answer.contains(why), "{answer}");
    }
    assert_eq!(admin(first, "GET", &page(&others), "").await.0, 405);
    let answer = ok_json(first, "POST", &page(&others), "").await;
    assert_eq!(answer, json!({"member": others, "declared": "dead"}));
    let view = ok_json(first, "GET", "/cluster", "").await;
    let of = |id: &str| members(&view).iter().find(|member| member["id"] == id).cloned();
    assert_ne!(of(&others).unwrap()["state"], "serving", "{view}");
    assert_eq!(of(&own).unwrap()["state"], "serving", "{view}");
}

#[tokio::test]
async fn cluster_pages_without_cluster_answer_404() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "known").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    let known = "authorization: Bearer known\r\n";
    for (method, path) in [("GET", "/cluster"), ("POST", "/cluster/declare-dead?member=00000000000000ab")] {
        let (code, why) = admin_with(&service, known, method, path, "").await;
        assert_eq!((code, why.as_str()), (404, "cluster.listen is off: this is a single replica\n"));
        assert_eq!(admin_with(&service, "", method, path, "").await.0, 401, "{path}");
    }
}
