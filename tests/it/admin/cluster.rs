//! The operators' pages of replicas that share keys.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::{
    admin::{admin, admin_with, good},
    harness::{Service, one, until, with_hits},
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

/// Services of one cluster, and the file of its secret.
struct Cluster {
    replicas: Vec<Service>,
    _secret: TempDir,
}

impl Cluster {
    /// So many replicas that agree on who holds what.
    async fn of(number: usize) -> Self {
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
                views.push(good(replica, "GET", "/cluster", "").await);
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
    let view = good(replica, "GET", "/cluster", "").await;
    view["members"][0]["address"].as_str().unwrap().to_owned()
}

fn members(view: &Value) -> &[Value] {
    view["members"].as_array().unwrap()
}

fn serving(view: &Value) -> usize {
    members(view).iter().filter(|member| member["state"] == "serving").count()
}

#[tokio::test]
async fn every_replica_shows_the_same_members_and_who_holds_how_much() {
    let cluster = Cluster::of(2).await;
    let mut held = 0;
    for replica in &cluster.replicas {
        let view = good(replica, "GET", "/cluster", "").await;
        let own = members(&view).iter().find(|member| member["id"] == view["self"]).unwrap();
        assert_eq!((&own["holding"], &view["isolated"]), (&view["holding"], &json!(false)), "{view}");
        let all: u64 = members(&view).iter().map(|member| member["holding"].as_u64().unwrap()).sum();
        held += view["holding"].as_u64().unwrap();
        assert_eq!(all, 4_096, "{view}");
        until(async || {
            let view = good(replica, "GET", "/cluster", "").await;
            (members(&view)[0]["rules"] == members(&view)[1]["rules"]).then_some(())
        })
        .await;
    }
    assert_eq!(held, 4_096);
}

#[tokio::test]
async fn a_counter_is_shown_explained_reset_and_set_from_any_replica() {
    let cluster = Cluster::of(2).await;
    let [one_of, other] = &cluster.replicas[..] else { panic!("there are two") };
    // Some of these are held by the one, some by the other.
    for user in ["ann", "bob", "cid", "dan", "eve", "fay"] {
        for key in ["user", "bucket", "queue", "plain"] {
            let page = format!("/counters?domain=shop&key={key}={user}");
            one_of.ask(with_hits(one("shop", key, user), 3)).await.unwrap();
            for replica in [one_of, other] {
                let shown = good(replica, "GET", &page, "").await;
                assert_eq!((&shown["remaining"], &shown["kept"]), (&json!(7), &json!(true)), "{shown}");
                let told = good(replica, "GET", &page.replace("counters?", "explain?hits=8&"), "").await;
                let told = (&told["code"], &told["descriptors"][0]);
                assert_eq!(told.0, "OVER_LIMIT", "{}", told.1);
                assert_eq!(told.1["verdict"]["never"], Value::Null, "{}", told.1);
                assert!(told.1["verdict"]["retry_after_ms"].as_u64().unwrap() > 0, "{}", told.1);
                let told = good(replica, "GET", &page.replace("counters?", "explain?hits=2&"), "").await;
                let told = (&told["code"], &told["descriptors"][0]);
                assert_eq!((told.0, &told.1["remaining"]), (&json!("OK"), &json!(5)), "{}", told.1);
                let never = good(replica, "GET", &page.replace("counters?", "explain?hits=11&"), "").await;
                assert_eq!(never["descriptors"][0]["verdict"]["never"], true, "{never}");
            }
            let reset = good(other, "DELETE", &page, "").await;
            assert_eq!(
                (&reset["before"]["remaining"], &reset["remaining"]),
                (&json!(7), &json!(10)),
                "{reset}"
            );
            let set = good(other, "PUT", &page, r#"{"used": 25}"#).await;
            assert_eq!((&set["before"]["remaining"], &set["remaining"]), (&json!(10), &json!(0)), "{set}");
            assert_eq!(one_of.status(one("shop", key, user)).await.code, 2, "{key}");
            let set = good(one_of, "PUT", &page, r#"{"used": 4}"#).await;
            assert_eq!(set["remaining"], 6, "{set}");
            let status = other.status(with_hits(one("shop", key, user), 0)).await;
            assert_eq!(status.limit_remaining, 6, "{key}");
        }
    }
}

#[tokio::test]
async fn an_explanation_of_several_limits_tells_what_the_request_is_then_answered_anywhere() {
    let cluster = Cluster::of(2).await;
    let [one_of, other] = &cluster.replicas[..] else { panic!("there are two") };
    for user in ["ann", "bob", "cid", "dan"] {
        one_of.ask(with_hits(one("shop", "user", user), 8)).await.unwrap();
        for replica in [one_of, other] {
            // The same counter twice; and one whose limit is passed.
            for (query, code, left) in [
                (format!("key=user={user}&key=user={user}"), "OK", [json!(1), json!(0)]),
                (format!("key=user={user}&key=bucket={user}&hits=3"), "OVER_LIMIT", [json!(2), json!(10)]),
            ] {
                let told = good(replica, "GET", &format!("/explain?domain=shop&{query}"), "").await;
                assert_eq!(told["code"], code, "{told}");
                let each = [&told["descriptors"][0]["remaining"], &told["descriptors"][1]["remaining"]];
                assert_eq!(each, [&left[0], &left[1]], "{told}");
            }
        }
    }
}

#[tokio::test]
async fn while_the_others_are_silent_a_counter_cannot_be_seen_and_the_answer_says_so() {
    // Takes connections, and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let seed = silent.local_addr().unwrap().to_string();
    let (_folder, file) = secret();
    let replica = Service::start_unready(RULES, &settings(&file, &seed)).await;
    until(async || (good(&replica, "GET", "/rules", "").await["generation"] == 1).then_some(())).await;
    for (method, body) in [("GET", ""), ("DELETE", ""), ("PUT", r#"{"used": 1}"#)] {
        let (code, why) = admin(&replica, method, "/counters?domain=shop&key=user=ann", body).await;
        assert_eq!(code, 503, "{why}");
        assert!(why.contains("no replica that holds this counter can be reached"), "{why}");
    }
    let (code, why) = admin(&replica, "GET", "/explain?domain=shop&key=user=ann", "").await;
    assert_eq!((code, why.as_str()), (503, "still joining the cluster\n"));
    assert_eq!(replica.http("GET", "/readyz", "").await, (503, "still joining the cluster\n".to_owned()));
    let view = good(&replica, "GET", "/cluster", "").await;
    assert_eq!(members(&view)[0]["state"], "joining");
}

#[tokio::test]
async fn a_member_that_is_declared_dead_is_gone_at_once_and_nobody_else() {
    let cluster = Cluster::of(2).await;
    let [one_of, other] = &cluster.replicas[..] else { panic!("there are two") };
    let id = |view: &Value| view["self"].as_str().unwrap().to_owned();
    let (own, others) =
        (id(&good(one_of, "GET", "/cluster", "").await), id(&good(other, "GET", "/cluster", "").await));
    let page = |member: &str| format!("/cluster/declare-dead?member={member}");
    for (query, code, why) in [
        (page(&own), 400, "is this replica itself"),
        (page("12345"), 400, "16 hexadecimal digits"),
        (page("00000000000000ab"), 404, "is not a known member"),
        ("/cluster/declare-dead".to_owned(), 400, "member"),
    ] {
        let (answered, told) = admin(one_of, "POST", &query, "").await;
        assert_eq!(answered, code, "{told}");
        assert!(told.contains(why), "{told}");
    }
    assert_eq!(admin(one_of, "GET", &page(&others), "").await.0, 405);
    let told = good(one_of, "POST", &page(&others), "").await;
    assert_eq!(told, json!({"member": others, "declared": "dead"}));
    let view = good(one_of, "GET", "/cluster", "").await;
    let of = |id: &str| members(&view).iter().find(|member| member["id"] == id).cloned();
    assert_ne!(of(&others).unwrap()["state"], "serving", "{view}");
    assert_eq!(of(&own).unwrap()["state"], "serving", "{view}");
}

#[tokio::test]
async fn a_replica_that_counts_by_itself_says_that_it_has_no_cluster() {
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
