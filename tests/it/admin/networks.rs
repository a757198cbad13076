//! Networks and groups, as the admin pages show them.

use serde_json::{Value, json};
use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::{
    admin::{admin, ok_json},
    harness::{Service, descriptor, request},
};

const RULES: &str = "
domain: edge
descriptors:
  - key: ip
    group: {ipv6: 64}
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: fixed_window}
  - {key: ip, value: '*', rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: ip, value: 10.0.0.0/8, match: cidr, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: ip, value: 10.1.0.0/16, match: cidr, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: ip, value: 10.1.2.3, rate_limit: {unlimited: true}}
  - key: client
    group: {ipv4: 24, ipv6: 64}
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 1}}
";

async fn explained(service: &Service, key: &str) -> Value {
    let path = format!("/explain?domain=edge&key={key}");
    ok_json(service, "GET", &path, "").await["descriptors"][0].take()
}

#[tokio::test]
async fn explanation_says_why_a_network_is_chosen() {
    let service = Service::start(RULES).await;
    let level = explained(&service, "ip=10.1.9.9").await["levels"][0].take();
    assert_eq!(
        (&level["matched"]["descriptor"], &level["matched"]["how"], &level["matched"]["shared"]),
        (&json!("ip=10.1.0.0/16"), &json!("by its network"), &json!(true))
    );
    let why: Vec<_> = level["others"].as_array().unwrap().iter().map(|other| &other["why"]).collect();
    let expected = [
        "its key alone matches too, but a network takes precedence",
        "its pattern matches too, but a network takes precedence",
        "its network contains the address too, but a longer prefix takes precedence",
    ];
    assert_eq!(why, expected.map(Value::from).iter().collect::<Vec<_>>());
    let level = explained(&service, "ip=10.1.2.3").await["levels"][0].take();
    assert_eq!(
        level["others"][2]["why"],
        "its network contains the address, but an exact match takes precedence"
    );
}

#[tokio::test]
async fn explanation_shows_the_counter_of_a_group() {
    let service = Service::start(RULES).await;
    let first = explained(&service, "client=2001:db8::1,path=a").await;
    assert_eq!(first["levels"][0]["matched"]["counted_as"], "2001:db8::/64");
    assert_eq!(first["levels"][1]["matched"]["counted_as"], Value::Null);
    assert_eq!(first["rule"]["groups"], json!(["client by {ipv4: 24, ipv6: 64}"]));
    let other = explained(&service, "client=2001:db8::ffff,path=a").await;
    assert_eq!(first["counter"]["key"], other["counter"]["key"]);
    let outside = explained(&service, "client=2001:db8:0:1::1,path=a").await;
    assert_ne!(first["counter"]["key"], outside["counter"]["key"]);
    let no_address = explained(&service, "client=ann,path=a").await;
    assert_eq!(no_address["levels"][0]["matched"]["counted_as"], "ann");
}

#[tokio::test]
async fn rules_pages_show_networks_and_groups() {
    let service = Service::start(RULES).await;
    let list = ok_json(&service, "GET", "/rules?list=", "").await;
    let groups: Vec<_> =
        list["list"]["rules"].as_array().unwrap().iter().map(|rule| &rule["groups"]).collect();
    let none = json!([]);
    let (only_ipv6, both) = (json!(["ip by {ipv6: 64}"]), json!(["client by {ipv4: 24, ipv6: 64}"]));
    assert!(groups.contains(&&only_ipv6) && groups.contains(&&both) && groups.contains(&&none), "{groups:?}");
    let lines = admin(&service, "GET", "/rlconfig", "").await.1;
    let flags = "shadow_mode: false, quota_mode: false";
    for line in [
        format!("edge.ip_10.0.0.0/8: unit=HOUR requests_per_unit=4, {flags}\n"),
        format!(
            "edge.client.path: unit=HOUR requests_per_unit=1, {flags}, group of client: {{ipv4: 24, ipv6: 64}}\n"
        ),
    ] {
        assert!(lines.contains(&line), "{lines}");
    }
}

#[tokio::test]
async fn addresses_of_one_network_have_one_limit() {
    let service = Service::start(RULES).await;
    let mut passed = Vec::new();
    for address in
        ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "192.0.2.1", "::ffff:192.0.2.200", "ann", "bob"]
    {
        let status =
            service.status(request("edge", vec![descriptor(&[("client", address), ("path", "/")])])).await;
        passed.push(status.code() == Code::Ok);
    }
    assert_eq!(passed, [true, false, true, true, false, true, true]);
}
