//! Limits of their own that callers with a client certificate set.

use tollgate_wire::proto::tollgate::v1::{
    ClearLimitsRequest, GetLimitsRequest, ListLimitsRequest, OwnLimit, ResetRequest, SetLimit,
    SetLimitsRequest, rate_limiter_client::RateLimiterClient,
};
use tonic::Code;

use crate::{
    api_v1::{
        descriptor,
        own_limits::{RULES, own, token, with_token},
        reason_of,
    },
    certificates::{Authority, Files, borrowed, connect},
    harness::{Service, until},
    program::{printed, tollgate},
};

#[tokio::test]
async fn own_limit_names_the_certificate_that_has_set_it() {
    let (_folder, file) = token();
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let settings = files.mutual("grpc", &ours);
    let settings = [&borrowed(&settings)[..], &[("admin.token_file", &file)]].concat();
    let service = Service::start_with(RULES, &settings).await;
    let channel =
        connect(&service.addresses.grpc, &ours, Some(&ours.pair(&["billing.shop"], 2100))).await.unwrap();
    let limit = OwnLimit { set_by: "someone".into(), ..own("ann", 9) };
    let limits = vec![SetLimit { limit: Some(limit), replaces_version: None }];
    let call = with_token(SetLimitsRequest { limits, dry_run: false });
    let answer = RateLimiterClient::new(channel).set_limits(call).await.unwrap().into_inner();
    let limit = answer.results[0].limit.clone().unwrap();
    assert_eq!((&*limit.set_by, limit.set_by_is_claimed), ("billing.shop", false));
}

#[tokio::test]
async fn certificate_name_permits_changes_of_limits_without_token() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let settings = files.mutual("grpc", &ours);
    let allowed = ("admin.limits_san", "spiffe://shop/billing, plans.shop");
    let service = Service::start_with(RULES, &[&borrowed(&settings)[..], &[allowed]].concat()).await;
    let connected = async |names: &[&str]| {
        let pair = ours.pair(names, 2100);
        RateLimiterClient::new(connect(&service.addresses.grpc, &ours, Some(&pair)).await.unwrap())
    };
    let call = |user| {
        let limit = OwnLimit { set_by: "someone".into(), ..own(user, 9) };
        SetLimitsRequest {
            limits: vec![SetLimit { limit: Some(limit), replaces_version: None }],
            dry_run: false,
        }
    };
    let descriptors = || vec![descriptor("user", "ann")];
    for (names, set_by) in
        [(&["Plans.shop"][..], "plans.shop"), (&["spiffe://shop/billing"], "spiffe://shop/billing")]
    {
        let mut client = connected(names).await;
        let answer = client.set_limits(call("ann")).await.unwrap().into_inner();
        let limit = answer.results[0].limit.clone().unwrap();
        assert_eq!((&*limit.set_by, limit.set_by_is_claimed), (set_by, false));
        let listed = client.list_limits(ListLimitsRequest::default()).await.unwrap().into_inner();
        assert_eq!(listed.limits, [limit]);
        let get = GetLimitsRequest { domain: "shop".into(), descriptors: descriptors() };
        assert!(client.get_limits(get).await.unwrap().into_inner().results[0].limit.is_some());
        let clear = ClearLimitsRequest { domain: "shop".into(), descriptors: descriptors() };
        assert_eq!(client.clear_limits(clear).await.unwrap().into_inner().results[0].error, None);
        let reset = ResetRequest { domain: "shop".into(), descriptors: descriptors() };
        let error = client.reset(reset).await.unwrap_err();
        assert_eq!(reason_of(&error), "NO_TOKEN_SET", "counters need the token");
    }
    let error = connected(&["edge.shop"]).await.set_limits(call("ann")).await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::PermissionDenied, "NO_TOKEN_SET".into()));
}

#[tokio::test]
async fn limits_command_uses_tls_and_client_certificate() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let settings = files.mutual("http", &ours);
    let allowed = ("admin.limits_san", "plans.shop");
    let service = Service::start_unready(RULES, &[&borrowed(&settings)[..], &[allowed]].concat()).await;
    let client = Files::new(&ours.pair(&["plans.shop"], 2100));
    let to = service.addresses.http.to_string();
    let (ca, cert, key) = (files.path("ca.crt"), client.path("tls.crt"), client.path("tls.key"));
    let shown = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let limits = async |before: &[&str], arguments: &[&str]| {
        let output = tollgate(&[&["limits"], before, &["--to", &to], arguments].concat()).await;
        (output.status.code(), printed(&output))
    };
    let set = [&["set", "shop", "user=ann", "--requests-per-unit", "9"], &shown[..]].concat();
    let text = until(async || {
        let (code, text) = limits(&[], &set).await;
        (code == Some(0)).then_some(text)
    });
    let text = text.await;
    assert!(text.contains("set by plans.shop"), "{text}");
    let listed = limits(&shown, &["list", "shop"]).await;
    assert_eq!((listed.0, listed.1.contains("user=ann")), (Some(0), true), "{listed:?}");
    let get = async |before: &[&str]| limits(before, &["get", "shop", "user=ann"]).await;
    let (code, text) = get(&["--tls-ca", &ca]).await;
    assert_eq!((code, text.contains("no answer from")), (Some(1), true), "without a certificate: {text}");
    let (code, text) = get(&[]).await;
    assert_eq!((code, text.contains("no answer from")), (Some(1), true), "without TLS: {text}");
    let (code, text) = get(&["--tls-cert", &cert]).await;
    assert_eq!((code, text.contains("--tls-key")), (Some(64), true), "without its key: {text}");
    let (code, text) = get(&[&shown[..], &["--tls-name", "other"]].concat()).await;
    assert_eq!((code, text.contains("certificate")), (Some(1), true), "another server: {text}");
}
