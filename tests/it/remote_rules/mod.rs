//! Rules from a URL: answers of every kind, TLS, redirects, and the copy on disk.

use std::{fs, sync::Arc, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tollgate_counter::time::Clock;
use tollgate_rules::ActiveRules;
use tollgate_sources::{RuleSource, SourceSettings, url};

use crate::{
    certificates::{Authority, Files},
    harness::{START, Service, http, settings, until},
    log::Log,
    remote_rules::server::{Reply, RulesServer},
};

mod answers;
mod limits;
mod server;

fn rules(limit: u64) -> String {
    format!(
        "domain: shop\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}]\n"
    )
}

fn document(etag: &'static str, limit: u64) -> Reply {
    Reply::Document { etag, text: rules(limit) }
}

/// Rules that follow a URL, without a service around them.
struct Follower {
    active_rules: Arc<ActiveRules>,
    stats: Arc<url::UrlStats>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Asks every 10 ms.
    fn start(url: &str, overrides: &[(&str, &str)]) -> Self {
        let overrides = [&[("rules.path", url)], overrides].concat();
        let settings = settings(&tempfile::tempdir().unwrap(), &overrides);
        let SourceSettings::Url(mut url) = settings.rules.source else { panic!("not a URL") };
        url.interval = Duration::from_millis(10);
        let (active_rules, stats) = (Arc::new(ActiveRules::default()), Arc::<url::UrlStats>::default());
        let source = SourceSettings::Url(url);
        let counted = RuleSource { url: Some(stats.clone()), ..source.described() };
        let source = source.run(Clock::manual(START), active_rules.clone(), counted);
        Self { active_rules, stats, task: tokio::spawn(source) }
    }

    fn limit(&self) -> Option<u64> {
        let rules = self.active_rules.current();
        let rule = rules.rules()?.domain("shop")?.rules().next()?;
        Some(rule.displayed_limit.requests_per_unit)
    }

    /// The problems of the current contents; empty if they are active.
    fn problems(&self) -> String {
        let error = self.active_rules.status().last_error;
        error.map(|error| error.problems.to_string()).unwrap_or_default()
    }

    async fn until_limit(&self, limit: u64) {
        until(async || (self.limit() == Some(limit) && self.problems().is_empty()).then_some(())).await;
    }

    async fn until_problem(&self, text: &str) -> String {
        until(async || Some(self.problems()).filter(|problems| problems.contains(text))).await
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn file(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

#[tokio::test]
async fn changed_document_is_loaded_and_unchanged_one_not_sent() {
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &[]);
    follower.until_limit(1).await;
    until(async || (follower.stats.unchanged.get() > 2).then_some(())).await;
    assert!(server.was_asked_with(1, "if-none-match: \"one\"\r\n"));
    server.answer(document("two", 2));
    follower.until_limit(2).await;
    let status = follower.active_rules.status();
    assert_eq!((status.generation, status.load_errors, follower.stats.changed.get()), (2, 0, 2));
    assert_eq!(follower.stats.confirmed_at(), START);
    // A server without tags sends everything each time.
    server.answer(Reply::ok(&format!("content-length: {}\r\n", rules(2).len()), &rules(2)));
    let before = follower.stats.unchanged.get();
    until(async || (follower.stats.unchanged.get() > before + 2).then_some(())).await;
    assert_eq!(follower.active_rules.status().generation, 2);
}

#[tokio::test]
async fn redirect_out_of_the_folder_of_the_rules_gets_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = file(&folder, "token");
    fs::write(&token, "hush").unwrap();
    let server = RulesServer::start(document("one", 1)).await;
    let flags = [("rules.url.redirects", "1"), ("rules.url.token_file", token.as_str())];
    let follower = Follower::start(&format!("http://{}/team/rules.yaml", server.address), &flags);
    follower.until_limit(1).await;
    for (location, has_token) in [("/team/new.yaml", true), ("/upload", false), ("/team/..%2Fupload", false)]
    {
        let seen = server.heads().len();
        server.answer(Reply::status("302 Found", &format!("location: {location}\r\n")));
        let target = format!("get {} http/1.1\r\n", location.to_lowercase());
        let head =
            until(async || server.heads().into_iter().skip(seen).find(|head| head.starts_with(&target)))
                .await;
        assert_eq!(head.contains("authorization: bearer hush\r\n"), has_token, "{location}");
    }
}

#[tokio::test]
async fn refused_document_is_reported_once_while_it_stays() {
    let server = RulesServer::start(Reply::Document { etag: "bad", text: "domain: [\n".into() }).await;
    let follower = Follower::start(&server.url(), &[]);
    follower.until_problem("rules.yaml:").await;
    until(async || (follower.stats.unchanged.get() > 2).then_some(())).await;
    assert_eq!(follower.active_rules.status().load_errors, 1);
}

#[tokio::test]
async fn redirects_are_bounded_and_give_the_token_to_no_other_host() {
    let folder = tempfile::tempdir().unwrap();
    let token = file(&folder, "token");
    fs::write(&token, "hush\n").unwrap();
    let (first, second) =
        (RulesServer::start(document("one", 1)).await, RulesServer::start(document("two", 2)).await);
    let flags = [("rules.url.redirects", "1"), ("rules.url.token_file", token.as_str())];
    let follower = Follower::start(&first.url(), &flags);
    follower.until_limit(1).await;
    assert!(first.was_asked_with(0, "authorization: bearer hush\r\n"));
    let to = |url: &str| Reply::status("307 Temporary Redirect", &format!("location: {url}\r\n"));
    first.answer(to(&second.url()));
    follower.until_limit(2).await;
    assert!(!second.was_asked_with(0, "authorization"));
    // Back to the first one, which redirects again.
    second.answer(to(&first.url()));
    follower.until_problem("rules.url.redirects allows 1").await;
    for location in ["ftp://127.0.0.1/", "http://user:pa@127.0.0.1/", "http://198.51.100.1/"] {
        first.answer(to(location));
        follower.until_problem("redirects to").await;
    }
    assert_eq!(follower.limit(), Some(2));
}

#[tokio::test]
async fn token_is_read_again_for_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let token = file(&folder, "token");
    fs::write(&token, "old").unwrap();
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &[("rules.url.token_file", token.as_str())]);
    follower.until_limit(1).await;
    fs::write(&token, "new\n").unwrap();
    until(async || server.was_asked_with(1, "authorization: bearer new\r\n").then_some(())).await;
    fs::write(&token, "two words").unwrap();
    let problem = follower.until_problem("not a token").await;
    assert!(problem.contains("/token: ") && !problem.contains("words"), "{problem}");
    assert_eq!(follower.limit(), Some(1));
}

#[tokio::test]
async fn server_over_tls_needs_a_certificate_of_the_authority() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.pair(&["client"], 2100));
    files.write("ca.crt", &theirs.pem);
    let server = RulesServer::start_tls(document("one", 1), &ours.server(), Some(&ours)).await;
    let url = server.url().replace("http:", "https:");
    let (ca, cert, key) = (files.path("ca.crt"), files.path("tls.crt"), files.path("tls.key"));
    let trusting = [("rules.url.ca", ca.as_str())];
    let own = [("rules.url.cert", cert.as_str()), ("rules.url.key", key.as_str())];
    let follower = Follower::start(&url, &[&trusting[..], &own].concat());
    follower.until_problem("invalid peer certificate").await;
    // Renewed files count for the next request.
    files.write("ca.crt", &ours.pem);
    follower.until_limit(1).await;
    let other_name = [("rules.url.server_name", "rules.example")];
    let follower = Follower::start(&url, &[&trusting[..], &own, &other_name].concat());
    follower.until_problem("invalid peer certificate").await;
    let without = Follower::start(&url, &trusting);
    without.until_problem("cannot be fetched: ").await;
    assert_eq!(without.limit(), None);
}

#[tokio::test]
async fn redirect_from_tls_to_plaintext_is_refused() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    files.write("ca.crt", &ours.pem);
    let plain = RulesServer::start(document("one", 1)).await;
    let reply = Reply::status("301 Moved Permanently", &format!("location: {}\r\n", plain.url()));
    let server = RulesServer::start_tls(reply, &ours.server(), None).await;
    let url = server.url().replace("http:", "https:");
    let flags = [
        ("rules.url.ca", &*files.path("ca.crt")),
        ("rules.url.redirects", "10"),
        ("rules.url.plaintext", "true"),
    ];
    let follower = Follower::start(&url, &flags);
    follower.until_problem("which is not over TLS").await;
    assert!(plain.heads().is_empty());
}

#[tokio::test]
async fn start_without_server_uses_the_copy_until_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let copy = file(&folder, "copy.yaml");
    let flags = [("rules.url.copy", copy.as_str())];
    let server = RulesServer::start(document("one", 1)).await;
    let url = server.url();
    let follower = Follower::start(&url, &flags);
    until(async || fs::exists(&copy).unwrap().then_some(())).await;
    assert!(fs::read_to_string(&copy).unwrap().ends_with(&rules(1)));
    drop(follower);

    server.answer(Reply::status("503 Service Unavailable", ""));
    let follower = Follower::start(&url, &flags);
    follower.until_problem("the server answered 503").await;
    assert_eq!((follower.limit(), follower.stats.is_from_copy()), (Some(1), true));
    // The tag of the copy is enough.
    server.answer(document("one", 1));
    until(async || (!follower.stats.is_from_copy()).then_some(())).await;
    assert_eq!((follower.active_rules.status().generation, follower.stats.changed.get()), (1, 0));
    drop(follower);

    server.answer(document("two", 2));
    let follower = Follower::start(&url, &flags);
    follower.until_limit(2).await;
    assert_eq!(follower.active_rules.status().generation, 1, "the copy was not needed");
    until(async || fs::read_to_string(&copy).unwrap().ends_with(&rules(2)).then_some(())).await;
}

#[tokio::test]
async fn broken_document_at_the_start_leaves_the_rules_of_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let copy = file(&folder, "copy.yaml");
    let flags = [("rules.url.copy", copy.as_str())];
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &flags);
    until(async || fs::exists(&copy).unwrap().then_some(())).await;
    drop(follower);
    server.answer(Reply::Document { etag: "bad", text: "domain: [\n".to_owned() });
    let follower = Follower::start(&server.url(), &flags);
    until(async || follower.stats.is_from_copy().then_some(())).await;
    follower.until_problem("rules.yaml:").await;
    assert_eq!((follower.limit(), follower.active_rules.status().generation), (Some(1), 1));
    server.answer(document("two", 2));
    follower.until_limit(2).await;
    until(async || (!follower.stats.is_from_copy()).then_some(())).await;
}

#[tokio::test]
async fn stalled_server_delays_the_copy_for_two_seconds_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let copy = file(&folder, "copy.yaml");
    let flags = [("rules.url.copy", copy.as_str()), ("rules.url.timeout", "5m")];
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &flags);
    until(async || fs::exists(&copy).unwrap().then_some(())).await;
    drop(follower);
    server.answer(Reply::Stalled(String::new()));
    let follower = Follower::start(&server.url(), &flags);
    until(async || follower.stats.is_from_copy().then_some(())).await;
    assert_eq!(follower.limit(), Some(1));
}

#[tokio::test]
async fn damaged_copy_is_set_aside_and_logged() {
    let log = Log::json("info");
    let folder = tempfile::tempdir().unwrap();
    let copy = file(&folder, "copy.yaml");
    let flags = [("rules.url.copy", copy.as_str())];
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &flags);
    until(async || fs::exists(&copy).unwrap().then_some(())).await;
    drop(follower);
    let damaged = fs::read_to_string(&copy).unwrap().replace("requests_per_unit: 1", "requests_per_unit: 9");
    fs::write(&copy, &damaged).unwrap();
    server.answer(Reply::status("500 Internal Server Error", ""));
    let follower = Follower::start(&server.url(), &flags);
    follower.until_problem("the server answered 500").await;
    assert_eq!((follower.limit(), follower.stats.copy_errors.get()), (None, 1));
    assert_eq!(fs::read_to_string(copy.clone() + ".bad").unwrap(), damaged);
    let events = log.events("set the unusable copy of the rules aside");
    assert_eq!((events.len(), &events[0]["path"]), (1, &Value::from(copy)));
}

#[tokio::test]
async fn copy_that_cannot_be_written_is_counted_and_rules_are_active() {
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &[("rules.url.copy", "/dev/null/copy")]);
    follower.until_limit(1).await;
    until(async || (follower.stats.copy_errors.get() > 2).then_some(())).await;
}

#[tokio::test]
async fn operators_see_the_url_without_its_query() {
    let server = RulesServer::start(document("one", 1)).await;
    let url = server.url() + "?sig=hush";
    let service = Service::start_with("", &[("rules.path", &*url)]).await;
    assert!(server.was_asked_with(0, "get /rules.yaml?sig=hush http/1.1\r\n"));
    let page = async |address, path| http(address, "GET", path, "").await.unwrap().1;
    // The rules are active an instant before they are confirmed.
    let source = until(async || {
        let shown: Value = serde_json::from_str(&page(service.addresses.admin, "/rules").await).unwrap();
        shown["source"]["confirmed_at"].is_string().then(|| shown["source"].clone())
    })
    .await;
    let name = server.url() + "?(not shown)";
    assert_eq!((&source["kind"], &source["name"]), (&Value::from("url"), &Value::from(&*name)));
    assert_eq!(source["from_copy"], Value::from(false));
    let config = page(service.addresses.admin, "/config").await;
    assert!(config.contains(&name) && !config.contains("hush"), "{config}");
    let metrics = page(service.addresses.metrics, "/metrics").await;
    assert!(metrics.contains("\ntollgate_rules_url_requests_total{outcome=\"changed\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\ntollgate_rules_url_confirmed_timestamp_seconds 17900000"), "{metrics}");
}
