//! Limits of keys of their own.

use std::{fs, time::Duration};

use tempfile::TempDir;
use tollgate_wire::proto::tollgate::v1::{
    Answer, ClearLimitsRequest, Descriptor, GetLimitsRequest, Limit, LimitResult, ListLimitsRequest,
    OwnLimit, Request as V1Request, ResetRequest, SetLimit, SetLimitsRequest, answer::Verdict, limit::Unit,
};
use tonic::{Code, Request};

use crate::{
    api_v1::{check, client, descriptor, each, reason, reason_of, remaining, request, verdicts, with_hits},
    harness::{Service, cluster_view, is_store_in_memory, replica_with, request_for, until, until_linked},
    log::Log,
    metrics::{page, value},
};

mod certificates;
mod command;

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: user
    rate_limit:
      name: per_user
      unit: year
      requests_per_unit: 3
      algorithm: fixed_window
      own: {requests_per_unit: {max: 1000}, unlimited: true}
  - key: bucket
    rate_limit:
      {algorithm: token_bucket, unit: minute, requests_per_unit: 6, own: {requests_per_unit: {max: 600}}}
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: classic, rate_limit: {unit: year, requests_per_unit: 3, own: {requests_per_unit: {max: 1000}}}}
  - {key: staff, rate_limit: {unlimited: true}}
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: {unit: year, requests_per_unit: 3, own: {requests_per_unit: {max: 1000}}}
  - key: client
    group: {ipv4: 24, ipv6: 64}
    rate_limit: {unit: year, requests_per_unit: 3, own: {requests_per_unit: {max: 1000}}}
";

/// A token file.
fn token() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "secret\n").unwrap();
    let path = file.to_str().unwrap().to_owned();
    (folder, path)
}

fn with_token<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
    request
}

fn own(user: &str, requests_per_unit: u64) -> OwnLimit {
    OwnLimit {
        domain: "shop".into(),
        key: Some(descriptor("user", user)),
        requests_per_unit: Some(requests_per_unit),
        ..OwnLimit::default()
    }
}

async fn set_all(service: &Service, limits: Vec<SetLimit>) -> Vec<LimitResult> {
    let call = with_token(SetLimitsRequest { limits, dry_run: false });
    client(service).await.set_limits(call).await.unwrap().into_inner().results
}

async fn set(service: &Service, limit: OwnLimit) -> LimitResult {
    let limit = SetLimit { limit: Some(limit), replaces_version: None };
    set_all(service, vec![limit]).await.remove(0)
}

async fn get(service: &Service, users: &[&str]) -> Vec<LimitResult> {
    let descriptors = users.iter().map(|user| descriptor("user", user)).collect();
    let call = with_token(GetLimitsRequest { domain: "shop".into(), descriptors });
    client(service).await.get_limits(call).await.unwrap().into_inner().results
}

/// All pages of a list.
async fn list(service: &Service, mut call: ListLimitsRequest) -> Vec<Vec<OwnLimit>> {
    let mut pages = Vec::new();
    loop {
        let page = client(service).await.list_limits(with_token(call.clone())).await.unwrap().into_inner();
        pages.push(page.limits);
        if page.next_page_token.is_empty() {
            return pages;
        }
        call.page_token = page.next_page_token;
    }
}

async fn clear(service: &Service, user: &str) -> LimitResult {
    let descriptors = vec![descriptor("user", user)];
    let call = with_token(ClearLimitsRequest { domain: "shop".into(), descriptors });
    client(service).await.clear_limits(call).await.unwrap().into_inner().results.remove(0)
}

async fn charge(service: &Service, user: &str, hits: u64) -> Answer {
    check(service, each(vec![with_hits(request("user", user), hits)])).await.remove(0)
}

#[tokio::test]
async fn own_limit_decides_from_the_next_call_until_it_is_cleared() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    assert_eq!(charge(&service, "ann", 3).await.verdict(), Verdict::Allowed);
    assert_eq!(charge(&service, "ann", 1).await.verdict(), Verdict::Denied);
    let limit = OwnLimit { note: "gold".into(), set_by: "billing".into(), ..own("ann", 10) };
    let result = set(&service, limit.clone()).await;
    assert_eq!((result.rule.as_str(), &result.error), ("per_user", &None));
    let answer = charge(&service, "ann", 1).await;
    assert_eq!((answer.verdict(), answer.limits[0].requests_per_unit), (Verdict::Allowed, 10));
    assert_eq!(answer.limits[0].remaining, 6, "what was counted stays");
    let status = service.status(request_for("shop", "user", "ann")).await;
    let current = status.current_limit.unwrap();
    assert_eq!((current.requests_per_unit, status.limit_remaining), (10, 5));
    assert_eq!(charge(&service, "bob", 4).await.verdict(), Verdict::Denied, "others have the rule's");
    let [ann, bob] = &*get(&service, &["ann", "bob"]).await else { panic!() };
    let given = ann.limit.clone().unwrap();
    assert!(given.version > 0 && given.set_at.is_some());
    let expected =
        OwnLimit { version: given.version, set_at: given.set_at, set_by_is_claimed: true, ..limit };
    assert_eq!((given, &bob.limit), (expected, &None));
    // A reset leaves it.
    let reset = ResetRequest { domain: "shop".into(), descriptors: vec![descriptor("user", "ann")] };
    client(&service).await.reset(with_token(reset)).await.unwrap();
    assert_eq!(charge(&service, "ann", 4).await.limits[0].remaining, 6);
    // A ban, and no limit at all.
    assert_eq!(set(&service, own("ann", 0)).await.error, None);
    assert_eq!(charge(&service, "ann", 1).await.verdict(), Verdict::Denied);
    let unlimited = OwnLimit { requests_per_unit: None, unlimited: true, ..own("ann", 0) };
    assert_eq!(set(&service, unlimited).await.error, None);
    let answer = charge(&service, "ann", 1_000_000).await;
    assert_eq!(answer.verdict(), Verdict::Allowed);
    assert_eq!(clear(&service, "ann").await, LimitResult { rule: "per_user".into(), ..Default::default() });
    let answer = charge(&service, "ann", 1).await;
    assert_eq!((answer.verdict(), answer.limits[0].requests_per_unit), (Verdict::Denied, 3));
}

#[tokio::test]
async fn invalid_own_limits_are_refused_and_none_of_their_call_is_set() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let with = |limit: OwnLimit| SetLimit { limit: Some(limit), replaces_version: None };
    let of = |key: &str| OwnLimit { key: Some(descriptor(key, "x")), ..own("", 1) };
    let mut limited = own("ann", 1);
    limited.key.as_mut().unwrap().hits = Some(1);
    for (bad, expected) in [
        (SetLimit::default(), "NO_LIMIT"),
        (with(OwnLimit { key: None, ..own("ann", 1) }), "NO_ENTRIES"),
        (with(limited), "LIMIT_OR_HITS"),
        (with(own("ann", 1_001)), "OUT_OF_BOUNDS"),
        (with(OwnLimit { burst: Some(1), ..own("ann", 1) }), "OUT_OF_BOUNDS"),
        (with(OwnLimit { unit: Unit::Day.into(), ..own("ann", 1) }), "OUT_OF_BOUNDS"),
        (with(OwnLimit { unit: 9, ..own("ann", 1) }), "OUT_OF_BOUNDS"),
        (with(OwnLimit { requests_per_unit: None, ..own("ann", 1) }), "OUT_OF_BOUNDS"),
        (with(OwnLimit { unlimited: true, ..own("ann", 1) }), "OUT_OF_BOUNDS"),
        (with(OwnLimit { domain: "no".into(), ..own("ann", 1) }), "UNKNOWN_DOMAIN"),
        (with(of("no")), "NO_RULE"),
        (with(of("staff")), "UNLIMITED"),
        (with(of("plain")), "NO_OWN_LIMITS"),
        (with(OwnLimit { key: Some(descriptor("user", r"\z")), ..own("", 1) }), "NOT_ESCAPED"),
        (
            with(OwnLimit { expires_after: Some(Duration::ZERO.try_into().unwrap()), ..own("ann", 1) }),
            "EXPIRED",
        ),
        (with(OwnLimit { note: "x".repeat(1_025), ..own("ann", 1) }), "TOO_LONG"),
    ] {
        let results = set_all(&service, vec![with(own("bob", 9)), bad]).await;
        let reasons: Vec<_> = results.iter().map(|result| reason(result.error.as_ref().unwrap())).collect();
        assert_eq!(reasons, ["OTHER_LIMIT_INVALID", expected]);
    }
    let dry_run = async |limits| {
        let call = with_token(SetLimitsRequest { limits, dry_run: true });
        client(&service).await.set_limits(call).await.unwrap().into_inner().results
    };
    let valid = LimitResult { rule: "per_user".into(), ..LimitResult::default() };
    assert_eq!(dry_run(vec![with(own("bob", 9))]).await, [valid]);
    let results = dry_run(vec![with(own("bob", 9)), with(own("ann", 1_001))]).await;
    assert_eq!(reason(results[1].error.as_ref().unwrap()), "OUT_OF_BOUNDS");
    assert_eq!(get(&service, &["bob"]).await[0].limit, None, "nothing was set");
    let none = with_token(SetLimitsRequest::default());
    let error = client(&service).await.set_limits(none).await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::InvalidArgument, "NO_REQUESTS".into()));
    let without = SetLimitsRequest { limits: vec![with(own("ann", 1))], dry_run: false };
    let error = client(&service).await.set_limits(without).await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::Unauthenticated, "WRONG_TOKEN".into()));
}

#[tokio::test]
async fn own_limit_of_a_bucket_has_a_unit_of_its_own() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let limit =
        OwnLimit { key: Some(descriptor("bucket", "ann")), unit: Unit::Hour.into(), ..own("", 36_000) };
    let result = set(&service, limit.clone()).await;
    assert_eq!((result.error, result.limit.unwrap().unit()), (None, Unit::Hour));
    let call = each(vec![with_hits(request("bucket", "ann"), 6_000)]);
    let answer = check(&service, call).await.remove(0);
    let status = &answer.limits[0];
    assert_eq!((status.requests_per_unit, status.unit()), (36_000, Unit::Hour));
    assert_eq!((answer.verdict(), status.remaining), (Verdict::Allowed, 30_000));
    let status = service.status(request_for("shop", "bucket", "ann")).await;
    let current = status.current_limit.unwrap();
    assert_eq!((current.requests_per_unit, current.unit().as_str_name()), (36_000, "HOUR"));
    let above = OwnLimit { requests_per_unit: Some(36_001), ..limit };
    assert_eq!(reason(&set(&service, above).await.error.unwrap()), "OUT_OF_BOUNDS");
}

#[tokio::test]
async fn pattern_and_network_have_one_own_limit_for_all_values() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    for (key, named, [other, outside]) in
        [("path", "/api/a", ["/api/b", "/web"]), ("client", "192.0.2.7", ["192.0.2.200", "192.0.3.7"])]
    {
        let result = set(&service, OwnLimit { key: Some(descriptor(key, named)), ..own("", 10) }).await;
        assert_eq!(result.error, None, "{key}");
        let answer = check(&service, each(vec![with_hits(request(key, other), 4)])).await.remove(0);
        let limit = &answer.limits[0];
        assert_eq!((answer.verdict(), limit.requests_per_unit, limit.remaining), (Verdict::Allowed, 10, 6));
        let answer = check(&service, each(vec![with_hits(request(key, outside), 1)])).await.remove(0);
        assert!(answer.limits.first().is_none_or(|limit| limit.requests_per_unit == 3), "{key}: {answer:?}");
    }
}

#[tokio::test]
async fn each_change_of_an_own_limit_is_logged_with_its_caller() {
    let log = Log::json("info");
    let (_folder, file) = token();
    let service = Service::start_on_this_thread(RULES, &[("admin.token_file", &file)]).await;
    set(&service, OwnLimit { set_by: "billing".into(), ..own("ann", 9) }).await;
    // Nothing changes, so nothing is logged.
    set(&service, OwnLimit { set_by: "billing".into(), ..own("ann", 9) }).await;
    set(&service, own("ann", 1_001)).await;
    clear(&service, "ann").await;
    let events = log.events("changed the limit of its own of a key");
    let field = |name: &str| events.iter().map(|event| event[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("limit"), ["{\"requests_per_unit\":9}", "cleared"], "{events:?}");
    assert_eq!(field("set_by"), ["billing", ""]);
    assert_eq!(field("is_claimed"), [true, false]);
    assert_eq!(field("rule"), ["shop.user", "shop.user"]);
    assert_eq!(field("descriptor"), ["[(\"user\", \"ann\")]", "[(\"user\", \"ann\")]"]);
}

#[tokio::test]
async fn changes_of_own_limits_are_counted_by_result() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let any = |limit| SetLimit { limit: Some(limit), replaces_version: None };
    let replacing = SetLimit { limit: Some(own("ann", 1)), replaces_version: Some(1) };
    set_all(&service, vec![any(own("ann", 9)), any(own("bob", 9))]).await;
    set_all(&service, vec![replacing]).await;
    set_all(&service, vec![any(own("eve", 9)), any(own("ann", 1_001))]).await;
    set(&service, OwnLimit { key: Some(descriptor("plain", "x")), ..own("", 1) }).await;
    set(&service, OwnLimit { domain: "no".into(), ..own("ann", 1) }).await;
    clear(&service, "ann").await;
    let page = page(&service).await;
    for (result, count) in [
        ("set", 2.0),
        ("cleared", 1.0),
        ("no_own_limits", 1.0),
        ("out_of_bounds", 1.0),
        ("other_version", 1.0),
        ("no_memory", 0.0),
        ("other", 1.0),
    ] {
        let series = format!("tollgate_own_limit_changes_total{{result=\"{result}\"}}");
        assert_eq!(value(&page, &series), count, "{result}");
    }
}

#[tokio::test]
async fn own_limit_is_replaced_only_in_the_version_that_is_named() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let replace = async |limit, version| {
        let limit = SetLimit { limit: Some(own("ann", limit)), replaces_version: Some(version) };
        set_all(&service, vec![limit]).await.remove(0)
    };
    let first = replace(5, 0).await.limit.unwrap();
    let refused = replace(6, 0).await;
    assert_eq!(
        (reason(&refused.error.unwrap()), refused.limit),
        ("OTHER_VERSION".into(), Some(first.clone()))
    );
    let second = replace(7, first.version).await.limit.unwrap();
    assert_eq!(second.requests_per_unit, Some(7));
    assert_eq!(reason(&replace(8, first.version).await.error.unwrap()), "OTHER_VERSION");
}

#[tokio::test]
async fn own_limits_are_listed_in_pages_by_domain_and_prefix() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let users: Vec<_> = (0..250).map(|number| format!("u{number:03}")).collect();
    let limits = users.iter().map(|user| SetLimit { limit: Some(own(user, 9)), replaces_version: None });
    let results = set_all(&service, limits.collect()).await;
    assert!(results.iter().all(|result| result.error.is_none()));
    let names = |limits: &[OwnLimit]| {
        let name = |limit: &OwnLimit| limit.key.as_ref().unwrap().entries[0].value.clone();
        let mut names: Vec<_> = limits.iter().map(name).collect();
        names.sort_unstable();
        names
    };
    let pages = list(&service, ListLimitsRequest::default()).await;
    assert_eq!(
        names(&pages.concat()),
        users.iter().map(|user| user.clone().into_bytes()).collect::<Vec<_>>()
    );
    if is_store_in_memory() {
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
    }
    let prefix = descriptor("user", "u007").entries;
    let one = ListLimitsRequest { prefix, domain: "shop".into(), page_size: 9, ..Default::default() };
    assert_eq!(names(&list(&service, one).await.concat()), [b"u007"]);
    let other = ListLimitsRequest { domain: "other".into(), ..Default::default() };
    assert_eq!(list(&service, other).await.concat(), []);
    let wrong = with_token(ListLimitsRequest { page_token: "x".into(), ..Default::default() });
    let error = client(&service).await.list_limits(wrong).await.unwrap_err();
    assert_eq!(reason_of(&error), "PAGE_TOKEN");
}

/// Two replicas of a cluster.
async fn two_replicas(secret: &TempDir, token_file: &str) -> (Service, Service) {
    let overrides = [("admin.token_file", token_file)];
    let first = replica_with(RULES, secret, "off", &overrides).await;
    let address = cluster_view(&first).await["members"][0]["address"].as_str().unwrap().to_owned();
    let second = replica_with(RULES, secret, &address, &overrides).await;
    until_linked(&first).await;
    until_linked(&second).await;
    (first, second)
}

#[tokio::test]
async fn own_limits_follow_the_bounds_of_a_changed_rule() {
    let (_folder, file) = token();
    let service =
        Service::start_with(RULES, &[("admin.token_file", &file), ("rules.poll_interval", "50ms")]).await;
    for (user, limit) in [("ann", own("ann", 900)), ("bob", own("bob", 5))] {
        assert_eq!(set(&service, limit).await.error, None, "{user}");
    }
    let unlimited = OwnLimit { requests_per_unit: None, unlimited: true, ..own("eve", 0) };
    assert_eq!(set(&service, unlimited).await.error, None);
    let until_limits = async |expected: [u64; 3]| {
        until(async || {
            let mut limits = Vec::new();
            for user in ["ann", "bob", "eve"] {
                let answer = charge(&service, user, 0).await;
                limits.push(answer.limits.first().map_or(0, |limit| limit.requests_per_unit));
            }
            (limits == expected).then_some(())
        })
        .await;
    };
    until_limits([900, 5, 0]).await;
    let write = |own: &str| {
        let rules = RULES.replace("own: {requests_per_unit: {max: 1000}, unlimited: true}", own);
        assert_ne!(rules, RULES);
        fs::write(service.rules.path().join("rules.yaml"), rules).unwrap();
    };
    write("own: {requests_per_unit: {max: 70}}");
    until_limits([70, 5, 3]).await;
    write("candidate: {unit: day, requests_per_unit: 1}");
    until_limits([3, 3, 3]).await;
    fs::write(service.rules.path().join("rules.yaml"), RULES).unwrap();
    until_limits([900, 5, 0]).await;
}

const DROPPED: &str = "tollgate_own_limit_changes_total{result=\"dropped\"}";

/// A service on whose rules two keys of `user` have limits of their own, and the folder of its token.
async fn with_limits_of_users() -> (TempDir, Service) {
    let (folder, file) = token();
    let settings = [("admin.token_file", &*file), ("rules.poll_interval", "50ms")];
    let service = Service::start_with(RULES, &settings).await;
    for (user, number) in [("ann", 900), ("bob", 5)] {
        assert_eq!(set(&service, own(user, number)).await.error, None, "{user}");
    }
    (folder, service)
}

async fn versions(service: &Service) -> Vec<u64> {
    let listed = list(service, ListLimitsRequest::default()).await.concat();
    listed.iter().map(|limit| limit.version).collect()
}

/// Waits until all limits have other versions.
async fn until_changed(service: &Service, before: &[u64]) {
    until(async || versions(service).await.iter().all(|version| !before.contains(version)).then_some(()))
        .await;
}

#[tokio::test]
async fn limits_of_a_former_algorithm_return_with_it_and_end_after_a_day() {
    let (_folder, service) = with_limits_of_users().await;
    let until_limit = async |expected| {
        let decided =
            async || (charge(&service, "ann", 0).await.limits[0].requests_per_unit == expected).then_some(());
        until(decided).await;
    };
    let write = |algorithm: &str, max: &str| {
        let rules = RULES.replace("algorithm: fixed_window", algorithm).replace("max: 1000}, unlimited", max);
        fs::write(service.rules.path().join("rules.yaml"), rules).unwrap();
    };
    let set_first = versions(&service).await;
    write("algorithm: sliding_window", "max: 1000}, unlimited");
    until_limit(3).await;
    until_changed(&service, &set_first).await;
    service.advance(Duration::from_secs(23 * 3_600));
    let unused = versions(&service).await;
    write("algorithm: fixed_window", "max: 1000}, unlimited");
    until_limit(900).await;
    until_changed(&service, &unused).await;
    let returned = versions(&service).await;
    write("algorithm: sliding_window", "max: 1000}, unlimited");
    until_changed(&service, &returned).await;
    service.advance(Duration::from_secs(24 * 3_600 - 1));
    let ended = async |max: &str| {
        // Another bound makes another search.
        write("algorithm: sliding_window", max);
        until(async || {
            (set(&service, own("eve", 1_001)).await.error.is_none() == (max.contains("2000"))).then_some(())
        })
        .await;
    };
    ended("max: 2000}, unlimited").await;
    assert_eq!((versions(&service).await.len(), value(&page(&service).await, DROPPED)), (3, 0.0));
    service.advance(Duration::from_secs(1));
    ended("max: 1000}, unlimited").await;
    until(async || (value(&page(&service).await, DROPPED) == 2.0).then_some(())).await;
    assert_eq!(versions(&service).await.len(), 1, "that of the new algorithm");
    write("algorithm: fixed_window", "max: 1000}, unlimited");
    until_limit(3).await;
}

#[tokio::test]
async fn limits_of_a_removed_rule_return_with_it_and_end_after_a_day() {
    let (_folder, service) = with_limits_of_users().await;
    // Rules without `user`; another bound makes another search.
    let write = |key: &str, max: &str| {
        let rules = RULES.replace("key: user", &format!("key: {key}")).replace("max: 600", max);
        fs::write(service.rules.path().join("rules.yaml"), rules).unwrap();
    };
    let set_first = versions(&service).await;
    write("person", "max: 600");
    until_changed(&service, &set_first).await;
    service.advance(Duration::from_secs(23 * 3_600));
    let unused = versions(&service).await;
    write("user", "max: 600");
    until_changed(&service, &unused).await;
    assert_eq!(charge(&service, "ann", 0).await.limits[0].requests_per_unit, 900);
    let returned = versions(&service).await;
    write("person", "max: 600");
    until_changed(&service, &returned).await;
    service.advance(Duration::from_secs(24 * 3_600));
    write("person", "max: 500");
    until(async || (value(&page(&service).await, DROPPED) == 2.0).then_some(())).await;
    assert_eq!(versions(&service).await, [0; 0]);
    write("user", "max: 600");
    until(async || {
        let answer = charge(&service, "ann", 0).await;
        answer.limits.first().is_some_and(|limit| limit.requests_per_unit == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn repeated_limit_changes_nothing() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let note = |note: &str| OwnLimit { note: note.into(), ..own("ann", 9) };
    let first = set(&service, note("gold")).await;
    assert_eq!(first.error, None);
    let by_another = OwnLimit { set_by: "billing".into(), ..note("gold") };
    assert_eq!(set(&service, by_another.clone()).await, first);
    let version = first.limit.as_ref().unwrap().version;
    let replacing = |version| SetLimit { limit: Some(note("gold")), replaces_version: Some(version) };
    assert_eq!(set_all(&service, vec![replacing(version)]).await.remove(0), first);
    assert_eq!(
        reason(&set_all(&service, vec![replacing(0)]).await[0].error.clone().unwrap()),
        "OTHER_VERSION"
    );
    let changes = async || value(&page(&service).await, "tollgate_own_limit_changes_total{result=\"set\"}");
    assert_eq!(changes().await, 1.0);
    let expiring =
        OwnLimit { expires_after: Some(Duration::from_secs(60).try_into().unwrap()), ..note("gold") };
    for (changed, limit) in (2..).zip([
        note("silver"),
        OwnLimit { requests_per_unit: Some(8), ..note("silver") },
        expiring.clone(),
        expiring,
    ]) {
        let result = set(&service, limit).await;
        assert_eq!((result.error, changes().await), (None, f64::from(changed)));
    }
}

#[tokio::test]
async fn own_limits_hold_in_a_cluster_and_move_with_their_counters() {
    const USERS: usize = 40;
    let (_folder, file) = token();
    let secret = tempfile::tempdir().unwrap();
    let (first, second) = two_replicas(&secret, &file).await;
    let limit = |user: usize| SetLimit { limit: Some(own(&user.to_string(), 10)), replaces_version: Some(0) };
    let results = set_all(&first, (0..USERS).map(limit).collect()).await;
    assert!(results.iter().all(|result| result.error.is_none() && result.limit.is_some()), "{results:?}");
    let charge_all = async |replica: &Service, hits| {
        let user = |user: usize| with_hits(request("user", &user.to_string()), hits);
        check(replica, each((0..USERS).map(user).collect())).await
    };
    for (replica, left) in [(&first, 6), (&second, 2)] {
        let answers = charge_all(replica, 4).await;
        assert_eq!(remaining(&answers), vec![vec![left]; USERS]);
        assert!(answers.iter().all(|answer| answer.limits[0].requests_per_unit == 10));
    }
    for replica in [&first, &second] {
        let page_size = 7;
        let listed = list(replica, ListLimitsRequest { page_size, ..Default::default() }).await.concat();
        assert_eq!(listed.len(), USERS, "each replica lists those of all");
    }
    let results = get(&second, &["0", "1", "2", "3"]).await;
    assert!(results.iter().all(|result| result.limit.as_ref().unwrap().requests_per_unit == Some(10)));
    // A lower limit binds at once, also at a replica that has just been refused.
    let lower = |user: usize| SetLimit { limit: Some(own(&user.to_string(), 8)), replaces_version: None };
    set_all(&second, (0..USERS).map(lower).collect()).await;
    assert_eq!(verdicts(&charge_all(&first, 1).await), [Verdict::Denied; USERS]);
    let higher = |user: usize| SetLimit { limit: Some(own(&user.to_string(), 20)), replaces_version: None };
    set_all(&first, (0..USERS).map(higher).collect()).await;
    assert_eq!(remaining(&charge_all(&second, 1).await), vec![vec![11]; USERS]);
    first.terminate().await;
    until(async || {
        let view = cluster_view(&second).await;
        (view["members"].as_array().unwrap().iter().filter(|member| member["state"] == "serving").count()
            <= 1)
            .then_some(())
    })
    .await;
    let answers = charge_all(&second, 1).await;
    assert_eq!(remaining(&answers), vec![vec![10]; USERS]);
    assert!(answers.iter().all(|answer| answer.limits[0].requests_per_unit == 20 && !answer.degraded));
}

/// A request of a user that sends a limit, in the window of the rule for `classic` users.
fn with_sent(user: &str, requests_per_unit: u32) -> V1Request {
    let limit = Limit { requests_per_unit, unit: Unit::Year.into() };
    let descriptor = Descriptor { limit: Some(limit), ..descriptor("classic", user) };
    V1Request { descriptors: vec![descriptor], ..request("classic", user) }
}

/// Sets limits of their own in the class of `classic`, and lets requests send larger and smaller ones.
async fn sent_limits_decide(setter: &Service, replicas: &[&Service]) {
    const USERS: usize = 20;
    let users: Vec<_> = (0..USERS).map(|user| user.to_string()).collect();
    let limit = |user: &String| {
        let limit = OwnLimit { key: Some(descriptor("classic", user)), ..own("", 2) };
        SetLimit { limit: Some(limit), replaces_version: None }
    };
    let results = set_all(setter, users.iter().map(limit).collect()).await;
    assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
    for (round, replica) in replicas.iter().enumerate() {
        let ask = async |request: &dyn Fn(&String) -> V1Request| {
            check(replica, each(users.iter().map(request).collect())).await
        };
        // A classic limit counts what it refuses.
        let counted = 5 * round as u64;
        let answers = ask(&|user| with_hits(with_sent(user, 100), 3)).await;
        assert_eq!(verdicts(&answers), [Verdict::Allowed; USERS], "the request's number is larger");
        assert_eq!(remaining(&answers), vec![vec![97 - counted]; USERS]);
        assert!(answers.iter().all(|answer| answer.limits[0].requests_per_unit == 100 && !answer.degraded));
        for (request, number) in [
            (&(|user: &String| request("classic", user)) as &dyn Fn(&String) -> V1Request, 2),
            (&|user: &String| with_sent(user, 1), 1),
        ] {
            let answers = ask(request).await;
            assert_eq!(verdicts(&answers), [Verdict::Denied; USERS]);
            assert!(answers.iter().all(|answer| answer.limits[0].requests_per_unit == number));
        }
    }
}

#[tokio::test]
async fn limit_in_a_request_decides_in_place_of_own_limit() {
    let (_folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    sent_limits_decide(&service, &[&service]).await;
}

#[tokio::test]
async fn sent_limit_precedes_own_limit_at_another_replica() {
    let (_folder, file) = token();
    let secret = tempfile::tempdir().unwrap();
    let (first, second) = two_replicas(&secret, &file).await;
    sent_limits_decide(&first, &[&first, &second]).await;
}
