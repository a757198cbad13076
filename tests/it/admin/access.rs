//! Access control of the admin pages, and the commands that call them.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tollgate_telemetry::logs::LogControl;

use crate::{
    admin::{RULES, admin_with, start},
    harness::{Service, request_for, send},
    program::{printed, tollgate},
};

#[tokio::test]
async fn admin_pages_require_current_token_of_token_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "first\n").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    let with = async |header: &str, path: &str| admin_with(&service, header, "GET", path, "").await.0;
    let first = "authorization: Bearer first\r\n";
    for path in [
        "/endpoints",
        "/live",
        "/record",
        "/config",
        "/counters?domain=shop&key=user=x",
        "/rules",
        "/store",
        "/log",
        "/nowhere",
    ] {
        for wrong in [
            "",
            "authorization: Bearer wrong\r\n",
            "authorization: Basic first\r\n",
            "authorization: Bearer \r\n",
            "authorization: first\r\n",
        ] {
            assert_eq!(with(wrong, path).await, 401, "{path} {wrong}");
        }
    }
    assert_eq!(with(first, "/rules").await, 200);
    assert_eq!(with("Authorization: bearer first\r\n", "/rules").await, 200);

    fs::write(&file, "second").unwrap();
    assert_eq!(with(first, "/rules").await, 401);
    assert_eq!(with("authorization: Bearer second\r\n", "/rules").await, 200);
    for unfit in ["", "\n", "two words", "two\nlines"] {
        fs::write(&file, unfit).unwrap();
        assert_eq!(with(first, "/rules").await, 503, "{unfit:?}");
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(with("authorization: Bearer second\r\n", "/rules").await, 503);
    assert_eq!(service.http("GET", "/readyz", "").await.0, 200, "probes need no token");
}

/// Headers of a request that a page of another site has sent.
pub(super) const FOREIGN: [&str; 6] = [
    "host: evil.example\r\n",
    "host: localhost\r\norigin: http://evil.example\r\n",
    "host: localhost\r\norigin: null\r\n",
    "host: localhost\r\nsec-fetch-site: cross-site\r\n",
    "host: localhost\r\nsec-fetch-site: same-site\r\n",
    "host: localhost\r\nhost: evil.example\r\n",
];

#[tokio::test]
async fn admin_without_token_refuses_cross_site_requests() {
    let service = Service::start(RULES).await;
    let to = service.addresses.admin;
    let counter = "/counters?domain=shop&key=user=bob";
    service.call(request_for("shop", "user", "bob")).await.unwrap();
    for headers in FOREIGN {
        let requests = [
            ("DELETE", counter, ""),
            ("PUT", "/log", "off"),
            ("GET", "/config", ""),
            ("GET", "/nowhere", ""),
        ];
        for (method, path, body) in requests {
            let (code, why) = send(to, headers, method, path, body).await;
            assert_eq!(code, 403, "{method} {path} {headers:?}: {why}");
        }
    }
    assert!(send(to, "host: localhost\r\n", "GET", counter, "").await.1.contains("\"remaining\":1"));
    let own = format!("host: {to}\r\n");
    let by_page = format!("{own}origin: http://{to}\r\nsec-fetch-site: same-origin\r\n");
    for headers in [own, by_page, "host: [::1]\r\n".to_owned(), "host: LOCALHOST:1\r\n".to_owned()] {
        assert_eq!(send(to, &headers, "GET", "/rules", "").await.0, 200, "{headers:?}");
    }
}

#[tokio::test]
async fn admin_with_token_answers_for_any_host() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "first").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    for headers in FOREIGN {
        assert_eq!(send(service.addresses.admin, headers, "GET", "/rules", "").await.0, 401, "{headers:?}");
    }
    let known = "host: tollgate.example\r\nauthorization: Bearer first\r\n";
    assert_eq!(send(service.addresses.admin, known, "GET", "/rules", "").await.0, 200);
}

#[tokio::test]
async fn json_refuses_cross_site_requests_and_charges_nothing() {
    let service = Service::start_with(RULES, &[("http.hosts", "tollgate.example")]).await;
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}"#;
    let post = async |headers: &str| send(service.addresses.http, headers, "POST", "/json", body).await;
    for headers in
        FOREIGN.into_iter().filter(|headers| headers.contains("origin:") || headers.contains("sec-"))
    {
        assert_eq!(post(headers).await.0, 403, "{headers:?}");
    }
    // Each host that is served and any content type are accepted.
    let own = "host: tollgate.example\r\norigin: http://tollgate.example\r\nsec-fetch-site: same-origin\r\n";
    let plain = "host: tollgate.example\r\ncontent-type: text/plain\r\n";
    for (headers, code) in [(own, 200), (plain, 200), ("host: x\r\n", 429)] {
        assert_eq!(post(headers).await.0, code, "two pass: {headers:?}");
    }
}

#[tokio::test]
async fn unreadable_token_file_refuses_start() {
    for text in [None, Some(""), Some("two words")] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let overrides = [("admin.token_file", file.to_str().unwrap())];
        let error =
            start(tempfile::tempdir().unwrap(), &overrides, LogControl::default()).await.err().unwrap();
        assert!(error.to_string().starts_with("admin.token_file: "), "{error}");
    }
}

#[tokio::test]
async fn admin_commands_show_explain_reset_and_set_counters() {
    let service = Service::start(RULES).await;
    let to = service.addresses.admin.to_string();
    let explained = tollgate(&["explain", "--to", &to, "shop", "user=bob", "--hits", "2"]).await;
    let text = printed(&explained);
    assert_eq!(explained.status.code(), Some(0), "{text}");
    for part in [
        "decision: passed",
        "shop.user",
        "rules.yaml:5:17",
        "2 per minute",
        "looked up user=bob",
        "2 left of an unused counter, 0 after",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let set = tollgate(&["counters", "--to", &to, "shop", "user=bob", "--set", "2"]).await;
    assert!(printed(&set).contains("before: 2 left, nothing counted\n  now: 0 left"), "{}", printed(&set));
    let explained = tollgate(&["explain", "--to", &to, "shop", "user=bob"]).await;
    assert_eq!(explained.status.code(), Some(2));
    assert!(printed(&explained).contains("would pass in 36000 ms"), "{}", printed(&explained));
    let reset = tollgate(&["counters", "--to", &to, "shop", "user=bob", "--reset", "--json"]).await;
    let reset: Value = serde_json::from_str(&printed(&reset)).unwrap();
    assert_eq!((&reset["before"]["remaining"], &reset["remaining"]), (&json!(0), &json!(2)));
    let escaped = tollgate(&["counters", "--to", &to, "shop", r"user=b\,o b=ü&%"]).await;
    assert!(printed(&escaped).starts_with(r"user=b\,o b\=ü&% of rule shop.user"), "{}", printed(&escaped));
}

#[tokio::test]
async fn admin_commands_send_token_and_report_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "s3cret\n").unwrap();
    let path = file.to_str().unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", path)]).await;
    let to = service.addresses.admin.to_string();
    let counters = async |more: &[&str]| {
        let arguments: Vec<_> = ["counters", "--to", &to, "shop"].iter().chain(more).copied().collect();
        let output = tollgate(&arguments).await;
        (output.status.code(), printed(&output))
    };
    let (code, text) = counters(&["user=bob"]).await;
    assert!(code == Some(1) && text.contains("set --token-file"), "{text}");
    let (code, text) = counters(&["user=bob", "--token-file", path]).await;
    assert!(code == Some(0) && text.contains("2 left"), "{text}");
    let (code, text) = counters(&["colour=red", "--token-file", path]).await;
    assert!(code == Some(1) && text.contains("no rule matches"), "{text}");
    let unreachable = tollgate(&["explain", "--to", "127.0.0.1:1", "shop", "user=bob"]).await;
    assert!(
        unreachable.status.code() == Some(1) && printed(&unreachable).contains("no answer from 127.0.0.1:1")
    );
}

#[tokio::test]
async fn non_loopback_admin_listener_requires_token_file() {
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let started = tollgate(&["serve", "--rules", &path(rules.path()), "--admin-listen", "0.0.0.0:0"]).await;
    let text = printed(&started);
    assert_eq!(started.status.code(), Some(64), "{text}");
    assert!(text.contains("admin.listen") && text.contains("admin.token_file"), "{text}");
}
