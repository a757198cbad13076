//! The operators' page: its files, and the stream of samples that they show.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};
use tokio::{io::AsyncBufReadExt, net::TcpStream, time::timeout};

use crate::{
    admin::{RULES, access::FOREIGN, admin, admin_with, ok_json},
    harness::{Answer, Service, TIMEOUT, request_for, send, until},
};

/// The maximum number of open pages.
const PAGES_MAX: usize = 10;

/// A request to `/live` and its answer so far, whose first line has points.
struct Live {
    answer: Answer<TcpStream>,
    points: Option<Vec<Value>>,
}

impl Live {
    async fn open(service: &Service, header: &str) -> Self {
        let headers = format!("host: localhost\r\n{header}");
        let answer = Answer::get(service.addresses.admin, &headers, "/live").await;
        let mut live = Self { answer, points: None };
        if live.answer.code == 200 {
            let first = live.next().await.unwrap();
            live.points = Some(first["points"].as_array().unwrap().clone());
        }
        live
    }

    /// The next sample; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        let read = async {
            loop {
                let mut line = String::new();
                if self.answer.body.read_line(&mut line).await.unwrap() == 0 {
                    return None;
                }
                // Other lines are the sizes of chunks.
                if line.starts_with('{') {
                    return Some(serde_json::from_str(&line).unwrap());
                }
            }
        };
        timeout(TIMEOUT, read).await.unwrap()
    }
}

async fn with_token() -> (Service, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "first").unwrap();
    (Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await, folder)
}

/// The paths that a file of the page refers to.
fn references(text: &str) -> impl Iterator<Item = String> {
    text.split('"').filter_map(|part| match part.strip_prefix("./") {
        Some(module) if module.ends_with(".js") => Some(format!("/page/{module}")),
        _ => part.starts_with("/page/").then(|| part.to_owned()),
    })
}

#[tokio::test]
async fn page_files_are_public_and_refer_to_nothing_elsewhere() {
    let (service, _folder) = with_token().await;
    let (mut seen, mut found) = (BTreeSet::new(), vec!["/".to_owned()]);
    while let Some(path) = found.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let (code, text) = admin(&service, "GET", &path, "").await;
        assert_eq!(code, 200, "{path}");
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("://") && !text.contains(" style="), "{path}");
        found.extend(references(&text));
    }
    assert!(seen.len() > 10, "{seen:?}");
    assert_eq!(admin(&service, "POST", "/", "").await.0, 405);
}

#[tokio::test]
async fn page_forbids_inline_scripts_and_other_origins() {
    let service = Service::start(RULES).await;
    for path in ["/", "/page/main.js", "/page/style.css", "/page/icon.svg"] {
        let answer = Answer::get(service.addresses.admin, "host: localhost\r\n", path).await;
        let policy =
            answer.head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
        let mut directives: Vec<_> = policy.split("; ").collect();
        directives.sort_unstable();
        assert_eq!(
            directives,
            [
                "base-uri 'none'",
                "connect-src 'self'",
                "default-src 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
                "img-src 'self'",
                "script-src 'self'",
                "style-src 'self'"
            ],
            "{path}"
        );
        let is_sniffing_off = answer.head.lines().any(|line| line == "x-content-type-options: nosniff");
        assert!(is_sniffing_off, "{}", answer.head);
    }
}

#[tokio::test]
async fn samples_need_token_and_page_does_not() {
    let (service, _folder) = with_token().await;
    assert_eq!(admin(&service, "GET", "/", "").await.0, 200);
    assert_eq!(Live::open(&service, "").await.answer.code, 401);
    assert_eq!(Live::open(&service, "authorization: Bearer wrong\r\n").await.answer.code, 401);
    let mut live = Live::open(&service, "authorization: Bearer first\r\n").await;
    assert_eq!(live.answer.code, 200);
    assert_eq!(live.next().await.unwrap()["rules"]["generation"], 1);
}

#[tokio::test]
async fn foreign_page_reads_no_sample_and_resets_no_counter() {
    let service = Service::start(RULES).await;
    let counter = "/counters?domain=shop&key=user=bob";
    service.call(request_for("shop", "user", "bob")).await.unwrap();
    for headers in FOREIGN {
        assert_eq!(send(service.addresses.admin, headers, "GET", "/live", "").await.0, 403, "{headers:?}");
        assert_eq!(send(service.addresses.admin, headers, "DELETE", counter, "").await.0, 403, "{headers:?}");
    }
    assert_eq!(ok_json(&service, "GET", counter, "").await["remaining"], 1);
}

#[tokio::test]
async fn foreign_origin_with_token_resets_no_counter() {
    let (service, _folder) = with_token().await;
    let counter = "/counters?domain=shop&key=user=bob";
    service.call(request_for("shop", "user", "bob")).await.unwrap();
    let token = "authorization: Bearer first\r\n";
    for origin in ["origin: http://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        let (code, _) = admin_with(&service, &format!("{token}{origin}"), "DELETE", counter, "").await;
        assert_eq!(code, 403, "{origin}");
    }
    let own = format!("{token}origin: http://localhost\r\nsec-fetch-site: same-origin\r\n");
    let (code, answer) = admin_with(&service, &own, "DELETE", counter, "").await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((code, &answer["before"]["remaining"], &answer["remaining"]), (200, &json!(1), &json!(2)));
}

#[tokio::test]
async fn eleventh_page_is_refused_until_one_closes() {
    let service = Service::start(RULES).await;
    let mut pages = Vec::new();
    for _ in 0..PAGES_MAX {
        let mut page = Live::open(&service, "").await;
        assert!(page.answer.code == 200 && page.next().await.is_some());
        pages.push(page);
    }
    let (code, why) = admin(&service, "GET", "/live", "").await;
    assert!(code == 503 && why.contains("10 pages are open"), "{code} {why}");
    assert_eq!(admin(&service, "GET", "/rules", "").await.0, 200);
    drop(pages.pop());
    until(async || {
        let page = Live::open(&service, "").await;
        (page.answer.code == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn page_opened_later_begins_with_points_that_samples_have_too() {
    let service = Service::start(RULES).await;
    until(async || {
        let points = Live::open(&service, "").await.points.unwrap();
        (!points.is_empty()).then_some(())
    })
    .await;
    // Samples go on without a page, every five seconds.
    service.call(request_for("shop", "user", "bob")).await.unwrap();
    let mut page = until(async || {
        let page = Live::open(&service, "").await;
        let newest = page.points.as_ref().unwrap().last().unwrap();
        (newest["decisions"]["ok"] == 1).then_some(page)
    })
    .await;
    let points = page.points.take().unwrap();
    assert_eq!(points[0]["decisions"]["ok"], 0);
    let (newest, sample) = (points.last().unwrap(), page.next().await.unwrap());
    for name in newest.as_object().unwrap().keys() {
        assert!(!sample[name].is_null(), "{name}");
    }
    assert_eq!(newest["requests"]["count"], sample["requests"]["count"]);
    assert_eq!(newest["requests"]["up_to"], sample["requests"]["up_to"]);
}

#[tokio::test]
async fn open_page_ends_at_shutdown() {
    let service = Service::start(RULES).await;
    let mut page = Live::open(&service, "").await;
    assert!(page.next().await.is_some());
    service.terminate().await;
    timeout(TIMEOUT, service.task).await.unwrap().unwrap().unwrap();
    while page.next().await.is_some() {}
}

#[tokio::test]
async fn sample_shows_decisions_denied_keys_and_changed_rules() {
    let service = Service::start(RULES).await;
    let list = ok_json(&service, "GET", "/rules?list=", "").await;
    let rules = list["list"]["rules"].as_array().unwrap();
    let user = &rules.iter().find(|rule| rule["path"] == "shop.user").unwrap()["index"];
    let mut page = Live::open(&service, "").await;
    assert_eq!(
        page.next().await.unwrap()["decisions"],
        json!({"ok": 0, "over_limit": 0, "shadow_denials": 0})
    );
    // Two pass and the third is refused.
    for _ in 0..3 {
        service.call(request_for("shop", "user", "b,b")).await.unwrap();
    }
    let mut samples = Vec::new();
    let last = loop {
        let sample = page.next().await.unwrap();
        samples.push(sample.clone());
        if sample["decisions"]["over_limit"] == 1 {
            break sample;
        }
    };
    assert_eq!(last["decisions"]["ok"], 2);
    let changes = samples.iter().rev().flat_map(|sample| sample["each_rule"]["changed"].as_array().unwrap());
    let latest = changes.into_iter().find(|change| change[0] == *user).unwrap();
    // Classic rules count the refused hit too.
    assert_eq!(latest[1], json!([2, 1, 3, 1, 0, 0]));
    assert_eq!(last["each_rule"]["hash"], list["list"]["hash"]);
    assert_eq!(
        last["top"]["denied"],
        json!([{"key": r"shop user=b\,b", "count": 1, "error": 0, "rate": 0.0}])
    );
    let explained = ok_json(&service, "GET", r"/explain?domain=shop&key=user=b%5C,b", "").await;
    assert_eq!(explained["code"], "OVER_LIMIT");
}

#[tokio::test]
async fn rules_list_shows_problem_with_its_line() {
    let service = Service::start(RULES).await;
    let broken = RULES.replace("requests_per_unit: 10,", "requests_per_unit: ten,");
    fs::write(service.rules.path().join("rules.yaml"), broken).unwrap();
    let shown = until(async || {
        let page = ok_json(&service, "GET", "/rules?list=", "").await;
        (!page["last_error"].is_null()).then_some(page)
    })
    .await;
    assert_eq!(shown["list"]["rules"].as_array().unwrap().len(), 8, "the active rules stay");
    let problem = &shown["last_error"]["shown"][0];
    let line = &problem["lines"][2];
    assert_eq!((&problem["line"], &line[0]), (&json!(8), &json!(8)), "{problem}");
    assert!(line[1].as_str().unwrap().contains("requests_per_unit: ten,"), "{problem}");
    assert!(ok_json(&service, "GET", "/rules", "").await["list"].is_null());
    assert_eq!(admin(&service, "GET", "/rules?lost=true", "").await.0, 400);
}

#[tokio::test]
async fn rules_list_has_rules_with_all_words_only() {
    let service = Service::start(RULES).await;
    let found = async |words: &str| {
        let list = ok_json(&service, "GET", &format!("/rules?list={words}"), "").await["list"].take();
        let paths: Vec<_> =
            list["rules"].as_array().unwrap().iter().map(|rule| rule["path"].clone()).collect();
        assert_eq!(list["found"], paths.len());
        paths
    };
    assert_eq!(found("").await.len(), 8);
    assert_eq!(found("GOLD+plan").await, ["shop.plan_gold"]);
    assert_eq!(found("rules.yaml:5:").await, ["shop.user"]);
    assert!(found("gold+member").await.is_empty());
}

#[tokio::test]
async fn sample_has_what_is_refused_now_and_who_answers() {
    let service = Service::start(RULES).await;
    let mut live = Live::open(&service, "").await;
    let first = live.next().await.unwrap();
    assert_eq!(first["process"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(first["process"]["not_ready"], Value::Null);
    assert_eq!(first["rules"]["hash"], ok_json(&service, "GET", "/rules", "").await["hash"]);
    assert_eq!(first["top"]["rules"], json!([]));
    for _ in 0..10 {
        service.call(request_for("shop", "user", "bob")).await.unwrap();
    }
    service.advance(Duration::from_secs(2));
    let sample = loop {
        let sample = live.next().await.unwrap();
        if sample["top"]["rules"] != json!([]) {
            break sample;
        }
    };
    let key = &sample["top"]["denied"][0];
    assert_eq!(key["key"], "shop user=bob");
    assert_eq!(key["rate"], 4.0, "8 in two seconds");
    assert_eq!(sample["top"]["rules"], json!([{"rule": "shop.user", "rate": 4.0}]));
}

#[test]
fn findings_that_lead_to_views_of_the_page_are_documented() {
    let script = include_str!("../../../src/api/admin/page/findings.js");
    let documented = include_str!("../../../docs/admin.md");
    let views = script.split_once("const VIEWS = {").unwrap().1.split_once("};").unwrap().0;
    let ids: Vec<_> = views.split('"').skip(1).step_by(2).collect();
    assert!(ids.len() > 20, "{ids:?}");
    for id in ids {
        assert!(documented.contains(&format!("`{id}`")), "docs/admin.md lacks {id}");
    }
}

#[tokio::test]
async fn limits_of_keys_are_set_on_the_admin_listener_with_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "first").unwrap();
    let rules = RULES.replacen(
        "requests_per_unit: 2}",
        "requests_per_unit: 2, own: {requests_per_unit: {max: 9}}}",
        1,
    );
    let service = Service::start_with(&rules, &[("admin.token_file", file.to_str().unwrap())]).await;
    let limit =
        r#"{"domain": "shop", "key": {"entries": [{"key": "user", "value": "bob"}]}, "requestsPerUnit": 9}"#;
    let set = format!(r#"{{"limits": [{{"limit": {limit}}}]}}"#);
    let token = "authorization: Bearer first\r\n";
    let post = async |headers: &str| admin_with(&service, headers, "POST", "/v1/limits/set", &set).await;
    assert_eq!(post("").await.0, 401);
    assert_eq!(post("authorization: Bearer wrong\r\n").await.0, 401);
    assert_eq!(post(&format!("{token}origin: http://evil.example\r\n")).await.0, 403);
    let counter = async || {
        let (_, body) = admin_with(&service, token, "GET", "/counters?domain=shop&key=user=bob", "").await;
        serde_json::from_str::<Value>(&body).unwrap()["remaining"].clone()
    };
    assert_eq!(counter().await, 2);
    let (code, body) = post(token).await;
    assert!(code == 200 && !body.contains("error"), "{body}");
    assert_eq!(counter().await, 9);
}
